"""Where an answer's body ends: by length, by chunks, or by the end of the connection.

Each class follows the body over any split of the bytes. `feed(data, out)` takes what belongs to the
body from the start of `data`, appends the payload to `out` (None: only follow, for callers that
pass the wire bytes on), and returns how many bytes it took; the rest is not part of this answer.
"""

import re
from typing import Protocol

MAX_CHUNK_LINE = 4096
"""Longest chunk-size line, extensions included."""

MAX_TRAILER_BYTES = 16 * 1024

_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_PLAIN_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class FramingError(ValueError):
    """The chunk framing is broken; nothing after this point can be trusted."""


class BodyFraming(Protocol):
    """Follows one body."""

    @property
    def done(self) -> bool:
        """True once the body's last byte was fed."""

    @property
    def ends_with_connection(self) -> bool:
        """True when the peer ends this body by closing."""

    @property
    def between_chunks(self) -> bool:
        """True when a chunked body stands before a size line of which nothing has come."""

    def feed(self, data: bytes, out: list[bytes] | None) -> int:
        """Take the body's part of `data`. Raises FramingError."""


class LengthFraming:
    """A body of a known number of bytes, 0 included."""

    __slots__ = ("_left",)
    ends_with_connection = False
    between_chunks = False

    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def done(self) -> bool:
        return self._left == 0

    def feed(self, data: bytes, out: list[bytes] | None) -> int:
        used = min(len(data), self._left)
        self._left -= used
        if used and out is not None:
            out.append(data[:used])
        return used


class CloseFraming:
    """A body that lasts until the peer closes."""

    __slots__ = ()
    done = False
    ends_with_connection = True
    between_chunks = False

    def feed(self, data: bytes, out: list[bytes] | None) -> int:
        if data and out is not None:
            out.append(data)
        return len(data)


class ChunkedFraming:
    """A chunked body (RFC 9112 section 7.1): extensions are skipped, trailers dropped.

    Strict: CRLF only, no sign, no prefix, at most 15 hex digits a size.
    """

    __slots__ = ("_left", "_line", "_trailer_bytes", "_trailers", "done")
    ends_with_connection = False

    def __init__(self) -> None:
        self._left = 0  # payload bytes of this chunk to come, plus the two of its CRLF
        self._line = b""  # start of a size or trailer line whose end has not come
        self._trailers = False
        self._trailer_bytes = 0
        self.done = False

    @property
    def between_chunks(self) -> bool:
        return not (self._left or self._line or self._trailers)

    def feed(self, data: bytes, out: list[bytes] | None) -> int:
        pos = 0
        end = len(data)
        while pos < end and not self.done:
            take = self._take_payload if self._left else self._take_line
            pos = take(data, pos, out)
        return pos

    def _take_payload(self, data: bytes, pos: int, out: list[bytes] | None) -> int:
        """Payload and the CRLF after it, as far as they are there."""
        payload = min(self._left - 2, len(data) - pos)
        if payload > 0:
            if out is not None:
                out.append(data[pos : pos + payload])
            self._left -= payload
            pos += payload
        if self._left <= 2 and pos < len(data):
            tail = data[pos : pos + self._left]
            if not b"\r\n"[2 - self._left :].startswith(tail):
                raise FramingError("no CRLF after a chunk")
            self._left -= len(tail)
            pos += len(tail)
        return pos

    def _take_line(self, data: bytes, pos: int, _: list[bytes] | None) -> int:
        """A size line or trailer line; keeps a part whose end is missing."""
        newline = data.find(b"\n", pos)
        limit = MAX_TRAILER_BYTES - self._trailer_bytes if self._trailers else MAX_CHUNK_LINE
        stop = len(data) if newline < 0 else newline + 1
        if len(self._line) + stop - pos > limit:
            raise FramingError("line too long")
        line = self._line + data[pos:stop] if self._line else data[pos:stop]
        if newline < 0:
            self._line = line
            return stop
        self._line = b""
        if not line.endswith(b"\r\n"):
            raise FramingError("bare LF")
        if self._trailers:
            self._trailer_line(line)
        else:
            self._size_line(line)
        return stop

    def _size_line(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line, 0, len(line) - 2)
        if match is None:
            raise FramingError("bad chunk size")
        size = int(match[1], 16)
        if size:
            self._left = size + 2
        else:
            self._trailers = True

    def _trailer_line(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if len(line) == 2:
            self.done = True
        elif _TRAILER_LINE.fullmatch(line, 0, len(line) - 2) is None:
            raise FramingError("bad trailer")


def whole_event_chunks(data: bytes) -> int:
    """Payload bytes of `data` if it is whole plain chunks that end with the end of an SSE event.

    0 when it is anything else: a chunk with an extension, the last chunk, part of a chunk, another
    line ending. `data` must begin between two chunks.
    """
    if not data.endswith(b"\n\n\r\n"):
        return 0
    pos = payload = 0
    end = len(data)
    while pos < end:
        line = _PLAIN_SIZE.match(data, pos)
        if line is None:
            return 0
        size = int(line[1], 16)
        pos = line.end() + size + 2
        # In a whole chunk these two are CRLF; past the end the slice is shorter.
        if not size or data[pos - 2 : pos] != b"\r\n":
            return 0
        payload += size
    return payload
