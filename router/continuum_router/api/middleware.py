"""Around every client request: identity, routes, the one mapping of errors, the books.

`Edge` is the handler that aiohttp's server calls. It finds the route, runs it, and turns whatever
comes out of it into one answer, one count and at most two log lines (S2 "request completion
logging", "rejection logging"). A refused request is counted exactly once (decisions J10).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import orjson
from aiohttp import web
from multidict import CIMultiDict

from continuum_router.api.access_log import AccessLog
from continuum_router.api.edge_metrics import EdgeMetrics, EndpointLabel
from continuum_router.api.route_table import RouteTable, plain_path
from continuum_router.api.scope import RequestIds, Scope, read_scope
from continuum_router.error_bodies import error_form, to_client
from continuum_router.errors import (
    BadRequest,
    ClientGone,
    InternalError,
    MethodNotAllowed,
    NotFound,
    RouterError,
    forget_frames,
)
from continuum_router.runtime import Runtime
from continuum_router.upstream.outcome import Ended
from continuum_shared.logs import fields

log = logging.getLogger("continuum_router.access")


class HasStatus(Protocol):
    """An answer, as far as the books need to know it."""

    @property
    def status(self) -> int:
        """The status that the client got."""


Answer = TypeVar("Answer", bound=HasStatus)

Handler = Callable[[web.BaseRequest, Scope], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path and method. `api`: its requests leave a completion line; `cacheable`: X-Cache."""

    endpoint: EndpointLabel
    handler: Handler
    api: bool = False
    cacheable: bool = False
    generates: bool = False


class ActiveCount:
    """How many client requests are being worked on, and whether that has come to none."""

    def __init__(self) -> None:
        self.now = 0
        self._none: asyncio.Event | None = None  # there is one while somebody waits

    def enter(self) -> None:
        """One more."""
        self.now += 1

    def leave(self) -> None:
        """One less."""
        self.now -= 1
        if self.now == 0:
            self.none_left()

    def none_left(self) -> None:
        """To be called by whoever has led `now` to 0 by hand."""
        if self._none is not None:
            self._none.set()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *exc: object) -> None:
        self.leave()

    async def wait_none(self) -> None:
        """Return as soon as nothing is being worked on."""
        while self.now:
            if self._none is None or self._none.is_set():
                self._none = asyncio.Event()
            await self._none.wait()


class Edge:
    """See the module. `clock` is monotonic seconds."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        routes: RouteTable[Route],
        metrics: EdgeMetrics,
        active: ActiveCount,
        lines: AccessLog,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._routes = routes
        self.metrics = metrics
        self.active = active
        self.lines = lines
        self.new_id = RequestIds()
        self._clock = clock

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        scope = read_scope(request, request_id=self.new_id(), now=self._clock())

        async def work() -> web.StreamResponse:
            response = await self._find(request, scope).handler(request, scope)
            if self._runtime.draining:
                response.force_close()
            return response

        with self.active:
            return await self.settle(scope, work, lambda err: self._refuse(err, request, scope))

    async def settle(
        self,
        scope: Scope,
        work: Callable[[], Awaitable[Answer]],
        refuse: Callable[[RouterError], Answer],
    ) -> Answer:
        """Do the work of one request; whatever comes of it, answer it and write the books.

        `refuse` answers an error while the client has no status yet. Raises ConnectionResetError
        when there is nobody, or no way any more, to answer; cancellations pass.
        """
        status = 499
        try:
            answer = await work()
            status = answer.status
        except asyncio.CancelledError:
            status = self.cancelled(scope)
            raise
        except ClientGone:
            scope.outcome.ended = Ended.CLIENT_GONE
            raise ConnectionResetError("the client left") from None
        except RouterError as err:
            status = err.status
            answer = self._answer_error(err, scope, refuse)
            forget_frames(err)
        except Exception as err:  # noqa: BLE001 - the edge is where defects of ours end
            self._report_defect(err, scope)
            status = 500
            answer = self._answer_error(InternalError(), scope, refuse)
        finally:
            self.account(scope, status)
            # The sink refers back to the scope, the error through its traceback to our frames: the
            # request, body and all, would stay until the cycle collector comes.
            scope.sink = scope.error = None
        return answer

    def cancelled(self, scope: Scope) -> int:
        """Note why a request was cancelled; the status that it counts as."""
        if self._runtime.stopping:
            scope.outcome.ended = Ended.SHUTDOWN
            return 503
        scope.outcome.ended = Ended.CLIENT_GONE
        return 499

    def unparsed(self, method: str, why: RouterError | None = None) -> web.Response:
        """Answer bytes that are no HTTP request, counted like any other refusal (J20)."""
        scope = Scope(request_id=self.new_id(), started=self._clock(), method=method)
        err = why or BadRequest("The HTTP request is malformed.", code="malformed_request")
        scope.error = err
        response = error_response(err, scope)
        response.force_close()
        self.account(scope, err.status)
        return response

    def _find(self, request: web.BaseRequest, scope: Scope) -> Route:
        path = plain_path(request.raw_path)
        scope.path = path
        found = self._routes.find(path)
        if found is None:
            raise NotFound
        scope.route, methods = found
        route = methods.get(request.method) or next(iter(methods.values()))
        scope.endpoint = route.endpoint
        scope.cacheable = route.cacheable
        if request.method not in methods:
            raise MethodNotAllowed(headers={"Allow": ", ".join(methods)})
        scope.api, scope.generates = route.api, route.generates
        return route

    def _answer_error(
        self, err: RouterError, scope: Scope, refuse: Callable[[RouterError], Answer]
    ) -> Answer:
        scope.error = err
        if scope.outcome.ended is None:
            scope.outcome.ended = Ended.REJECTED if err.stage is not None else Ended.FAILED
        if scope.sink is not None and scope.sink.started:
            # The client has a status already; a second answer would be read as its body.
            scope.sink.cut()
            raise ConnectionResetError("the answer broke after its start")
        return refuse(err)

    def _refuse(self, err: RouterError, request: web.BaseRequest, scope: Scope) -> web.Response:
        response = error_response(err, scope)
        unread = not request.content.is_eof() or request.content.exception() is not None
        if self._runtime.draining or unread:
            response.force_close()
        return response

    def _report_defect(self, err: Exception, scope: Scope) -> None:
        # The type and the place, never the text: it may quote the request.
        frame = err.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = "?" if frame is None else f"{frame.tb_frame.f_code.co_name}:{frame.tb_lineno}"
        log.error(
            "Request handler failed",
            extra=fields(request_id=scope.request_id, error=type(err).__name__, at=place),
        )

    def account(self, scope: Scope, status: int) -> None:
        """Count the request and note its lines. Once for each request."""
        seconds = self._clock() - scope.started
        self.metrics.request_ended(scope.endpoint, status)
        if scope.generates and scope.outcome.attempts:
            self.metrics.generation_ended(seconds, scope.outcome.ttft)
        err = scope.error
        if err is not None and err.stage is not None:
            self.metrics.rejected(err.stage)
            self.lines.rejected(scope, err, seconds)
        if scope.api:
            self.lines.completed(scope, status, seconds)


def error_response(err: RouterError, scope: Scope) -> web.Response:
    """The answer that tells an error, in the client's form, with the edge's own headers."""
    status, body, headers = to_client(err, scope.request_id, error_form(scope.path))
    return web.Response(
        status=status,
        headers=CIMultiDict([*headers.items(), *scope.headers()]),
        body=orjson.dumps(body),
        content_type="application/json",
    )
