"""A backend that records each byte of its connections, and a reader that takes only clean requests.

`Recorder.requests` is the proof of what a router let through: a request is accepted by it only when
every reader of HTTP/1.1 must understand it in one way. Whatever is not, is kept in `unclean`.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from support.scripted_backend import reply

OK_BODY = b'{"id":"c","object":"chat.completion","choices":[]}'
ANSWER = reply(OK_BODY)

_LINE = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.1")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): ([!-~\x80-\xff](?:[\t -~\x80-\xff]*))?")
_SIZE = re.compile(rb"[0-9a-f]{1,8}")
_HOP_BY_HOP = frozenset(
    b"connection keep-alive te trailer upgrade expect proxy-connection proxy-authorization".split()
)


class Unclean(ValueError):
    """The bytes are no request that all readers understand alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """One request. `headers` are (lower-case name, value)."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


def read_clean(raw: bytes) -> tuple[CleanRequest, int] | None:
    """The request at the start of `raw` and its size; None while it is not whole.

    Raises Unclean, also when only the beginning is there and cannot become a clean request.
    """
    end = raw.find(b"\r\n\r\n")
    head = raw[:end] if end >= 0 else raw
    if end < 0 and len(raw) > 65536:
        raise Unclean("a head without end")
    if end < 0:
        return None
    first, *rows = head.split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise Unclean(f"request line {first[:80]!r}")
    headers: list[tuple[str, str]] = []
    for row in rows:
        match = _FIELD.fullmatch(row)
        if match is None:
            raise Unclean(f"header line {row[:80]!r}")
        if match[1].lower() in _HOP_BY_HOP:
            raise Unclean(f"hop-by-hop header {match[1]!r}")
        headers.append((match[1].decode().lower(), (match[2] or b"").decode("latin-1")))
    method, target = line[1].decode(), line[2].decode()
    lengths = [value for name, value in headers if name == "content-length"]
    codings = [value for name, value in headers if name == "transfer-encoding"]
    if sum(name == "host" for name, _ in headers) != 1:
        raise Unclean("not exactly one Host")
    if len(lengths) + len(codings) != (0 if method in {"GET", "DELETE"} and not lengths else 1):
        raise Unclean(f"{len(lengths)} lengths and {len(codings)} transfer codings")
    body, size = _body(raw[end + 4 :], lengths, codings)
    if size is None:
        return None
    request = CleanRequest(method=method, target=target, headers=tuple(headers), body=body)
    return request, end + 4 + size


def _body(rest: bytes, lengths: list[str], codings: list[str]) -> tuple[bytes, int | None]:
    if codings:
        if codings != ["chunked"]:
            raise Unclean(f"transfer coding {codings}")
        return _chunks(rest)
    if lengths and not re.fullmatch("0|[1-9][0-9]{0,11}", lengths[0]):
        raise Unclean(f"length {lengths[0]!r}")
    length = int(lengths[0]) if lengths else 0
    return rest[:length], length if len(rest) >= length else None


def _chunks(rest: bytes) -> tuple[bytes, int | None]:
    """A chunked body without extensions and trailers."""
    body = bytearray()
    at = 0
    while True:
        stop = rest.find(b"\r\n", at)
        if stop < 0:
            return b"", None
        if _SIZE.fullmatch(rest[at:stop]) is None:
            raise Unclean(f"chunk size {rest[at:stop][:20]!r}")
        size = int(rest[at:stop], 16)
        after = stop + 2 + size
        if len(rest) < after + 2:
            return b"", None
        if rest[after : after + 2] != b"\r\n":
            raise Unclean("no CRLF after a chunk")
        body += rest[stop + 2 : after]
        at = after + 2
        if size == 0:
            return bytes(body), at


@dataclass(slots=True)
class Recorder:
    """What came. `unfinished` are the bytes of requests that never became whole."""

    url: str = ""
    answers: Callable[[CleanRequest], bytes] = lambda _: ANSWER
    connections: int = 0
    received: int = 0
    requests: list[CleanRequest] = field(default_factory=list)
    unclean: list[str] = field(default_factory=list)
    unfinished: dict[int, bytes] = field(default_factory=dict)

    def forget(self) -> None:
        self.requests.clear()
        self.unclean.clear()
        self.unfinished.clear()


class _Recording(asyncio.Protocol):
    """One connection."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._raw = b""
        recorder.connections += 1
        self._number = recorder.connections
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        recorder = self._recorder
        self._raw += data
        recorder.received += len(data)
        try:
            while (read := read_clean(self._raw)) is not None:
                request, used = read
                self._raw = self._raw[used:]
                recorder.requests.append(request)
                self._transport.write(recorder.answers(request))
        except Unclean as error:
            recorder.unclean.append(f"{error} in {self._raw[:200]!r}")
            self._transport.abort()
        recorder.unfinished[self._number] = self._raw
        if not self._raw:
            del recorder.unfinished[self._number]


@contextlib.asynccontextmanager
async def recording() -> AsyncIterator[Recorder]:
    """Serve on a free port until the block ends."""
    recorder = Recorder()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Recording(recorder), "127.0.0.1", 0)
    recorder.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield recorder
    finally:
        server.close()
        await asyncio.sleep(0)
