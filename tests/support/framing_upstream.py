"""How a backend may frame its answers, well and badly, and what the router makes of it.

Faults that have to do with time, and those that are tried again, stand in `fault_table`.
"""

from dataclasses import dataclass

from support.framing_row import escaped
from support.scripted_backend import chunk, reply

GOOD = b'{"ok":1}'
EVIL = b'{"evil":1}'
FRAMING_ERROR = 502

_TYPE = "Content-Type: application/json"
_CL = f"Content-Length: {len(GOOD)}"
_TE = "Transfer-Encoding: chunked"
_CHUNKS = chunk(GOOD) + b"0\r\n\r\n"
_SIZE = b"%x" % len(GOOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """The bytes of one answer; what the client gets; whether the connection serves another call.

    `closes`: the backend ends the connection behind the answer.
    """

    name: str
    wire: bytes
    status: int = 200
    body: bytes | None = GOOD
    """None: an error of ours."""
    kept: bool = True
    closes: bool = False
    lacks: tuple[str, ...] = ()
    why: str = ""


def head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *lines, "", ""]).encode("latin-1")


def _length(value: str) -> bytes:
    return head(_TYPE, f"Content-Length:{value}") + GOOD


def _fine(name: str, wire: bytes, **more: object) -> AnswerRow:
    return AnswerRow(name=name, wire=wire, **more)  # type: ignore[arg-type]


def _last(name: str, wire: bytes, **more: object) -> AnswerRow:
    """The client gets the answer; the connection is not used again."""
    return AnswerRow(name=name, wire=wire, kept=False, **more)  # type: ignore[arg-type]


def _bad(name: str, wire: bytes, why: str = "") -> AnswerRow:
    return AnswerRow(name=name, wire=wire, status=FRAMING_ERROR, body=None, kept=False, why=why)


def _chunked(body: bytes) -> bytes:
    return head(_TYPE, _TE) + body


def _size_line(line: bytes) -> bytes:
    return _chunked(line + b"\r\n" + GOOD + b"\r\n0\r\n\r\n")


LENGTHS: tuple[AnswerRow, ...] = (
    _fine("Content-Length", reply(GOOD)),
    _fine("Content-Length with leading zeros", _length(" 0008")),
    _fine("Content-Length without a space", _length("8")),
    _bad("CL, then TE", head(_TYPE, _CL, _TE) + _CHUNKS),
    _bad("TE, then CL", head(_TYPE, _TE, _CL) + _CHUNKS),
    _bad("two equal Content-Lengths", head(_TYPE, _CL, _CL) + GOOD),
    _bad("two unequal Content-Lengths", head(_TYPE, _CL, "Content-Length: 3") + GOOD),
    *(
        _bad(f"Content-Length: {value!r}", _length(f" {value}"))
        for value in ("8, 8", "8,9", "+8", "-8", "8.0", "0x8", "", "8 8", "1_0", "\u00b2")
    ),
    _bad("Content-Length above 64 bits", _length(" 18446744073709551624")),
)

CODINGS: tuple[AnswerRow, ...] = (
    _fine("chunked", _chunked(_CHUNKS)),
    _fine("Transfer-Encoding: CHUNKED", head(_TYPE, "TRANSFER-ENCODING: CHUNKED") + _CHUNKS),
    *(
        _bad(f"Transfer-Encoding: {value!r}", head(_TYPE, f"Transfer-Encoding: {value}") + _CHUNKS)
        for value in ("xchunked", "chunked, identity", "gzip, chunked", "identity", "", "chunked,")
    ),
    _bad("Transfer-Encoding: a tab behind", head(_TYPE, _TE + "\t") + _CHUNKS),
    _bad(
        "Transfer-Encoding: a tab behind, then a bare LF",
        head(_TYPE, _TE + "\t", "X: y").replace(b"\t\r\n", b"\t\n") + _CHUNKS,
    ),
    _bad("Transfer-Encoding twice", head(_TYPE, _TE, _TE) + _CHUNKS),
    _bad("Transfer-Encoding, folded", head(_TYPE, "Transfer-Encoding:", " chunked", _CL) + _CHUNKS),
    _last(
        "chunked in HTTP/1.0",
        head(_TYPE, _TE, "Connection: keep-alive", status="HTTP/1.0 200 OK") + _CHUNKS,
    ),
    _fine("an extension", _size_line(_SIZE + b";a=b"), why="read over, never passed on"),
    _fine(
        "a trailer",
        _chunked(chunk(GOOD) + b"0\r\nX-Sum: 1\r\nContent-Length: 3\r\n\r\n"),
        lacks=("x-sum",),
        why="dropped",
    ),
    *(
        _bad(f"chunk size {line.decode('latin-1')!r}", _size_line(line))
        for line in (
            b"+8",
            b"-8",
            b"0x8",
            b" 8",
            b"8_",
            b"8 8",
            b"",
            b"g",
            b"8\0",
            b"8;\0",
            b"10000000000000008",
            b"8" + b";a=" + b"b" * 5000,
        )
    ),
    _bad("chunk size ended by a bare LF", _chunked(_SIZE + b"\n" + GOOD + b"\r\n0\r\n\r\n")),
    _bad("chunk without its CRLF", _chunked(_SIZE + b"\r\n" + GOOD + b"0\r\n\r\n")),
    _bad("chunk ended by a bare LF", _chunked(_SIZE + b"\r\n" + GOOD + b"\n0\r\n\r\n")),
    _bad("chunk longer than its size", _chunked(b"7\r\n" + GOOD + b"\r\n0\r\n\r\n")),
    _bad("trailer that is no field", _chunked(chunk(GOOD) + b"0\r\nnothing\r\n\r\n")),
    _bad("trailer with a bare LF", _chunked(chunk(GOOD) + b"0\r\nX: 1\nY: 2\r\n\r\n")),
    _bad("trailers of 20 KB", _chunked(chunk(GOOD) + b"0\r\nX: " + b"y" * 20_000 + b"\r\n\r\n")),
)

