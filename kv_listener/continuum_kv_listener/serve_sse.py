"""The listener's HTTP side: event streams, health, metrics, the page about the sources.

============================  ====================================================================
``GET /events/{backend}``     SSE of one source (``stream``); ``Last-Event-ID`` resumes
``GET /sources``              JSON: each source's state, and what is wrong with it (J4)
``GET /health``               200 as soon as the daemon serves; asks for no token
``GET /metrics``              Prometheus text
============================  ====================================================================

With tokens configured everything but ``/health`` wants ``Authorization: Bearer`` (docs/decisions
0037). A stream that the listener ends says why in its last comment, if it can still be told.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import orjson
from aiohttp import web

from continuum_kv_listener.bearer import BearerGate, Refusal
from continuum_kv_listener.event_writer import EventWriter
from continuum_kv_listener.listener_metrics import ListenerMetrics, StreamEnd
from continuum_kv_listener.stream import EventStream, FellBehind, Subscription
from continuum_shared.kv_event import closing_comment
from continuum_shared.logs import fields
from continuum_shared.metrics import CONTENT_TYPE
from continuum_shared.sse import encode_comment

log = logging.getLogger("continuum_kv_listener.serve_sse")

HEARTBEAT = encode_comment("heartbeat")
MAX_SUBSCRIBERS = 4096
"""Streams open at a time, all sources together; each costs about 20 KiB."""
RETRY_AFTER = "5"
"""Seconds that a refused subscriber is asked to wait."""
OPEN_PATH = "/health"
TELL_REFUSED_SECONDS = 60.0
"""Between two lines about refused tokens: a stranger must not fill the log."""
GATHER_EACH = 25e-6
GATHER_LEAST, GATHER_MOST = 0.002, 0.1
"""Seconds a subscriber that has everything waits before it is written to again: a little for each
open stream, so that a flood costs a bounded number of writes a second whoever listens."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Streamable(Protocol):
    """A source whose records can be streamed."""

    @property
    def stream(self) -> EventStream: ...

    async def settled(self, timeout: float) -> None:
        """Wait until the first snapshot is worth sending, but not beyond ``timeout`` seconds
        after the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeTimes:
    """Seconds: between heartbeats; after the start, until a snapshot is sent as it is; for one
    write."""

    heartbeat: float = 10.0
    settle: float = 3.0
    write: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may read, and how many streams may be open at once."""

    gate: BearerGate = field(default_factory=BearerGate)
    max_subscribers: int = MAX_SUBSCRIBERS


