"""A client that sends bytes as they are and reads answers by their framing, to the last byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

WAIT = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """One answer. `headers` in wire order; `body` without chunk framing.

    `ended` says what ended it: its `framing`, the end of the connection (`closed`) where the head
    promised no other end, or its end where it did (`cut`).
    """

    line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    ended: str

    @property
    def status(self) -> int:
        return int(self.line.split(" ")[1])

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Send each piece by a write of its own, with turns of the loop between them."""
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()
                if len(pieces) > 1:
                    await asyncio.sleep(0.001)

    async def answer(self) -> RawAnswer | None:
        """The next answer, interim ones included; None when the server has closed instead."""
        async with asyncio.timeout(WAIT):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            line, *rows = head.decode("latin-1").split("\r\n")[:-2]
            pairs = tuple(
                (name, value.strip()) for name, _, value in (r.partition(":") for r in rows)
            )
            body, ended = await self._body(int(line.split(" ")[1]), pairs)
            return RawAnswer(line=line, headers=pairs, body=body, ended=ended)

    async def _body(self, status: int, headers: Sequence[tuple[str, str]]) -> tuple[bytes, str]:
        given = {name.lower(): value for name, value in headers}
        if status < 200 or status in (204, 304):
            return b"", "framing"
        try:
            if given.get("transfer-encoding") == "chunked":
                return await self._chunks()
            if "content-length" in given:
                return await self.reader.readexactly(int(given["content-length"])), "framing"
            return await self.reader.read(), "closed"
        except asyncio.IncompleteReadError as error:
            return error.partial, "cut"
        except ConnectionError:
            return b"", "cut"

    async def _chunks(self) -> tuple[bytes, str]:
        body = b""
        try:
            while True:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                piece = await self.reader.readexactly(size + 2)
                if not size:
                    return body, "framing"
                body += piece[:-2]
        except asyncio.IncompleteReadError as error:
            return body + error.partial, "cut"
        except ConnectionError:
            return body, "cut"


@contextlib.asynccontextmanager
async def raw_client(port: int, host: str = "127.0.0.1") -> AsyncIterator[RawClient]:
    """Connect, give the client, close."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
