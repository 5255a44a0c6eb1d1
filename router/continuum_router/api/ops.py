"""What operators and their machines ask: /health, /healthz, /health/ready, /metrics."""

import orjson
from aiohttp import web

from continuum_router.api.scope import Scope
from continuum_router.runtime import Runtime
from continuum_shared.metrics import CONTENT_TYPE, Metrics


class Health:
    """GET /health and /healthz: the process lives; nothing about backends (S2, decisions E7)."""

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:  # noqa: ARG002
        """200 while the process can answer at all."""
        return _json(200, {"status": "ok"}, scope)


class Ready:
    """GET /health/ready: whether to send clients here (S2 "liveness and readiness")."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:  # noqa: ARG002
        """503 while draining, or when no enabled backend is there for clients; else 200."""
        if self._runtime.draining:
            return _json(503, {"status": "draining"}, scope)
        if not self._runtime.current.ready:
            return _json(503, {"status": "no_backend"}, scope)
        return _json(200, {"status": "ready"}, scope)


class Exposition:
    """GET /metrics, in Prometheus' text form."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:  # noqa: ARG002
        """Everything that is registered."""
        headers = {**scope.headers_map(), "Content-Type": CONTENT_TYPE}
        return web.Response(body=self._metrics.exposition(), headers=headers)


def _json(status: int, body: dict[str, object], scope: Scope) -> web.Response:
    return web.Response(
        status=status,
        body=orjson.dumps(body),
        content_type="application/json",
        headers=scope.headers_map(),
    )
