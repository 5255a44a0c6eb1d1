"""What a backend can do wrong at each stage, and what the router makes of it: one table.

`tests/fault/test_fault_table.py` runs it against real sockets, and holds `docs/upstream-faults.md`
to it. Each row is tried on one backend that does so always, and on one that does so once.
"""

import sys
from dataclasses import dataclass

from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    Script,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    reply,
    sse,
)

GOOD_JSON = b'{"ok":1}'
GOOD_STREAM = sse('{"ok":1}') + sse("[DONE]")
EVENT = sse('{"a":1}')

RELAYED = "200, then an error event"
"""The status of a stream that broke after bytes of it had reached the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault.

    `status` is what the client gets when the backend always does so, after `tries` counted tries.
    `status_once` and `calls_once`: when the backend does so once and is well afterwards, and how
    many calls reached it in all. `stream`: of a streamed request.
    """

    name: str
    script: Script
    status: int | str
    tries: int
    status_once: int | str
    calls_once: int
    stream: bool = False
    once: Script | None = None
    """The script of the one time, where `script` would go on on the same connection."""


def takes_no_request(*, reset: bool) -> Script:
    """Accepts, and ends the connection without reading."""

    async def script(peer: Peer) -> None:
        if reset:
            peer.reset()
        else:
            peer.close()

    return script


def reads_half(peer_bytes: int = 20) -> Script:
    """Resets in the middle of the request."""

    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(peer_bytes)
        peer.reset()

    return script


def _early(name: str, script: Script, *, stream: bool = False) -> Row:
    """Nothing of an answer came: every try is made."""
    return Row(
        name=name,
        script=script,
        status=502,
        tries=3,
        status_once=200,
        calls_once=2,
        stream=stream,
    )


def _late(name: str, script: Script, *, stream: bool = False, status: int | str = 502) -> Row:
    """Something of an answer came: the backend has worked, no second try."""
    return Row(
        name=name,
        script=script,
        status=status,
        tries=1,
        status_once=status,
        calls_once=1,
        stream=stream,
    )


def _status(status: int, tries: int, *, stream: bool = False) -> Row:
    return Row(
        name=f"status {status}",
        script=answers(reply(b"{}", status=f"{status} X")),
        status=status,
        tries=tries,
        status_once=200 if tries > 1 else status,
        calls_once=2 if tries > 1 else 1,
        stream=stream,
        once=answers(reply(b"{}", status=f"{status} X"), times=1),
    )


def _fine(name: str, wire: bytes, *, status: int = 200) -> Row:
    return _late(name, breaks_after(wire), status=status)


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Le"
_STREAM_HEAD = chunked_head()
_JSON_CHUNKED = chunked_head(headers=("Content-Type: application/json",))
_ERROR_EVENT = (_STREAM_HEAD, chunk(sse('{"error":{"code":503}}')), LAST_CHUNK)

