"""The listener's HTTP side over a stream that the test publishes to; a client that is slow."""

import asyncio
import socket

from aiohttp import web

from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.serve_sse import Access, HttpSide, ServeTimes
from continuum_kv_listener.stream import EventStream
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from continuum_shared.sse import SseEvent, SseParser


def created(n: int) -> KvEvent:
    return KvEvent(action=KvAction.CREATED, prefix=PrefixKey(n.to_bytes(32, "big")), tokens=n)


class Source:
    """What the HTTP side needs of a source."""

    def __init__(self, families: ListenerMetrics, history: int) -> None:
        self.stream = EventStream(
            epoch="e",
            max_prefix_length=77,
            snapshot=lambda: [],
            metrics=families.stream("s"),
            history=history,
        )
        self.waited: list[float] = []
        self.settling: asyncio.Event | None = None

    async def settled(self, timeout: float) -> None:
        self.waited.append(timeout)
        if self.settling is not None:
            await self.settling.wait()


class Served:
    def __init__(
        self,
        *,
        history: int = 10_000,
        times: ServeTimes | None = None,
        access: Access | None = None,
    ) -> None:
        self.metrics = Metrics()
        families = ListenerMetrics(self.metrics)
        self.source = Source(families, history)
        side = HttpSide(
            {"s": self.source},
            page=lambda: {"sources": []},
            families=families,
            access=access,
            times=times or ServeTimes(heartbeat=0.05, settle=0.5, write=2.0),
        )
        self.runner = web.AppRunner(side.application(), handler_cancellation=True, access_log=None)
        self.base = ""

    async def start(self, *, send_buffer: int | None = None) -> None:
        """Listen. ``send_buffer`` keeps the kernel from hiding a slow reader."""
        await self.runner.setup()
        listening = socket.socket()
        if send_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        listening.bind(("127.0.0.1", 0))
        await web.SockSite(self.runner, listening).start()
        self.base = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    def count(self, line: str) -> float:
        for sample in self.metrics.exposition().decode().splitlines():
            name, _, value = sample.rpartition(" ")
            if name == f"continuum_listener_{line}":
                return float(value)
        raise AssertionError(line)


class SlowClient:
    """A raw subscriber that sends its request and reads only when told to."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)

    async def subscribe(self, base: str, last_id: str) -> None:
        host, port = base.removeprefix("http://").split(":")
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, (host, int(port)))
        # HTTP/1.0 has no chunks, so what is read is the stream itself.
        request = f"GET /events/s HTTP/1.0\r\nHost: x\r\nLast-Event-ID: {last_id}\r\n\r\n"
        await loop.sock_sendall(self.socket, request.encode())

    async def read_to_the_end(self) -> list[SseEvent]:
        loop = asyncio.get_running_loop()
        data = bytearray()
        try:
            async with asyncio.timeout(10):
                while piece := await loop.sock_recv(self.socket, 65536):
                    data += piece
        except ConnectionResetError:
            pass
        body = bytes(data).partition(b"\r\n\r\n")[2]
        return [item for item in SseParser().feed(body) if isinstance(item, SseEvent)]
