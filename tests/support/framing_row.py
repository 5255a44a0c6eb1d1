"""One row of the framing table, and how its bytes are written."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from support.edge import CHAT

JSON = b'{"model":"m","messages":[{"role":"user","content":"one"}]}'
OTHER = b'{"model":"m","messages":[{"role":"user","content":"two"}]}'
EVIL = b'{"model":"m","messages":[{"role":"user","content":"evil"}]}'
LEN = len(JSON)
HOST = "Host: router"
TYPE = "Content-Type: application/json"
FILES = "/v1/files"
"""A path of `server.passthrough_paths` in these tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """One request as a backend must have got it; `has` header lines that must, `lacks` names that
    must not be among its headers."""

    body: bytes = JSON
    method: str = "POST"
    target: str = CHAT
    has: tuple[tuple[str, str], ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Bytes from a client on one connection, and what must come of them.

    `wire` is written piece by piece. `answers` are the statuses that come back in order, interim
    ones included; `passed` the requests that reach the backend. `closed`: the router ends the
    connection after the last answer; otherwise it serves an ordinary request on it afterwards.
    `eof`: the client ends its side after the last piece. `unfinished`: the backend may have got the
    beginning of a request, never a whole one. `lingers`: the router reads what is left of the body
    for some seconds before it closes, so that its answer is not lost; the client does not wait.
    """

    name: str
    wire: tuple[bytes, ...]
    answers: tuple[int, ...]
    passed: tuple[Passed, ...] = ()
    closed: bool = False
    eof: bool = False
    unfinished: bool = False
    lingers: bool = False
    why: str = field(default="", compare=False)


def text(*lines: str) -> bytes:
    """Lines → the bytes of a head, each ended by CRLF, and the blank line."""
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def post(
    *headers: str,
    body: bytes = JSON,
    length: bool = True,
    target: str = CHAT,
    version: str = "HTTP/1.1",
    method: str = "POST",
    base: Sequence[str] = (HOST, TYPE),
) -> bytes:
    """A request, ordinary but for what is given. `length`: with its true Content-Length."""
    own = (f"Content-Length: {len(body)}",) if length else ()
    return text(f"{method} {target} {version}", *base, *headers, *own) + body


def chunks(*pieces: bytes, last: bytes = b"0\r\n\r\n") -> bytes:
    """A chunked body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + last


def chunked(*headers: str, body: bytes | None = None, version: str = "HTTP/1.1") -> bytes:
    """A chunked request; `body` is its wire form."""
    wire = chunks(JSON) if body is None else body
    return post("Transfer-Encoding: chunked", *headers, length=False, body=wire, version=version)


def refused(
    name: str,
    *wire: bytes,
    status: int = 400,
    closed: bool = True,
    lingers: bool = False,
    why: str = "",
) -> Row:
    """Answered by the router itself, and the connection closed; nothing reaches a backend."""
    return Row(name=name, wire=wire, answers=(status,), closed=closed, lingers=lingers, why=why)


def passes(
    name: str,
    *wire: bytes,
    closed: bool = False,
    why: str = "",
    has: tuple[tuple[str, str], ...] = (),
    lacks: tuple[str, ...] = (),
    body: bytes = JSON,
    target: str = CHAT,
) -> Row:
    """Answered 200; the backend gets one clean request."""
    passed = Passed(body=body, has=has, lacks=lacks, target=target)
    return Row(name=name, wire=wire, answers=(200,), passed=(passed,), closed=closed, why=why)


def silent(name: str, *wire: bytes, unfinished: bool = False, why: str = "") -> Row:
    """The client ends in the middle: no answer, nothing whole reaches a backend."""
    return Row(
        name=name, wire=wire, answers=(), closed=True, eof=True, unfinished=unfinished, why=why
    )


def escaped(name: str) -> str:
    """Text for a cell of a page's table."""
    return "".join(_SIGNS.get(char, char) for char in name)


_SIGNS = {sign: f"\\{sign}" for sign in "|*_`<>[]\\"}
