"""Token counts of an answer, read from its last bytes (design/data-plane.md, "Taps").

`usage` stands at the end of a completion and in the last event of a stream, so four kilobytes of
the end suffice and nothing else of the body is looked at. Bytes are only observed, never changed
(user report S7).
"""

import json
from collections import deque
from dataclasses import dataclass

TAIL = 4096
_KEY = b'"usage"'
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts as the backend reported them; None where it reported none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None


class UsageTail:
    """A tap that keeps references to the last pieces of a body and reads them when asked."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Note the next piece."""
        pieces = self._pieces
        pieces.append(data)
        self._size += len(data)
        while self._size - len(pieces[0]) >= TAIL:
            self._size -= len(pieces.popleft())

    def read(self) -> Usage | None:
        """Return the last usage object of the tail, or None when there is none that can be read."""
        tail = b"".join(self._pieces)[-TAIL:]
        end = len(tail)
        while (at := tail.rfind(_KEY, 0, end)) >= 0:
            found = _usage_at(tail, at + len(_KEY))
            if found is not None:
                return found
            end = at
        return None


def _usage_at(tail: bytes, at: int) -> Usage | None:
    """Read the object behind a `"usage"` key; None for `null` and for what is cut or odd."""
    text = tail[at:].decode("utf-8", "replace").lstrip()
    if not text.startswith(":"):
        return None
    try:
        value, _ = _DECODER.raw_decode(text[1:].lstrip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        completion_tokens=_count(value.get("completion_tokens")),
        total_tokens=_count(value.get("total_tokens")),
        cached_tokens=_count(cached),
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
