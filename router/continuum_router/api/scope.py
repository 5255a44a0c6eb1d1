"""What the edge knows about one client request while it lasts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiohttp import web
from multidict import CIMultiDict

from continuum_router.api.client_sink import WebSink
from continuum_router.api.edge_metrics import EndpointLabel
from continuum_router.errors import RouterError
from continuum_router.upstream.outcome import Outcome

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_MAX_CLIENT_TEXT = 128

CACHE_BYPASS = ("X-Cache", "BYPASS")
"""Every answer of a cacheable endpoint carries X-Cache; without a cache it is this (B9, B10)."""


@dataclass(slots=True, kw_only=True)
class Scope:
    """Identity, timing and result of one request.

    `client_id` is the client's own request id, kept only for the log (decisions G5); `trace_id`
    comes from a W3C traceparent header. `started` is monotonic seconds. `error` is what the client
    was told, when it was told an error of ours; `sink` where a relayed answer goes. `path` is the
    path as sent, `route` the entry of the table it fell under, which is what logs name.
    """

    request_id: str
    started: float
    method: str
    endpoint: EndpointLabel = EndpointLabel.OTHER
    route: str = ""
    path: str = ""
    cacheable: bool = False
    routing_headers: bool = False
    model: str | None = None
    client_id: str | None = None
    client_ref: str | None = None
    trace_id: str | None = None
    outcome: Outcome = field(default_factory=Outcome)
    error: RouterError | None = None
    sink: WebSink | None = None

    def headers(self) -> Sequence[tuple[str, str]]:
        """The edge's own response headers, as far as they are known now."""
        found = [("x-continuum-request-id", self.request_id)]
        if self.cacheable:
            found.append(CACHE_BYPASS)
        if self.routing_headers and self.outcome.choice is not None:
            choice = self.outcome.choice
            found.append(("x-continuum-backend", choice.backend.name))
            found.append(("x-continuum-route", choice.route_header()))
        return found

    def headers_map(self) -> CIMultiDict[str]:
        """The same, as aiohttp wants them."""
        return CIMultiDict(self.headers())


def read_scope(request: web.BaseRequest, *, request_id: str, now: float) -> Scope:
    """Begin the scope of a request: a fresh id of ours, and what the client calls it."""
    headers = request.headers
    trace = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return Scope(
        request_id=request_id,
        started=now,
        method=request.method[:16],
        client_id=_client_text(headers.get("x-request-id")),
        client_ref=_client_text(headers.get("x-client-ref")),
        trace_id=trace[1] if trace is not None else None,
    )


def _client_text(value: str | None) -> str | None:
    """A client's label for the log: printable ASCII, at most 128 characters (G5, G20)."""
    if not value or len(value) > _MAX_CLIENT_TEXT:
        return None
    return value if value.isascii() and value.isprintable() else None
