"""Bounded memory for a client that does not read and a backend that floods, in both directions.

The router is a process of its own; its resident memory is read while it is under pressure. Without
back pressure each of these would cost it hundreds of megabytes.
"""

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.edge import BODY
from support.router_process import RouterProcess, router_process
from support.scripted_backend import Peer, chunk, chunked_head, reply, scripted, sse

MIB = 1024 * 1024
CLIENTS = 16
FLOOD = 48 * MIB
"""What a backend tries to send to each client: without back pressure 768 MiB would be held."""

EVENT = chunk(sse(json.dumps({"text": "x" * 16_000})))
JSON_HEAD = chunked_head(headers=("Content-Type: application/json",))
GZIP_HEAD = chunked_head(headers=("Content-Type: text/event-stream", "Content-Encoding: gzip"))


@dataclass
class Flood:
    """A backend that sends `head`, then `piece` again and again, as fast as it is taken."""

    head: bytes
    piece: bytes
    sent: dict[int, int] = field(default_factory=dict)

    async def __call__(self, peer: Peer) -> None:
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        peer.writer.transport.set_write_buffer_limits(high=64 * 1024)
        if await peer.request() is None:
            return
        number = len(self.sent)
        self.sent[number] = 0
        peer.writer.write(self.head)
        while self.sent[number] < FLOOD:
            peer.writer.write(self.piece)
            await peer.writer.drain()
            self.sent[number] += len(self.piece)

    @property
    def total(self) -> int:
        return sum(self.sent.values())


@contextlib.asynccontextmanager
async def unread(router: RouterProcess, *, stream: bool) -> AsyncIterator[list[socket.socket]]:
    """Clients that send a request and do not read; their receive buffers are small."""
    loop = asyncio.get_running_loop()
    body = json.dumps({**BODY, "stream": stream}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(CLIENTS):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", router.port))
            await loop.sock_sendall(sock, head % len(body) + body)
            clients.append(sock)
        yield clients


async def standing_still(read: Callable[[], int], seconds: float = 0.4) -> int:
    """Wait until a number has not changed for a while."""
    async with asyncio.timeout(40):
        last, since = read(), asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - since < seconds or not last:
            await asyncio.sleep(0.05)
            if read() != last:
                last, since = read(), asyncio.get_running_loop().time()
    return last


def _config(url: str, more: str = "") -> str:
    return (
        f"backends: [{{name: b1, url: '{url}', models: [m]}}]\n"
        f"server: {{listen: '127.0.0.1:0'{more}}}\nhealth_checks: {{enabled: false}}\n"
    )


ENDLESS_EVENT = chunk(b"x" * 16_000)
FLOODS = {
    "events": (True, chunked_head(), EVENT),
    "one endless event": (True, chunked_head() + chunk(b"data: "), ENDLESS_EVENT),
    "comments without an event": (True, chunked_head(), chunk(b": " + b"c" * 16_000 + b"\n")),
    "a plain answer": (False, JSON_HEAD, chunk(b" " * 16_000)),
    "one huge chunk": (True, chunked_head() + b"fffffff\r\n", sse("x" * 16_000)),
    "compressed": (True, GZIP_HEAD, chunk(gzip.compress(sse("x" * MIB)))),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_client_that_does_not_read_stops_its_backend(name: str, tmp_path: Path) -> None:
    stream, head, piece = FLOODS[name]
    flood = Flood(head, piece)
    async with scripted(flood) as backend, router_process(tmp_path, _config(backend.url)) as router:
        idle = router.rss()
        async with unread(router, stream=stream):
            sent = await standing_still(lambda: flood.total)
            assert len(flood.sent) == CLIENTS
            # The kernel's buffers of both connections take some megabytes each, the router little.
            assert sent < CLIENTS * FLOOD / 2
            assert router.rss() - idle < CLIENTS * 4 * MIB  # resident memory moves by megabytes
        await standing_still(lambda: backend.open or -1)


async def test_all_of_it_arrives_once_the_client_reads(tmp_path: Path) -> None:
    """Nothing is lost or doubled by the stops."""
    flood = Flood(chunked_head(), EVENT)
    async with scripted(flood) as backend, router_process(tmp_path, _config(backend.url)) as router:
        idle = router.rss()
        async with unread(router, stream=True) as clients:
            await standing_still(lambda: flood.total)
            reader, writer = await asyncio.open_connection(sock=clients[0].dup())
            await reader.readuntil(b"\r\n\r\n")
            body = bytearray()
            while True:
                size = int(await reader.readuntil(b"\r\n"), 16)
                if not size:
                    break
                body += (await reader.readexactly(size + 2))[:size]
                if len(body) >= 24 * MIB:
                    break
            event = EVENT[EVENT.index(b"data") : -2]
            assert bytes(body[: len(event) * 1000]) == event * 1000
            assert router.rss() - idle < CLIENTS * 4 * MIB  # resident memory moves by megabytes
            writer.close()


async def test_a_body_over_the_limit_is_not_taken_in(tmp_path: Path) -> None:
    """The other direction: what a client floods is refused at the bound, and not kept."""
    async with scripted(Flood(b"", b"x")) as backend:
        config = _config(backend.url, ", max_body_bytes: 1MiB")
        async with router_process(tmp_path, config) as router:
            idle = router.rss()

            async def flood() -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n"
                )
                with contextlib.suppress(ConnectionError):
                    for _ in range(2000):
                        writer.write(chunk(b"x" * 16_000))
                        await writer.drain()
                answer = b""
                with contextlib.suppress(ConnectionError):
                    answer = await reader.read(64)
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
                return answer

            answers = await asyncio.gather(*[flood() for _ in range(CLIENTS)])
            assert any(b" 413 " in answer for answer in answers)
            assert {answer[9:12] for answer in answers} <= {b"413", b""}
            assert router.rss() - idle < CLIENTS * 3 * MIB
            assert backend.connections == 0


async def test_a_backend_that_does_not_read_holds_one_copy_of_the_body(tmp_path: Path) -> None:
    """The request waits in the router until the backend takes it; it does not multiply."""
    release = asyncio.Event()

    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await release.wait()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        seen = await peer.request()
        assert seen is not None
        await peer.send(reply(str(len(seen.body)).encode()))

    body = json.dumps({**BODY, "pad": "x" * (8 * MIB)}).encode()
    async with (
        scripted(script) as backend,
        router_process(tmp_path, _config(backend.url)) as router,
    ):
        idle = router.rss()
        pairs = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(4)]
        for _, writer in pairs:
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                % len(body)
            )
            writer.write(body)
            await writer.drain()
        await standing_still(lambda: backend.connections // 4)
        # The bytes, the parsed text and what waits in the socket's queue.
        assert router.rss() - idle < 4 * 4 * len(body)
        release.set()
        for reader, writer in pairs:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(7) == str(len(body)).encode()
            writer.close()
