"""Event feeds for tests: a scripted one in memory, and a real HTTP server that speaks SSE."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web

SOCKET = web.RequestKey("socket", web.WebSocketResponse)
Step = bytes | Exception | asyncio.Event


class ScriptedFeed:
    """Plays one list of steps for each time it is opened, then waits for ever.

    A step is bytes to hand out, an exception to raise, or an event to wait for. A list that starts
    with an exception fails on opening. ``asked`` collects the ids that were asked for.
    """

    def __init__(self, *connections: Sequence[Step]) -> None:
        self._connections = list(connections)
        self.asked: list[str | None] = []
        self.open_now = 0
        self.played = asyncio.Event()
        self.looks: list[bool] = []

    @asynccontextmanager
    async def open(self, last_event_id: str | None) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append(last_event_id)
        if not self._connections:
            self.played.set()
            await asyncio.Event().wait()
        steps = list(self._connections.pop(0))
        if steps and isinstance(steps[0], Exception):
            raise steps[0]
        self.open_now += 1
        try:
            async with aclosing(self._play(steps)) as pieces:
                yield pieces
        finally:
            self.open_now -= 1

    async def reachable(self) -> bool:
        """The next of ``looks``; nobody is there when they are used up."""
        return self.looks.pop(0) if self.looks else False

    async def _play(self, steps: list[Step]) -> AsyncGenerator[bytes, None]:
        for step in steps:
            if isinstance(step, bytes):
                yield step
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                raise step


class SseServer:
    """An HTTP server on a free port whose ``/events`` runs ``serve(request, response)``.

    ``serve`` gets a prepared response and may write to it; the stream ends when it returns.
    ``requests`` collects the headers of each request.
    """

    def __init__(self, serve: Callable[[web.Request], Any]) -> None:
        self._serve = serve
        self.requests: list[dict[str, str]] = []
        self.url = ""

    async def __aenter__(self) -> "SseServer":
        app = web.Application()
        app.router.add_get("/events", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/events"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        result = await self._serve(request)
        assert isinstance(result, web.StreamResponse)
        return result


class _TextMessages:
    """A WebSocket that is written to like an event stream."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.socket = socket

    async def write(self, data: bytes) -> None:
        if data:
            await self.socket.send_str(data.decode())


def over_web_socket(serve: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
    """``serve`` for :class:`SseServer`, whose ``stream`` goes into text messages instead."""

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        request[SOCKET] = socket
        result = await serve(request)
        if isinstance(result, _TextMessages):
            await socket.close()
            return socket
        assert isinstance(result, web.StreamResponse)
        return result

    return handle


async def stream(request: web.Request, *pieces: bytes) -> Any:
    """Answer with an event stream of these pieces; it ends after the last."""
    if SOCKET in request:
        await request[SOCKET].prepare(request)
        messages = _TextMessages(request[SOCKET])
        for piece in pieces:
            await messages.write(piece)
        return messages
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    return response
