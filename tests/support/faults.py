"""Broken networks: ports where nobody listens, hosts that never answer, a relay that cuts."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass


@contextlib.contextmanager
def dead_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A port that refuses: bound, so that nobody else gets it, but not listening."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        yield sock.getsockname()[1]


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose accept queue is full: connecting hangs (Linux)."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(server.getsockname())
        yield server.getsockname()[1]


@dataclass(slots=True)
class Relay:
    """What the relay does, changeable while it runs.

    `refusing`: new connections are reset at once. `hanging`: bytes are taken and kept.
    `cut_after`: both sides are reset once that many bytes came back from the server in total.
    """

    port: int = 0
    refusing: bool = False
    hanging: bool = False
    cut_after: int | None = None
    returned: int = 0
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def relayed(host: str, port: int) -> AsyncIterator[Relay]:
    """A TCP relay in front of `host:port`."""
    relay = Relay()
    tasks: list[asyncio.Task[None]] = []
    writers: set[asyncio.StreamWriter] = set()

    async def pump(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        back: bool,
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if relay.hanging:
                    continue
                if back:
                    left = None if relay.cut_after is None else relay.cut_after - relay.returned
                    data = data if left is None else data[: max(0, left)]
                    relay.returned += len(data)
                writer.write(data)
                await writer.drain()
                if back and relay.cut_after is not None and relay.returned >= relay.cut_after:
                    break
        for end in both:
            end.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, port)
        writers.add(there_writer)
        both = (writer, there_writer)
        await asyncio.gather(
            pump(reader, there_writer, both, back=False),
            pump(there_reader, writer, both, back=True),
        )

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay.connections += 1
        writers.add(writer)
        if relay.refusing:
            writer.transport.abort()
        else:
            tasks.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        for writer in writers:
            # asyncio's transport fails this way when it had finished closing by itself.
            with contextlib.suppress(AttributeError):
                writer.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
