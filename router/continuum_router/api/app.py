"""The server: which path leads where, and aiohttp's own server made to fit.

aiohttp's low-level server calls one handler for every request; the paths are few and exact, so a
table replaces its router, and no layer rewrites a path before it is compared. The protocol class is
ours so that bytes which are no HTTP get the same kind of answer as everything else, and so that a
shorter way for ordinary requests can be put before aiohttp's parser later (design/data-plane.md).
"""

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

from continuum_router.api.chat import Generate
from continuum_router.api.edge_metrics import EdgeMetrics, EndpointLabel
from continuum_router.api.hangup_watch import HangupWatch
from continuum_router.api.middleware import ActiveCount, Edge, Handler, Route
from continuum_router.api.models import Models
from continuum_router.api.ops import Exposition, Health, Ready
from continuum_router.api.proxy import Proxy
from continuum_router.api.route_table import RouteTable
from continuum_router.api.wire_guard import MAX_HEADERS, MAX_LINE_BYTES, WireGuard
from continuum_router.request import COMPLETING, Endpoint
from continuum_router.routing.response_homes import ResponseHomes
from continuum_router.runtime import Runtime
from continuum_shared.metrics import Metrics

log = logging.getLogger("continuum_router.server")

KEEPALIVE_SECONDS = 75.0
"""An idle client connection is kept so long: longer than the usual 60 s of load balancers."""

LINGER_SECONDS = 5.0
"""How long the rest of a refused body is read, so that the client gets to see the answer."""

NO_HTTP = b"\0\r\n\r\n"
"""What aiohttp's parser is given in the place of bytes that were refused; it is an error anywhere
but inside a chunk or a body of known length, where no refusal leaves it."""

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


class EdgeProtocol(RequestHandler):
    """One client connection."""

    __slots__ = ("_answered_body", "_edge", "_guard", "_hangup", "_newest_body")

    def __init__(self, server: "EdgeServer", edge: Edge, **kwargs: object) -> None:
        super().__init__(server, **kwargs)  # type: ignore[arg-type]
        self._edge = edge
        self._guard = WireGuard()
        self._hangup = HangupWatch()
        self._newest_body: StreamReader = EMPTY_PAYLOAD
        self._answered_body: StreamReader = EMPTY_PAYLOAD

    def _pause_transport_reading(self) -> None:
        super()._pause_transport_reading()
        if self.transport is not None:
            self._hangup.start(self.transport, self._loop)

    def data_received(self, data: bytes) -> None:
        """Take the client's next bytes: those that `WireGuard` finds clean are aiohttp's."""
        guard = self._guard
        refused = guard.fault is not None
        for piece in guard.feed(data):
            self._parse(piece)
        if not data:  # aiohttp asks itself to go on with what it holds
            self._parse(data)
        elif guard.fault is not None and not refused:
            self._parse(NO_HTTP)

    def _parse(self, data: bytes) -> None:
        """Hand bytes to aiohttp.

        When a body turns out to be damaged, aiohttp queues the error as if it were a request of its
        own and leaves whoever reads the body waiting. It belongs to that body: hand it over.
        """
        super().data_received(data)
        messages = self._messages
        if not messages:
            return
        message, content = messages[-1]
        if isinstance(message, RawRequestMessage):
            self._newest_body = content
        elif not self._newest_body.is_eof():
            if self._newest_body is not self._answered_body:
                messages.pop()
                self._newest_body.set_exception(web.RequestPayloadError("the body is damaged"))
            self._newest_body.feed_eof()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """From now on nobody reads the request's body any more, aiohttp only skips what is left."""
        self._answered_body = request.content
        if self._guard.fault is not None and not self._messages:
            resp.force_close()  # nothing behind this request will be looked at
        return await super().finish_response(request, resp, start_time)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Answer what aiohttp's parser refused. Its text may quote the client and is not used."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was started already")
        # aiohttp marks what it could not parse as HTTP/1.0; the answer is in the usual form.
        request._version = HttpVersion11
        return self._edge.unparsed("?", self._guard.fault)


class EdgeServer(web.Server):
    """Makes a protocol for each connection, with handler cancellation on: a client that leaves
    cancels its request, and with it the call to the backend (user report S1)."""

    def __init__(self, edge: Edge) -> None:
        super().__init__(
            edge.handle,
            request_factory=self._new_request,
            handler_cancellation=True,
        )
        self._edge = edge
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
        return EdgeProtocol(self, self._edge, **self._options)

    def _new_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> EdgeRequest:
        return EdgeRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


def make_routes(runtime: Runtime, metrics: Metrics, homes: ResponseHomes) -> RouteTable[Route]:
    """Every path of the edge. Management paths do not exist (decisions J20)."""
    exact: dict[str, dict[str, Route]] = {}
    below: dict[str, dict[str, Route]] = {}
    for endpoint in COMPLETING:
        handler = Generate(runtime, endpoint)
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


def make_server(
    runtime: Runtime,
    *,
    metrics: Metrics,
    edge_metrics: EdgeMetrics,
    active: ActiveCount,
    clock: Callable[[], float],
    homes: ResponseHomes,
) -> EdgeServer:
    """Return the server for a runtime. To be called with the loop running."""
    edge = Edge(
        runtime=runtime,
        routes=make_routes(runtime, metrics, homes),
        metrics=edge_metrics,
        active=active,
        clock=clock,
    )
    return EdgeServer(edge)
