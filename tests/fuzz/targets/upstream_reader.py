"""The reader of backends' answers: any split gives the same, aiohttp agrees, nothing grows."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpResponseParser

from continuum_router.backends.exchange import UpstreamRequest
from continuum_router.errors import AttemptFailure
from continuum_router.upstream.body_framing import MAX_TRAILER_BYTES
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.response_head import (
    MAX_HEAD_BYTES,
    MEMO_ENTRIES,
    HeadError,
    HeadFacts,
    HeadReader,
)
from fuzz.target import Run, Target, splits
from support.framing_upstream import PARTS
from support.scripted_backend import chunk, chunked_head, reply, sse

REQUESTS = {
    method: UpstreamRequest(method=method, head=f"{method} / HTTP/1.1\r\n\r\n".encode())
    for method in ("POST", "HEAD")
}


class _Transport(asyncio.Transport):
    """Takes what is written and remembers whether it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False

    def write(self, data: object) -> None:
        assert not self.ended

    def abort(self) -> None:
        self.ended = True

    close = abort

    def is_closing(self) -> bool:
        return self.ended

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def pause_reading(self) -> None:
        raise AssertionError("nobody is behind")

    resume_reading = pause_reading


@dataclass(slots=True)
class _Heard:
    """Is the sink and the owner of one call; what it heard."""

    wire: bool = False
    head: tuple[object, ...] | None = None
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    failed: str | None = None
    released: int = field(default=0, compare=False)
    """Once at most; whether at all is a matter of when a byte too many comes."""
    lost: int = 0

    def on_sent(self) -> None:
        assert self.head is None

    def on_whole(self, facts: HeadFacts, body: bytes) -> None:
        self.on_head(facts, len(body))
        if body:
            self.on_body(body)
        self.on_end()

    def on_head(self, facts: HeadFacts, length: int | None) -> None:
        assert self.head is None
        self.head = (facts.status, facts.reason, facts.headers, facts.chunked, length)

    def on_body(self, data: bytes) -> None:
        assert data
        self._going()
        self.body += data

    def on_chunks(self, data: bytes, size: int) -> None:
        self._going()
        before = len(self.body)
        while data:
            line, _, data = data.partition(b"\r\n")
            self.body += data[: int(line, 16)]
            data = data[int(line, 16) + 2 :]
        assert len(self.body) == before + size

    def on_end(self) -> None:
        self._going()
        self.ended = True

    def on_failure(self, failure: AttemptFailure) -> None:
        assert not self.ended
        self.failed = f"{failure.stage} {failure.began}"

    def _going(self) -> None:
        assert self.head is not None
        assert not self.ended
        assert self.failed is None


class _Owner:
    def __init__(self, heard: _Heard) -> None:
        self._heard = heard

    def released(self, connection: Connection, keep_for: float | None) -> None:
        self._heard.released += 1

    def lost(self, connection: Connection) -> None:
        self._heard.lost += 1


def _heard(pieces: list[bytes], heads: HeadReader, method: str, *, wire: bool) -> _Heard:
    heard = _Heard(wire=wire)
    transport = _Transport()
    connection = Connection(_Owner(heard), heads)
    connection.connection_made(transport)
    connection.start(REQUESTS[method], heard)
    for piece in pieces:
        if transport.ended:
            break
        connection.data_received(piece)
        assert len(connection._buffer) <= MAX_HEAD_BYTES
        framing = connection._framing
        assert len(getattr(framing, "_line", b"")) <= MAX_TRAILER_BYTES
    if not transport.ended:
        connection.eof_received()
    connection.connection_lost(None)
    assert heard.ended is not (heard.failed is not None)
    assert heard.lost == 1
    assert heard.released <= heard.ended
    heard.wire = False
    return heard


