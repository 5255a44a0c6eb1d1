"""GET /v1/models: every model a client may name; below it, one of them."""

import math
import time

import orjson
from aiohttp import web

from continuum_router.api.scope import Scope
from continuum_router.errors import ModelNotFound, RefreshNotAllowed, TooManyRefreshes
from continuum_router.models.freshness import RefreshGate
from continuum_router.runtime import Runtime


class Models:
    """Handler of the model list. Answers from memory, whatever state the backends are in, once a
    first pass has been made (S2)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:  # noqa: ARG002
        """Answer with the list of the snapshot in force."""
        await self._runtime.current.catalog.ready(self._runtime.current.dispatcher.pool)
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


class RefreshModels:
    """POST /v1/models/refresh: a new list, waited for; 6 a minute for each caller (E21)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._gate = RefreshGate()

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:
        """Answer with the new list. Raises RefreshNotAllowed, TooManyRefreshes."""
        if not self._runtime.current.config.model_aggregation.allow_force_refresh:
            raise RefreshNotAllowed
        wait = self._gate.wait(request.remote or "", time.monotonic())
        if wait:
            raise TooManyRefreshes(headers={"Retry-After": str(math.ceil(wait))})
        await self._runtime.current.catalog.force()
        snap = self._runtime.current
        body = {"object": "list", "data": snap.catalog.listing(snap.dispatcher.pool)}
        return web.Response(
            body=orjson.dumps(body), content_type="application/json", headers=scope.headers_map()
        )
