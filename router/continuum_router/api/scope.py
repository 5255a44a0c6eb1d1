"""What the edge knows about one client request while it lasts."""

import itertools
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web
from multidict import CIMultiDict

from continuum_router.api.edge_metrics import EndpointLabel
from continuum_router.errors import RouterError
from continuum_router.upstream.outcome import Outcome

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_MAX_CLIENT_TEXT = 128

CACHE_BYPASS = ("X-Cache", "BYPASS")
"""Every answer of a cacheable endpoint carries X-Cache; without a cache it is this (B9, B10)."""


class StartedAnswer(Protocol):
    """A relayed answer, as far as errors need to know it."""

    @property
    def started(self) -> bool:
        """True once the client has a status."""

    def cut(self) -> None:
        """Break the connection."""


class RequestIds:
    """Fresh request ids: 32 hex digits, 16 of this process and 16 that count on.

    Unique, not secret; an id costs no system call.
    """

    def __init__(self) -> None:
        self._process = secrets.token_hex(8)
        self._count = itertools.count(secrets.randbits(62))

    def __call__(self) -> str:
        """The next id."""
        return f"{self._process}{next(self._count):016x}"


@dataclass(slots=True, kw_only=True)
class Scope:
    """Identity, timing and result of one request.

    `client_id` is the client's own request id, kept only for the log (decisions G5); `trace_id`
    comes from a W3C traceparent header. `started` is monotonic seconds. `error` is what the client
    was told, when it was told an error of ours; `sink` where a relayed answer goes. `path` is the
    path as sent, `route` the entry of the table it fell under, which is what logs name. `api`
    requests leave a completion line, those that `generates` have their times observed.
    """

    request_id: str
    started: float
    method: str
    endpoint: EndpointLabel = EndpointLabel.OTHER
    route: str = ""
    path: str = ""
    api: bool = False
    cacheable: bool = False
    generates: bool = False
    routing_headers: bool = False
    model: str | None = None
    client_id: str | None = None
    client_ref: str | None = None
    trace_id: str | None = None
    outcome: Outcome = field(default_factory=Outcome)
    error: RouterError | None = None
    sink: StartedAnswer | None = None

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
    return Scope(
        request_id=request_id,
        started=now,
        method=request.method[:16],
        client_id=client_text(headers.get("x-request-id")),
        client_ref=client_text(headers.get("x-client-ref")),
        trace_id=trace_of(headers.get("traceparent")),
    )


def trace_of(traceparent: str | None) -> str | None:
    """Trace id of a W3C traceparent header; None when there is none that can be read."""
    trace = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    return trace[1] if trace is not None else None


def client_text(value: str | None) -> str | None:
    """A client's label for the log: printable ASCII, at most 128 characters (G5, G20)."""
    if not value or len(value) > _MAX_CLIENT_TEXT:
        return None
    return value if value.isascii() and value.isprintable() else None