async def _aiohttp(data: bytes, method: str) -> tuple[int, bytes] | None:
    """What aiohttp makes of it: status and body, None when it refuses, also what stands behind."""
    loop = asyncio.get_running_loop()
    parser = HttpResponseParser(
        BaseProtocol(loop),
        loop,
        2**16,
        max_line_size=2**16,
        max_field_size=2**16,
        max_headers=1000,
        response_with_body=method != "HEAD",
        read_until_eof=True,
        auto_decompress=False,
    )
    try:
        messages, _, _ = parser.feed_data(data)
        parser.feed_eof()
    except HttpProcessingError:
        messages = []
    for message, payload in messages:
        if not 100 <= message.code < 200:
            if not payload.is_eof() or payload.exception() is not None:
                return None
            return message.code, await payload.read()
    return None


@contextlib.contextmanager
def opened() -> Iterator[Run]:
    heads = HeadReader()

    async def once(data: bytes) -> None:
        method = "HEAD" if data[:1] == b"H" and not data.startswith(b"HTTP") else "POST"
        wire = data[1:] if method == "HEAD" else data
        pieces, *others = splits(wire)
        whole = _heard(pieces, heads, method, wire=False)
        for other in others:
            assert _heard(other, heads, method, wire=False) == whole
        for taken in (pieces, *others):  # whole chunks in wire form, where the reader gives them
            assert _heard(taken, heads, method, wire=True) == whole
        assert len(heads._memo) <= MEMO_ENTRIES
        if whole.ended and whole.head is not None and method == "POST":
            mine = (whole.head[0], bytes(whole.body))
            assert await _aiohttp(wire, method) in (mine, None)

    with asyncio.Runner() as runner:
        yield lambda data: runner.run(once(data))


@contextlib.contextmanager
def opened_heads() -> Iterator[Run]:
    """The memo never changes what a head means: a fresh reader agrees with a used one."""
    used = HeadReader()

    def read(reader: HeadReader, data: bytes) -> object:
        try:
            found = reader.read(data)
        except HeadError as error:
            return error.cause
        if found is None:
            return None
        facts, length, size = found
        shown = (facts.status, facts.reason, facts.headers, facts.chunked, facts.keep)
        return shown, facts.keep_for, length, size

    async def once(data: bytes) -> None:
        expected = read(HeadReader(), data)
        assert read(used, data) == expected
        assert read(used, data) == expected
        if isinstance(expected, tuple):
            size = expected[-1]
            assert read(used, data[:size]) == expected
            for end in range(max(0, size - 4), size):
                assert read(used, data[:end]) is None

    with asyncio.Runner() as runner:
        yield lambda data: runner.run(once(data))


_ROWS = [row.wire for rows in PARTS.values() for row in rows]
_STREAM = chunked_head() + chunk(sse('{"a":1}')) + chunk(sse("[DONE]")) + b"0\r\n\r\n"
_SEEDS = (
    *sorted({wire for wire in _ROWS if len(wire) < 800}),
    _STREAM,
    b"H" + reply(),
    b"HTTP/1.1 100 Continue\r\n\r\n" + _STREAM,
)
_TOKENS = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"Content-Length: 8\r\n",
    b"content-length:",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Keep-Alive: timeout=5\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.0 ",
    b"204",
    b"304",
    b"101",
    b"0\r\n\r\n",
    b"8\r\n",
    b";a=b",
    b" ",
    b"\t",
)
_WATCHED = (
    "continuum_router.upstream.connection",
    "continuum_router.upstream.response_head",
    "continuum_router.upstream.body_framing",
)

_OPENED: Callable[[], contextlib.AbstractContextManager[Run]] = opened

TARGET = Target(
    name="upstream_reader",
    opened=_OPENED,
    seeds=_SEEDS,
    tokens=_TOKENS,
    watched=_WATCHED,
    smoke=1200,
    max_size=2048,
)

HEADS = Target(
    name="upstream_heads",
    opened=opened_heads,
    seeds=_SEEDS,
    tokens=_TOKENS,
    watched=_WATCHED,
    smoke=2500,
    max_size=1024,
)
