"""Relays only whole SSE events, so that a broken upstream never leaves a client half an event.

When the upstream dies, the last thing the client reads must be our error event. After half an event
that would be glued to it and unreadable. So the unfinished tail of a piece waits for its end;
engines write whole events, for them nothing is held or copied.
"""

MAX_HELD = 64 * 1024
"""Bytes of one unfinished event that are held; a longer one is relayed as it comes."""

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class WholeEvents:
    """Takes pieces, gives back what ends with an event. The bytes themselves are never changed."""

    __slots__ = ("_held", "_searched", "between_events")

    def __init__(self) -> None:
        self._held = b""
        self._searched = 0
        self.between_events = True
        """False when what was relayed so far stops inside an event."""

    @property
    def clear(self) -> bool:
        """True when nothing is held and what was relayed ends with an event."""
        return self.between_events and not self._held

    def feed(self, data: bytes) -> bytes:
        """Return what may be relayed now; may be empty."""
        if self._held:
            data = self._held + data
        if data.endswith(_ENDS):
            self._held = b""
            self._searched = 0
            self.between_events = True
            return data
        cut = self._last_end(data)
        if cut > 0:
            self.between_events = True
        if self.between_events:
            cut = _after_comments(data, cut)
        self._held = data[cut:]
        self._searched = max(0, len(self._held) - 3)
        if len(self._held) <= MAX_HELD:
            return data[:cut]
        self._held = b""
        self._searched = 0
        self.between_events = False
        return data

    def rest(self) -> bytes:
        """What is still held when the stream ended in good order."""
        held, self._held = self._held, b""
        return held

    def _last_end(self, data: bytes) -> int:
        cut = 0
        for end in _ENDS:
            at = data.rfind(end, self._searched)
            if at >= 0:
                cut = max(cut, at + len(end))
        return cut


def _after_comments(data: bytes, start: int) -> int:
    """Offset behind whole comment lines at `start`: a bare heartbeat must not wait."""
    while data[start : start + 1] == b":":
        end = data.find(b"\n", start)
        if end < 0:
            break
        start = end + 1
    return start