class HttpSide:
    """Handlers over the sources. ``page`` makes the body of ``/sources``."""

    def __init__(
        self,
        sources: Mapping[str, Streamable],
        *,
        page: Callable[[], dict[str, object]],
        families: ListenerMetrics,
        access: Access | None = None,
        times: ServeTimes | None = None,
    ) -> None:
        self._sources = sources
        self._page = page
        self._metrics = families.metrics
        self._access = access or Access()
        self._times = times or ServeTimes()
        self._refused = {reason: families.refused.child(reason) for reason in Refusal}
        self._seats = 0
        self._untold = 0
        self._tell_next = 0.0

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[_errors_as_json, self._admit])
        app.router.add_get("/events/{backend}", self.events, allow_head=False)
        app.router.add_get("/sources", self.sources)
        app.router.add_get(OPEN_PATH, self.health)
        app.router.add_get("/metrics", self.metrics)
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """401 for who shows no good token. Nothing about the token goes anywhere."""
        refusal = self._access.gate.refuses(request.headers.get("Authorization"))
        if refusal is None or request.path == OPEN_PATH:
            return await handler(request)
        self._refused[refusal].inc()
        self._tell_refused(request, refusal)
        wrong = refusal is Refusal.WRONG_TOKEN
        answer = _error(401, "wrong token" if wrong else "a bearer token is required")
        fault = ', error="invalid_token"' if wrong else ""
        answer.headers["WWW-Authenticate"] = f'Bearer realm="continuum-kv-listener"{fault}'
        return answer

    def _tell_refused(self, request: web.Request, refusal: Refusal) -> None:
        self._untold += 1
        now = asyncio.get_running_loop().time()
        if now >= self._tell_next:
            self._tell_next = now + TELL_REFUSED_SECONDS
            log.warning(
                "Request refused",
                extra=fields(reason=refusal.value, peer=request.remote, count=self._untold),
            )
            self._untold = 0

    async def sources(self, _: web.Request) -> web.Response:
        """State of all sources."""
        return _json(self._page())

    async def health(self, _: web.Request) -> web.Response:
        """The daemon is up; whether its sources are is a matter of ``/sources``."""
        return _json({"status": "ok", "sources": len(self._sources)})

    async def metrics(self, _: web.Request) -> web.Response:
        """All metrics."""
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def events(self, request: web.Request) -> web.StreamResponse:
        """One source's stream, until the client leaves, falls behind, or the daemon stops."""
        source = self._sources.get(request.match_info["backend"])
        if source is None:
            self._refused[Refusal.UNKNOWN_SOURCE].inc()
            return _error(404, "no source has this backend_name")
        if self._seats >= self._access.max_subscribers:
            self._refused[Refusal.TOO_MANY_SUBSCRIBERS].inc()
            answer = _error(503, "too many open streams")
            answer.headers["Retry-After"] = RETRY_AFTER
            return answer
        with self._seated():
            return await self._stream(request, source)

    @contextmanager
    def _seated(self) -> Iterator[None]:
        """One of the seats; taken before the first wait, so that a rush gets no more."""
        self._seats += 1
        try:
            yield
        finally:
            self._seats -= 1

    async def _stream(self, request: web.Request, source: Streamable) -> web.StreamResponse:
        stream = source.stream
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        await source.settled(self._times.settle)
        with stream.subscribe(request.headers.get("Last-Event-ID")) as subscription:
            try:
                writer = EventWriter(request, response, patience=self._times.write)
                subscription.end = await self._pump(writer, subscription)
            except TimeoutError:
                subscription.end = StreamEnd.STALLED
                if request.transport is not None:
                    request.transport.abort()
            except ConnectionError:
                subscription.end = StreamEnd.CLIENT_LEFT
            if subscription.end in (StreamEnd.STALLED, StreamEnd.FELL_BEHIND):
                log.warning(
                    "Slow subscriber closed; it can resume",
                    extra=fields(
                        source=request.match_info["backend"],
                        peer=request.remote,
                        reason=subscription.end.value,
                        behind=subscription.lag,
                    ),
                )
        return response

    async def _pump(self, writer: EventWriter, subscription: Subscription) -> StreamEnd:
        """Send what there is; ends only when the stream is to end, and says why."""
        end: StreamEnd | None = None
        while end is None:
            try:
                data = subscription.take()
            except FellBehind:
                end = StreamEnd.FELL_BEHIND
                break
            if not data and subscription.closed:
                end = StreamEnd.SHUTDOWN
            elif not data and not await self._news(subscription):
                data = HEARTBEAT
            if data:
                await writer.write(data)
                if subscription.caught_up:
                    await asyncio.sleep(self._gather())
        await writer.end(encode_comment(closing_comment(end.value)))
        return end

    def _gather(self) -> float:
        return min(GATHER_MOST, max(GATHER_LEAST, self._seats * GATHER_EACH))

    async def _news(self, subscription: Subscription) -> bool:
        try:
            async with asyncio.timeout(self._times.heartbeat):
                return await subscription.news.wait()
        except TimeoutError:
            return False


def _json(body: Mapping[str, object], status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE),
        status=status,
        content_type="application/json",
    )


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message, "code": status}}, status)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as answer:
        response = _error(answer.status, answer.reason.lower())
        if "Allow" in answer.headers:
            response.headers["Allow"] = answer.headers["Allow"]
        return response