HEADS: tuple[AnswerRow, ...] = (
    _last("a folded header", head(_TYPE, "X-A: b", " c", _CL) + GOOD, why="unfolded"),
    _last("bare LF for CRLF", reply(GOOD).replace(b"\r\n", b"\n")),
    _last("a bare LF in the head", reply(GOOD).replace(b"json\r\n", b"json\n")),
    _bad("a line of one space", head(_TYPE, _CL, " ") + GOOD),
    _bad("a line of one space, then a bare LF", head(_TYPE, _CL, " ")[:-2] + b"\n" + GOOD),
    _bad("a bare CR in a value", head(_TYPE, "X-A: b\rc", _CL) + GOOD),
    _bad("NUL in a value", head(_TYPE, "X-A: b\0c", _CL) + GOOD),
    _bad("NUL in a name", head(_TYPE, "X\0A: b", _CL) + GOOD),
    _bad("space before a colon", head(_TYPE, "X-A : b", _CL) + GOOD),
    _bad("no colon", head(_TYPE, "X-A", _CL) + GOOD),
    _bad("no name", head(_TYPE, ": b", _CL) + GOOD),
    _bad("HTTP/2", reply(GOOD).replace(b"HTTP/1.1", b"HTTP/2")),
    _bad("HTTP/0.9", GOOD + b"\r\n\r\n"),
    _bad("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    _bad("a status of two digits", reply(GOOD, status="20 OK")),
    _bad("a status of four digits", reply(GOOD, status="2000 OK")),
    _bad("a status below 100", reply(GOOD, status="004 OK")),
    _bad("a status above 599", reply(GOOD, status="600 OK")),
    _bad("a negative status", reply(GOOD, status="-200 OK")),
    _bad("a head of 70 KB", head(_TYPE, *("X: " + "y" * 1000,) * 70, _CL) + GOOD),
    _bad("300 headers", head(_TYPE, *("X: y",) * 300, _CL) + GOOD),
    _last("a blank line before the head", b"\r\n" + reply(GOOD)),
    _bad("many blank lines before the head", b"\r\n" * 20 + reply(GOOD)),
    _fine("no reason phrase", reply(GOOD, status="200")),
    _fine(
        "Connection names headers",
        head(_TYPE, "Connection: X-Hop, Content-Type", "X-Hop: 1", _CL) + GOOD,
        lacks=("x-hop",),
    ),
    _last("Connection: close", head(_TYPE, "Connection: close", _CL) + GOOD),
    _last("HTTP/1.0", head(_TYPE, _CL, status="HTTP/1.0 200 OK") + GOOD),
)

ENDS: tuple[AnswerRow, ...] = (
    _last("an answer behind the answer", reply(GOOD) + reply(EVIL), why="the second goes nowhere"),
    _last("one byte too many", reply(GOOD) + b"x"),
    _last("a blank line too many", reply(GOOD) + b"\r\n"),
    _last("an answer behind the last chunk", _chunked(_CHUNKS) + reply(EVIL)),
    _last("a 204 with a body", reply(EVIL, status="204 No Content"), status=204, body=b""),
    _last(
        "a 204 with chunks",
        head(_TE, status="HTTP/1.1 204 No Content") + _CHUNKS,
        status=204,
        body=b"",
    ),
    _last("a 304 with a body", reply(EVIL, status="304 Not Modified"), status=304, body=b""),
    _last("until the end of the connection", head(_TYPE) + GOOD, closes=True),
    _fine("an empty body", reply(b""), body=b""),
)

INTERIM: tuple[AnswerRow, ...] = (
    _fine("a 100 first", head(status="HTTP/1.1 100 Continue") + reply(GOOD)),
    _fine(
        "a 103 with headers first",
        head("X-A: b", status="HTTP/1.1 103 Early Hints") + reply(GOOD),
        lacks=("x-a",),
    ),
    _bad("1xx without end", head(status="HTTP/1.1 102 Processing") * 4000),
    _bad(
        "an upgrade nobody asked for",
        head(
            "Upgrade: websocket", "Connection: Upgrade", status="HTTP/1.1 101 Switching Protocols"
        ),
    ),
    _bad(
        "a 100 with a length",
        head("Content-Length: 10", status="HTTP/1.1 100 Continue") + EVIL + reply(GOOD),
    ),
)

PARTS: dict[str, tuple[AnswerRow, ...]] = {
    "Content-Length": LENGTHS,
    "Chunks": CODINGS,
    "Heads": HEADS,
    "What follows the end": ENDS,
    "Interim answers": INTERIM,
}

PAGE_HEAD = """
## Answers of backends

The other direction: one answer of a backend, run by `tests/fault/test_framing_upstream.py`.
*Status* is what the client gets; 502 is an error of the router's, for which nothing of the answer
was used. *Connection* `kept`: the next call goes out on it. Answers by length, by chunks, as a
stream, behind a 1xx, with bare LF and with folded lines are also sent in two writes, split at every
byte.
Faults by time and those that are tried again: `upstream-faults.md`.
"""


def page_part() -> str:
    """The page's part on answers."""
    parts = [PAGE_HEAD]
    for title, rows in PARTS.items():
        parts.append(
            f"\n### {title}\n\n| Answer | Status | Connection | Note |\n|---|---|---|---|\n"
        )
        for row in rows:
            end = "kept" if row.kept else "closed"
            parts.append(f"| {escaped(row.name)} | {row.status} | {end} | {escaped(row.why)} |\n")
    return "".join(parts)
