"""A listener in front of the router: sends the events that a test puts into it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from continuum_shared.kv_event import KvAction, KvEvent, encode
from continuum_shared.sse import encode_comment, encode_event
from support.edge import Edge


class Listener:
    """`GET /events/{backend}`; `url` is where."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.queues: dict[str, asyncio.Queue[bytes]] = {name: asyncio.Queue() for name in names}
        self.url = ""

    def say(self, backend: str, event: KvEvent, number: int) -> None:
        """Send one record."""
        record = encode_event(encode(event), event=event.action.value, id=f"e1-{number}")
        self.queues[backend].put_nowait(record)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """One stream."""
        queue = self.queues[request.match_info["backend"]]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(encode_comment("prefix-length=1024"))
        while True:
            await response.write(await queue.get())


@asynccontextmanager
async def listening(*names: str) -> AsyncIterator[Listener]:
    """A listener with a stream for each name."""
    listener = Listener(names)
    app = web.Application()
    app.router.add_get("/events/{backend}", listener.events)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    listener.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield listener
    finally:
        await runner.cleanup()


async def applied(edge: Edge, backend: str, action: KvAction, count: int = 1) -> None:
    """Wait until the router has taken that many records."""
    async with asyncio.timeout(10):
        while (
            edge.sample("continuum_kv_event_received_total", backend=backend, action=action.value)
            < count
        ):
            await asyncio.sleep(0.005)
