"""GET /v1/models: every model a client may name; below it, one of them."""

import orjson
from aiohttp import web

from continuum_router.api.scope import Scope
from continuum_router.errors import ModelNotFound
from continuum_router.runtime import Runtime


class Models:
    """Handler of the model list. Answers from memory, whatever state the backends are in."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:  # noqa: ARG002
        """Answer with the list of the snapshot in force."""
        snap = self._runtime.current
        body = {"object": "list", "data": snap.catalog.listing(snap.dispatcher.pool)}
        return web.Response(
            body=orjson.dumps(body), content_type="application/json", headers=scope.headers_map()
        )


class OneModel:
    """Handler of the entries of the list, by name; a name may have slashes of its own."""

    def __init__(self, runtime: Runtime, *, below: str) -> None:
        self._runtime = runtime
        self._below = below

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:  # noqa: ARG002
        """Answer with one entry. Raises ModelNotFound."""
        snap = self._runtime.current
        entry = snap.catalog.entry(scope.path.removeprefix(self._below), snap.dispatcher.pool)
        if entry is None:
            raise ModelNotFound(param="model")
        return web.Response(
            body=orjson.dumps(entry), content_type="application/json", headers=scope.headers_map()
        )
