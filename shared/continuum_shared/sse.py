"""Incremental reader and writer of server-sent events. No I/O.

Both daemons read and write the same stream with this file. The reader accepts any split of the
bytes, the three line ends (LF, CRLF, CR), a byte order mark and comments; it never holds more than
``max_bytes`` of one line or of one record's data (S0 "SSE parsing": 1 MiB), whatever a peer sends.
"""

from dataclasses import dataclass

MAX_SSE_BYTES = 1024 * 1024
"""S0: MAX_SSE_BUFFER_SIZE, for a line and for the collected data of a record."""

_BOM = b"\xef\xbb\xbf"


class SseOverflow(Exception):
    """A line or a record's data passed the bound; the stream cannot be trusted any further."""

    def __init__(self, where: str, limit: int) -> None:
        super().__init__(f"SSE {where} is over {limit} bytes")
        self.where = where


@dataclass(frozen=True, slots=True, kw_only=True)
class SseEvent:
    """One dispatched record. ``id`` is the last id seen on the stream so far."""

    event: str | None
    data: str
    id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SseComment:
    """One comment line, without its colon and the one blank after it."""

    text: str


class SseParser:
    """Feeds on pieces of bytes, gives whole records and comments in their order."""

    __slots__ = (
        "_buffer",
        "_data",
        "_data_size",
        "_event",
        "_limit",
        "_pending_id",
        "_skip_lf",
        "_started",
        "last_event_id",
    )

    def __init__(self, max_bytes: int = MAX_SSE_BYTES) -> None:
        self._limit = max_bytes
        self._buffer = bytearray()
        self._data: list[str] = []
        self._data_size = 0
        self._event: str | None = None
        self._started = False
        self._skip_lf = False
        self._pending_id: str | None = None
        self.last_event_id: str | None = None

    def feed(self, data: bytes) -> list[SseEvent | SseComment]:
        """Take the next bytes; return what they completed.

        Raises :class:`SseOverflow` when a line or a record grows over the bound. What was completed
        before the overflow in the same call is lost with it: the caller drops the stream and
        resumes from ``last_event_id``, which only moves with dispatched records.
        """
        out: list[SseEvent | SseComment] = []
        buffer = self._buffer
        if self._skip_lf and data:
            # A CR ended the last piece: an LF that opens this one belongs to the same line end.
            self._skip_lf = False
            if data[:1] == b"\n":
                data = data[1:]
        buffer += data
        if not self._started and not self._strip_bom():
            return out
        start = 0
        while True:
            line_end, following = self._line_end(start)
            if line_end < 0:
                break
            if line_end - start > self._limit:
                raise SseOverflow("line", self._limit)
            self._take_line(bytes(buffer[start:line_end]), out)
            start = following
        del buffer[:start]
        if len(buffer) > self._limit:
            raise SseOverflow("line", self._limit)
        return out

    def _strip_bom(self) -> bool:
        """Remove a leading byte order mark; False while it cannot yet be told."""
        buffer = self._buffer
        if len(buffer) < len(_BOM) and _BOM.startswith(bytes(buffer)):
            return False
        if buffer.startswith(_BOM):
            del buffer[: len(_BOM)]
        self._started = True
        return True

    def _line_end(self, start: int) -> tuple[int, int]:
        """Offsets of the next line's end and of the line after it; ``(-1, -1)`` if incomplete."""
        buffer = self._buffer
        newline = buffer.find(b"\n", start)
        cr = buffer.find(b"\r", start, newline if newline >= 0 else len(buffer))
        if cr < 0:
            return (newline, newline + 1) if newline >= 0 else (-1, -1)
        if cr + 1 == len(buffer):
            self._skip_lf = True
            return cr, cr + 1
        return cr, cr + 2 if buffer[cr + 1] == 0x0A else cr + 1

    def _take_line(self, line: bytes, out: list[SseEvent | SseComment]) -> None:
        if not line:
            self._dispatch(out)
            return
        name, colon, rest = line.partition(b":")
        value = (rest[1:] if rest[:1] == b" " else rest).decode("utf-8", "replace")
        if colon and not name:
            out.append(SseComment(text=value))
        elif name == b"data":
            self._data_size += len(rest) + 1
            if self._data_size > self._limit:
                raise SseOverflow("record", self._limit)
            self._data.append(value)
        elif name == b"event":
            self._event = value
        elif name == b"id" and "\x00" not in value:
            self._pending_id = value

    def _dispatch(self, out: list[SseEvent | SseComment]) -> None:
        if self._pending_id is not None:
            self.last_event_id = self._pending_id
            self._pending_id = None
        if self._data:
            data = "\n".join(self._data)
            out.append(SseEvent(event=self._event or None, data=data, id=self.last_event_id))
        self._data = []
        self._data_size = 0
        self._event = None


def encode_event(data: bytes, *, event: str | None = None, id: str | None = None) -> bytes:
    """One record as bytes. ``data`` must be UTF-8; line breaks in it become several data lines."""
    head = b""
    if event is not None:
        head += b"event: " + event.encode() + b"\n"
    if id is not None:
        head += b"id: " + id.encode() + b"\n"
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return head + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


def encode_comment(text: str) -> bytes:
    """One comment (a heartbeat, an announcement) with the blank line that flushes readers."""
    return b": " + text.replace("\r", " ").replace("\n", " ").encode() + b"\n\n"
