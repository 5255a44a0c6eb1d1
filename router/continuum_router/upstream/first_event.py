"""The start of a streamed answer, held back until its first data event is known.

An engine that fails may answer 200 and put the error into the first event. While nothing was
relayed the status can still be told the truth, and the request can still be tried elsewhere
(decisions E16). Comments and blank lines are not a first event (E10).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from continuum_shared.sse import SseEvent, SseOverflow, SseParser

PEEK_LIMIT = 8 * 1024
"""Bytes held back at most; a longer first event is relayed unseen (decisions E16)."""

LONG_EVENT = 64 * 1024
"""Bytes after which an unfinished first event counts as one: this is all that is kept of it."""

DEFAULT_ERROR_STATUS = 502
"""Status of an error event that names none."""

_TYPE_STATUS: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 503,
    "timeout_error": 504,
}
"""What the types of error objects stand for that name no status; Anthropic's never do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventError:
    """An error that came as the first event: the status it stands for, its data as JSON bytes."""

    status: int
    body: bytes = field(repr=False)


class FirstEvent:
    """Feeds on the body's pieces. `held` is what must not be relayed yet.

    `seen` turns True with the first data event and `error` is then set if that event is one.
    `open` turns True when holding back ends, which is then or when `PEEK_LIMIT` was passed.
    """

    __slots__ = ("_parser", "_pieces", "_size", "error", "open", "seen")

    def __init__(self) -> None:
        self._parser: SseParser | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self.seen = False
        self.open = False
        self.error: EventError | None = None

    def feed(self, data: bytes) -> None:
        """Take the next piece, while `seen` is False."""
        if not self.open:
            self._pieces.append(data)
            self._size += len(data)
        if self._parser is None and _plain_event(data):
            self.seen = self.open = True
            return
        if self._parser is None:
            self._parser = SseParser(LONG_EVENT)
        try:
            found = self._parser.feed(data)
        except SseOverflow:
            # Not an error object: those are short. The client will make of it what it can.
            self.seen = self.open = True
            self._parser = None
            return
        for item in found:
            if isinstance(item, SseEvent):
                self.seen = True
                if not self.open:
                    self.error = _error_of(item)
                break
        self.open = self.open or self.seen or self._size > PEEK_LIMIT
        if self.seen:
            self._parser = None

    def take(self) -> bytes:
        """Hand over what was held back; nothing is held any more."""
        pieces, self._pieces = self._pieces, []
        self._size = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _plain_event(data: bytes) -> bool:
    """True when `data` surely opens with a whole data event that is no error object.

    Spares the ordinary stream the parser: the first piece of an engine is one or more whole events.
    """
    end = data.find(b"\n\n")
    return end > 0 and data.startswith(b"data:") and data.find(b'"error"', 0, end) < 0


def _error_of(event: SseEvent) -> EventError | None:
    try:
        value = orjson.loads(event.data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or not value.get("error"):
        return None
    return EventError(status=_status_of(value), body=event.data.encode())


def _status_of(value: Mapping[str, object]) -> int:
    """The HTTP status in an error object: in `code` with engines, in `status`, behind its type."""
    error = value["error"]
    for holder in (error, value):
        if isinstance(holder, Mapping):
            for name in ("code", "status"):
                status = holder.get(name)
                if type(status) is int and 400 <= status <= 599:
                    return status
    kind = error.get("type") if isinstance(error, Mapping) else None
    known = _TYPE_STATUS.get(kind) if isinstance(kind, str) else None
    return known or DEFAULT_ERROR_STATUS
