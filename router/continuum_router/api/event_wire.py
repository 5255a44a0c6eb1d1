"""A backend's event stream → what the client is written, with the promises of `upstream.relay`.

The first event is held back until it is known; only whole events are relayed; bytes are untouched.
Engines write one whole event a chunk, so almost always the chunks can go on as they came, framing
included. Everything else is taken apart and framed anew.
"""

from collections import deque

from continuum_router.upstream.body_framing import ChunkedFraming
from continuum_router.upstream.first_event import FirstEvent
from continuum_router.upstream.usage import TAIL, Usage, UsageTail
from continuum_router.upstream.whole_events import WholeEvents

LAST_CHUNK = b"0\r\n\r\n"


class EventWire:
    """One stream.

    `first` tells about the first event. `passing` is True while whole chunks may be passed on as
    they come, by `chunks`; then `payload` is for what is not so plain. What the methods give is to
    be written to the client, in wire form; it may be empty. `started` is the caller's mark that the
    client has the first of it.
    """

    __slots__ = ("_tail", "_tail_size", "_whole", "first", "passing", "started")

    def __init__(self) -> None:
        self.first = FirstEvent()
        self.passing = False
        self.started = False
        self._whole = WholeEvents()
        self._tail: deque[tuple[bytes, int, bool]] = deque()
        self._tail_size = 0

    @property
    def between_events(self) -> bool:
        """False when what was relayed so far stops inside an event."""
        return self._whole.between_events

    def chunks(self, data: bytes, size: int) -> bytes:
        """Take whole chunks that end an event, `size` bytes of payload."""
        self._note(data, size, True)
        return data

    def payload(self, data: bytes) -> bytes:
        """Take payload. While the first event is not known, nothing is given."""
        self._note(data, len(data), False)
        first = self.first
        if not first.seen:
            held = not first.open
            first.feed(data)
            if not first.open or first.error is not None:
                return b""
            if held:
                data = first.take()
        whole = self._whole
        out = _chunk(whole.feed(data))
        self.passing = first.seen and whole.clear
        return out

    def end(self) -> bytes:
        """The stream ended in good order: what was still held, and the end of the body."""
        return _chunk(self._whole.feed(self.first.take()) + self._whole.rest()) + LAST_CHUNK

    def broken(self, event: bytes) -> bytes:
        """The stream broke: `event` as its last, and the end of the body."""
        return _chunk(event if self.between_events else b"\n\n" + event) + LAST_CHUNK

    def usage(self) -> Usage | None:
        """Token counts, from the last bytes."""
        tap = UsageTail()
        for data, _, framed in self._tail:
            if framed:
                pieces: list[bytes] = []
                ChunkedFraming().feed(data, pieces)
                data = b"".join(pieces)
            tap.feed(data)
        return tap.read()

    def _note(self, data: bytes, size: int, framed: bool) -> None:
        tail = self._tail
        tail.append((data, size, framed))
        self._tail_size += size
        while self._tail_size - tail[0][1] >= TAIL:
            self._tail_size -= tail.popleft()[1]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
