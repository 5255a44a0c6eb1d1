"""GET /v1/models: every model a client may name."""

import orjson
from aiohttp import web

from continuum_router.api.scope import Scope
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
