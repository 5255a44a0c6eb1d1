"""The heads of answers that are written without aiohttp, as aiohttp would write them."""

from collections.abc import Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus

DEFAULT_TYPE = b"Content-Type: application/octet-stream\r\n"


def has_no_body(status: int) -> bool:
    """True for a status whose answer never has a body (RFC 9110 section 6.4.1)."""
    return status in (204, 304) or status < 200


def status_line(status: int) -> bytes:
    """The status line with the registered reason."""
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    return f"HTTP/1.1 {status} {reason}\r\n".encode("ascii")


def header_lines(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Header lines in UTF-8. Names and values are ours or were read by the strict head reader."""
    return "".join(f"{name}: {value}\r\n" for name, value in pairs).encode("utf-8")


class HttpDate:
    """The Date header line, worked out once a second. `wall` is Unix seconds."""

    __slots__ = ("_line", "_second", "_wall")

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        """`Date: ...` with its line break."""
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._line = f"Date: {formatdate(second, usegmt=True)}\r\n".encode("ascii")
        return self._line


def answer_head(
    status: int,
    pairs: Iterable[tuple[str, str]],
    *,
    length: int | None,
    date: bytes,
    close: bool,
) -> bytes:
    """A whole head. `length` None: the body will be chunked. `close`: the connection ends with it.

    A status without a body gets no framing; a body without a type is called octet-stream.
    """
    given = list(pairs)
    parts = [status_line(status), header_lines(given)]
    if has_no_body(status):
        pass
    elif length is None:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    else:
        parts.append(b"Content-Length: %d\r\n" % length)
    typed = any(name.lower() == "content-type" for name, _ in given)
    if length != 0 and not has_no_body(status) and not typed:
        parts.append(DEFAULT_TYPE)
    parts.append(date)
    if close:
        parts.append(b"Connection: close\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)
