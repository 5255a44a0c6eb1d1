"""The listener's HTTP side: event streams, health, metrics, the page about the sources.

============================  ====================================================================
``GET /events/{backend}``     SSE of one source (``stream``); ``Last-Event-ID`` resumes
``GET /sources``              JSON: each source's state, and what is wrong with it (J4)
``GET /health``               200 as soon as the daemon serves
``GET /metrics``              Prometheus text
============================  ====================================================================
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import orjson
from aiohttp import web

from continuum_kv_listener.listener_metrics import StreamEnd
from continuum_kv_listener.stream import EventStream, FellBehind, Subscription
from continuum_shared.metrics import CONTENT_TYPE, Metrics
from continuum_shared.sse import encode_comment

HEARTBEAT = encode_comment("heartbeat")
MAX_SUBSCRIBERS = 64
"""Streams open on one source at a time; routers are few."""

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


class HttpSide:
    """Handlers over the sources. ``page`` makes the body of ``/sources``."""

    def __init__(
        self,
        sources: Mapping[str, Streamable],
        *,
        page: Callable[[], dict[str, object]],
        metrics: Metrics,
        times: ServeTimes | None = None,
    ) -> None:
        self._sources = sources
        self._page = page
        self._metrics = metrics
        self._times = times or ServeTimes()
        self._seats: Counter[str] = Counter()

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[_errors_as_json])
        app.router.add_get("/events/{backend}", self.events, allow_head=False)
        app.router.add_get("/sources", self.sources)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        return app

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
            return _error(404, "no source has this backend_name")
        name = request.match_info["backend"]
        if self._seats[name] >= MAX_SUBSCRIBERS:
            return _error(503, "too many open streams on this source")
        with self._seated(name):
            return await self._stream(request, source)

    @contextmanager
    def _seated(self, name: str) -> Iterator[None]:
        """One of a source's seats; taken before the first wait, so that a rush gets no more."""
        self._seats[name] += 1
        try:
            yield
        finally:
            self._seats[name] -= 1

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
                subscription.end = await self._pump(response, subscription)
            except TimeoutError:
                subscription.end = StreamEnd.FELL_BEHIND
                if request.transport is not None:
                    request.transport.abort()
            except ConnectionError:
                subscription.end = StreamEnd.CLIENT_LEFT
        return response

    async def _pump(self, response: web.StreamResponse, subscription: Subscription) -> StreamEnd:
        """Send what there is; ends only when the stream is to end."""
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
                async with asyncio.timeout(self._times.write):
                    await response.write(data)
        async with asyncio.timeout(self._times.write):
            await response.write_eof()
        return end

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