ROWS: tuple[Row, ...] = (
    _early("reset on accepting", takes_no_request(reset=True)),
    _early("closed on accepting", takes_no_request(reset=False)),
    _early("reset inside the request", reads_half()),
    _early("closed before the head", breaks_after()),
    _early("reset before the head", breaks_after(reset=True)),
    _early("reset before the head", breaks_after(reset=True), stream=True),
    _late("closed inside the head", breaks_after(_HEAD)),
    _late("reset inside the head", breaks_after(_HEAD, reset=True, gap=0.02)),
    _late("closed inside the head", breaks_after(_HEAD), stream=True),
    _late("garbage head", breaks_after(b"\x16\x03\x01 no HTTP\r\n\r\n")),
    _late("head with a bare status", breaks_after(b"HTTP/1.1 2x0 OK\r\n\r\n")),
    _late(
        "two lengths",
        breaks_after(reply().replace(b"{}", b"", 1)[:-4] + b"\r\nContent-Length: 3\r\n\r\n{} "),
    ),
    _late("head above 64 KiB", breaks_after(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000)),
    _late("closed after the head", breaks_after(reply(b"12345")[:-5])),
    _late("closed after the head", breaks_after(_STREAM_HEAD), stream=True),
    _late("short Content-Length", breaks_after(reply(b"x" * 100)[:-1])),
    _late("reset inside the body", breaks_after(reply(b"x" * 100)[:-1], reset=True, gap=0.02)),
    _late("closed inside a chunk", breaks_after(_JSON_CHUNKED + b"10\r\n{")),
    _late("closed between two chunks", breaks_after(_JSON_CHUNKED + chunk(b"{}"))),
    _late("bad chunk size", breaks_after(_JSON_CHUNKED + chunk(b"{") + b"zz\r\n}\r\n0\r\n\r\n")),
    _late(
        "closed inside a chunk",
        breaks_after(_STREAM_HEAD + chunk(EVENT) + b"10\r\ndata", gap=0.02),
        stream=True,
        status=RELAYED,
    ),
    _late(
        "closed after an event",
        breaks_after(_STREAM_HEAD + chunk(EVENT), gap=0.02),
        stream=True,
        status=RELAYED,
    ),
    _late(
        "reset after an event",
        breaks_after(_STREAM_HEAD + chunk(EVENT), gap=0.05, reset=True),
        stream=True,
        status=RELAYED,
    ),
    _late(
        "closed before the first event",
        breaks_after(_STREAM_HEAD + chunk(b": ping\n\n")),
        stream=True,
    ),
    _late("only a 100", breaks_after(b"HTTP/1.1 100 Continue\r\n\r\n")),
    _late("101", breaks_after(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")),
    _late("endless 1xx", breaks_after(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 4000)),
    _fine(
        "100 and 103, then the answer",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + reply(GOOD_JSON),
    ),
    _fine("204", b"HTTP/1.1 204 No Content\r\n\r\n", status=204),
    _fine("204 with a body", reply(b"{}", status="204 No Content"), status=204),
    _fine("304", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 20\r\n\r\n", status=304),
    _fine("more bytes than Content-Length", reply(GOOD_JSON) + b"HTTP/1.1 200 OK\r\n"),
    _fine(
        "ends with the connection",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + GOOD_JSON,
    ),
    *(_status(status, 3) for status in (429, 502, 503, 504)),
    *(_status(status, 1) for status in (400, 401, 404, 408, 422, 500, 501)),
    *(_status(status, 3, stream=True) for status in (429, 503)),
    *(_status(status, 1, stream=True) for status in (400, 401, 500)),
    Row(
        name="an error (503) as first event",
        script=answers(*_ERROR_EVENT),
        status=503,
        tries=3,
        status_once=200,
        calls_once=2,
        stream=True,
        once=answers(*_ERROR_EVENT, times=1),
    ),
)

PAGE_HEAD = """\
# What becomes of a backend's faults

Each row is run by `tests/fault/test_fault_table.py` on real sockets with the default policy
(three tries). *Always*: the only backend does so each time; the status that the client gets, and
the counted tries. *Once*: the backend does so on its first connection and is well afterwards; the
status, and the calls that reached it.

A refused connection is tried like a reset before the head (502 after three tries), one that hangs
until `timeouts.connection` likewise (504). A kept connection that had died unused is replaced at
once and costs no try. A fault after a byte of the answer came is never repeated: the backend has
worked, and perhaps billed. Where the client already has bytes of a stream, the stream ends with an
error event and without `[DONE]`.

| Fault | Request | Always: status | Tries | Once: status | Calls |
|---|---|---|---|---|---|
"""


def page() -> str:
    """docs/upstream-faults.md."""
    lines = [
        f"| {row.name} | {'stream' if row.stream else 'plain'} | {row.status} | {row.tries} | "
        f"{row.status_once} | {row.calls_once} |\n"
        for row in ROWS
    ]
    return PAGE_HEAD + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
