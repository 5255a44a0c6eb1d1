"""The server: which path leads where, and aiohttp's own server made to fit.

aiohttp's low-level server calls one handler for every request; the paths are few and exact, so a
table replaces its router, and no layer rewrites a path before it is compared. The protocol class is
ours (`edge_protocol`), so that bytes which are no HTTP get the same kind of answer as everything
else, and so that ordinary requests take the fast path (`fast_path`).
"""

import asyncio
import logging

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from continuum_router.api.access_log import AccessLog
from continuum_router.api.admin import PREFIX as ADMIN_PREFIX
from continuum_router.api.chat import Generate
from continuum_router.api.edge_metrics import EdgeMetrics, EndpointLabel
from continuum_router.api.edge_protocol import EdgeProtocol
from continuum_router.api.fast_path import FastPath
from continuum_router.api.middleware import ActiveCount, Edge, Handler, Route
from continuum_router.api.models import Models, OneModel, RefreshModels
from continuum_router.api.ops import Exposition, Health, Ready
from continuum_router.api.proxy import Proxy
from continuum_router.api.route_table import RouteTable
from continuum_router.api.wire_guard import MAX_HEADERS, MAX_LINE_BYTES
from continuum_router.request import COMPLETING, Endpoint
from continuum_router.routing.response_homes import ResponseHomes
from continuum_router.runtime import Runtime
from continuum_router.upstream.pool import UpstreamPool
from continuum_shared.metrics import Metrics
from continuum_shared.tasks import Supervisor

log = logging.getLogger("continuum_router.server")

KEEPALIVE_SECONDS = 75.0
"""An idle client connection is kept so long: longer than the usual 60 s of load balancers."""

LINGER_SECONDS = 5.0
"""How long the rest of a refused body is read, so that the client gets to see the answer."""

PROXIED = (
    Endpoint.RESPONSES,
    Endpoint.EMBEDDINGS,
    Endpoint.RERANK,
    Endpoint.SCORE,
    Endpoint.TOKENIZE,
    Endpoint.DETOKENIZE,
    Endpoint.AUDIO,
    Endpoint.IMAGES,
)
"""What is passed on as it is."""

PASSED_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""Methods of `server.passthrough_paths`."""


class EdgeRequest(web.BaseRequest):
    """A request whose answers do not name the server software (decisions H6)."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.pop("Server", None)


class EdgeServer(web.Server):
    """Makes a protocol for each connection, with handler cancellation on: a client that leaves
    cancels its request, and with it the call to the backend (user report S1)."""

    def __init__(self, edge: Edge, fast: FastPath | None) -> None:
        super().__init__(
            edge.handle,
            request_factory=self._new_request,
            handler_cancellation=True,
        )
        self._edge = edge
        self._fast = fast
        self._options = {
            "loop": asyncio.get_running_loop(),
            "access_log": None,
            "auto_decompress": False,
            "logger": log,
            "keepalive_timeout": KEEPALIVE_SECONDS,
            "lingering_time": LINGER_SECONDS,
            "max_line_size": MAX_LINE_BYTES,
            "max_field_size": MAX_LINE_BYTES,
            "max_headers": MAX_HEADERS,
        }

    def __call__(self) -> EdgeProtocol:
        """Called by the loop for each new connection."""
        return EdgeProtocol(self, self._edge, self._fast, **self._options)

    async def shutdown(self, timeout: float | None = None) -> None:
        """Let go of all connections, then write what the requests left."""
        await super().shutdown(timeout)
        if self._fast is not None:
            self._fast.close()
        self._edge.lines.close()

    def _new_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> EdgeRequest:
        return EdgeRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


def make_routes(
    runtime: Runtime, metrics: Metrics, homes: ResponseHomes, lines: AccessLog, admin: Handler
) -> RouteTable[Route]:
    """Every path of the edge. Management paths do not exist (decisions J20)."""
    exact: dict[str, dict[str, Route]] = {}
    below: dict[str, dict[str, Route]] = {}
    for endpoint in COMPLETING:
        handler = Generate(runtime, endpoint, lines)
        exact[endpoint.path] = {"POST": _generating(endpoint, handler, cacheable=True)}

    def proxy(endpoint: Endpoint) -> Route:
        wanted = homes if endpoint is Endpoint.RESPONSES else None
        return _generating(endpoint, Proxy(runtime, endpoint, homes=wanted))

    for endpoint in PROXIED:
        table = below if endpoint.path.endswith("/") else exact
        table[endpoint.path] = {"POST": proxy(endpoint)}
    responses = proxy(Endpoint.RESPONSES)
    below[Endpoint.RESPONSES.path + "/"] = dict.fromkeys(("GET", "POST", "DELETE"), responses)
    through = proxy(Endpoint.PASSTHROUGH)
    for path in runtime.current.config.server.passthrough_paths:
        methods = dict.fromkeys(PASSED_METHODS, through)
        if path.endswith("/*"):
            below.setdefault(path.removesuffix("*"), methods)
        else:
            exact.setdefault(path, methods)
    health = Route(endpoint=EndpointLabel.HEALTH, handler=Health())
    ready = Route(endpoint=EndpointLabel.HEALTH, handler=Ready(runtime))
    models = Route(endpoint=EndpointLabel.MODELS, handler=Models(runtime), api=True)
    one = OneModel(runtime, below="/v1/models/")
    each = Route(endpoint=EndpointLabel.MODELS, handler=one, api=True)
    below["/v1/models/"] = {"GET": each, "HEAD": each}
    renew = Route(endpoint=EndpointLabel.MODELS, handler=RefreshModels(runtime), api=True)
    exact["/v1/models/refresh"] = {"POST": renew}
    steer = Route(endpoint=EndpointLabel.ADMIN, handler=admin)
    below[ADMIN_PREFIX] = {"GET": steer, "POST": steer}
    exposition = Route(endpoint=EndpointLabel.METRICS, handler=Exposition(metrics))
    for path, route in {
        "/v1/models": models,
        "/health": health,
        "/healthz": health,
        "/health/ready": ready,
        "/metrics": exposition,
    }.items():
        exact[path] = {"GET": route, "HEAD": route}
    return RouteTable(exact=exact, below=below)


def _generating(endpoint: Endpoint, handler: Handler, *, cacheable: bool = False) -> Route:
    return Route(
        endpoint=EndpointLabel(endpoint.value),
        handler=handler,
        api=True,
        cacheable=cacheable,
        generates=True,
    )


def make_server(  # noqa: PLR0913  what a server is made of
    runtime: Runtime,
    *,
    metrics: Metrics,
    edge_metrics: EdgeMetrics,
    active: ActiveCount,
    homes: ResponseHomes,
    upstream: UpstreamPool,
    supervisor: Supervisor,
    admin: Handler,
) -> EdgeServer:
    """Return the server for a runtime. To be called with the loop running."""
    state = runtime.current.dispatcher.state
    lines = AccessLog(state.wall)
    edge = Edge(
        runtime=runtime,
        routes=make_routes(runtime, metrics, homes, lines, admin),
        metrics=edge_metrics,
        active=active,
        lines=lines,
        clock=state.clock,
    )
    fast = (
        FastPath(runtime, edge, upstream=upstream, supervisor=supervisor, homes=homes)
        if runtime.current.config.server.fast_path
        else None
    )
    return EdgeServer(edge, fast)
