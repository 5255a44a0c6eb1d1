"""A backend that does exactly what a script says, byte by byte, on a real socket.

A script is one coroutine for each connection; `Peer` gives it the means. Ready-made scripts for
what OpenAI backends do are below. Nothing here parses more HTTP than the tests need.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from continuum_router.backends.kinds import BackendType
from continuum_router.backends.pool import Backend
from continuum_shared.config.kinds import BackendUrl


@dataclass(slots=True)
class Seen:
    """One request as it came."""

    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode()

    def header(self, name: str) -> str | None:
        for row in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = row.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None


class Peer:
    """The server's end of one connection, as a script sees it."""

    def __init__(
        self, backend: "ScriptedBackend", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.backend = backend
        self.reader = reader
        self.writer = writer

    async def request(self) -> Seen | None:
        """Read one request with Content-Length; None when the client closed instead."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            seen = Seen(head, b"")
            length = int(seen.header("content-length") or 0)
            seen.body = await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.backend.requests.append(seen)
        return seen

    async def send(self, *pieces: bytes, gap: float | None = None) -> None:
        """Send pieces, each by its own write; `gap` seconds between them (0: one loop turn)."""
        for piece in pieces:
            self.writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await self.writer.drain()
            if gap is not None:
                await asyncio.sleep(gap)

    async def until_client_leaves(self) -> float:
        """Wait for the client's end of the connection; the loop time at which it came."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        when = asyncio.get_running_loop().time()
        self.backend.left.append(when)
        return when

    def close(self) -> None:
        """Send FIN."""
        self.writer.close()

    def reset(self) -> None:
        """Send RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass(slots=True)
class ScriptedBackend:
    """A running backend. `requests` and `left` (times at which clients left) grow as it works."""

    url: str = ""
    requests: list[Seen] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    def backend(self, name: str = "b1", **changes: object) -> Backend:
        """The configuration entry that points here."""
        values: dict[str, object] = {
            "name": name,
            "type": BackendType.GENERIC,
            "url": BackendUrl.parse(self.url),
        }
        return Backend(**(values | changes))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def scripted(
    script: Script,
    *,
    host: str = "127.0.0.1",
    unix_path: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[ScriptedBackend]:
    """Serve `script` on a free port (or a unix socket) until the block ends.

    An exception in a script, a failed assertion included, is raised at the end of the block.
    """
    backend = ScriptedBackend()
    tasks: list[asyncio.Task[None]] = []

    async def serve(peer: Peer) -> None:
        try:
            await script(peer)
        except ConnectionError:
            pass
        finally:
            backend.open -= 1
            peer.writer.close()

    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        backend.connections += 1
        backend.open += 1
        tasks.append(asyncio.create_task(serve(Peer(backend, reader, writer))))

    if unix_path is not None:
        server = await asyncio.start_unix_server(accept, unix_path)
        backend.url = f"unix://{unix_path}"
    else:
        server = await asyncio.start_server(accept, host, 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        backend.url = f"http{'s' if tls else ''}://{shown}:{port}"
    try:
        yield backend
    finally:
        for _ in range(5):  # asyncio takes some turns to accept: nothing may be left half-way
            await asyncio.sleep(0)
        server.close()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            # asyncio's transport fails this way when it had finished closing by itself.
            with contextlib.suppress(AttributeError):
                writer.transport.abort()
        await asyncio.sleep(0)
        for result in results:
            if isinstance(result, Exception):
                raise result


# -- wire pieces ----------------------------------------------------------------------------


def reply(
    body: bytes = b"{}",
    *,
    status: str = "200 OK",
    headers: Sequence[str] = ("Content-Type: application/json",),
) -> bytes:
    """A whole answer with Content-Length."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def chunked_head(
    *, status: str = "200 OK", headers: Sequence[str] = ("Content-Type: text/event-stream",)
) -> bytes:
    """The head of a chunked answer."""
    lines = [f"HTTP/1.1 {status}", *headers, "Transfer-Encoding: chunked", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


LAST_CHUNK = b"0\r\n\r\n"


def sse(text: str) -> bytes:
    """One server-sent event."""
    return f"data: {text}\n\n".encode()


# -- ready-made scripts ---------------------------------------------------------------------


def answers(
    *pieces: bytes, gap: float | None = None, delay: float = 0.0, times: int | None = None
) -> Script:
    """Answer each request of a connection with `pieces`; close after `times` answers.

    `delay` seconds pass before the first piece, `gap` between two.
    """

    async def script(peer: Peer) -> None:
        served = 0
        while times is None or served < times:
            if await peer.request() is None:
                return
            if delay:
                await asyncio.sleep(delay)
            await peer.send(*pieces, gap=gap)
            served += 1

    return script


def streams(
    *events: str, gap: float | None = None, done: bool = True, headers: Sequence[str] = ()
) -> Script:
    """Answer each request with a chunked event stream, one chunk an event, then `[DONE]`."""
    wire = [chunk(sse(event)) for event in events]
    if done:
        wire.append(chunk(sse("[DONE]")))
    head = chunked_head(headers=("Content-Type: text/event-stream", *headers))
    return answers(head, *wire, LAST_CHUNK, gap=gap)


def breaks_after(*pieces: bytes, reset: bool = False, gap: float | None = None) -> Script:
    """Take a request, send `pieces`, then close (or reset) in the middle."""

    async def script(peer: Peer) -> None:
        if await peer.request() is None:
            return
        await peer.send(*pieces, gap=gap)
        if reset:
            peer.reset()
        else:
            peer.close()

    return script


def hangs(*pieces: bytes) -> Script:
    """Take a request, send `pieces`, then nothing; records when the client leaves."""

    async def script(peer: Peer) -> None:
        if await peer.request() is None:
            return
        await peer.send(*pieces)
        await peer.until_client_leaves()

    return script


def closes_idle(after: float, *pieces: bytes, reset: bool = False) -> Script:
    """Answer with `pieces`; close (or reset) a connection that is idle for `after` seconds.

    A new one has all the time it needs: on a machine that stands still for `after` seconds, its
    first request would otherwise be thrown away with it, and no client could help that.
    """

    async def script(peer: Peer) -> None:
        limit: float | None = None
        while True:
            try:
                async with asyncio.timeout(limit):
                    if await peer.request() is None:
                        return
            except TimeoutError:
                if reset:
                    peer.reset()
                return
            await peer.send(*pieces)
            limit = after

    return script


def in_turn(*scripts: Script) -> Script:
    """The first connection runs the first script, and so on; the last one repeats."""
    count = 0

    async def script(peer: Peer) -> None:
        nonlocal count
        chosen = scripts[min(count, len(scripts) - 1)]
        count += 1
        await chosen(peer)

    return script
