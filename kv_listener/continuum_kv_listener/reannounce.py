"""When which live prefix is told again (decisions C29, J17).

Engines say nothing about blocks that are re-used, so a resident prefix would expire at the router.
The interval is cut into slots and each prefix has the slot that its own first byte names: no list,
no cursor, and the load is spread. A prefix so comes once in every interval, whatever else comes
and goes.
"""

from collections.abc import Iterable, Iterator

from continuum_shared.kv_event import KvEvent

SLOTS = 20


class Reannouncer:
    """Says which slots are due. ``interval`` and ``now`` are in seconds of one clock."""

    __slots__ = ("_next_at", "_slot", "slot_seconds")

    def __init__(self, interval: float, now: float) -> None:
        self.slot_seconds = interval / SLOTS
        self._slot = 0
        self._next_at = now + self.slot_seconds

    def wait(self, now: float) -> float:
        """Seconds until the next slot is due."""
        return max(0.0, self._next_at - now)

    def due(self, now: float) -> list[int]:
        """The slots that have come due, each once; after a long pause at most all of them."""
        slots: list[int] = []
        while self._next_at <= now:
            if len(slots) < SLOTS:
                slots.append(self._slot)
            self._slot = (self._slot + 1) % SLOTS
            self._next_at += self.slot_seconds
        return slots


def in_slots(events: Iterable[KvEvent], slots: Iterable[int]) -> Iterator[KvEvent]:
    """Those of ``events`` whose prefix belongs to one of ``slots``."""
    chosen = frozenset(slots)
    for event in events:
        if event.prefix is not None and event.prefix[0] * SLOTS // 256 in chosen:
            yield event


class Vouching:
    """Whether a source may still vouch for what it tracks.

    It may not once its socket has been down, its engine has not answered ``/health``, or a
    reconnected engine has stayed unconfirmed, for one interval: then the router's TTL shall heal.
    """

    __slots__ = ("_good_at", "_interval")

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._good_at = {"link": now, "health": now, "process": now}

    def note(self, now: float, *, link: bool, process: bool) -> None:
        """The socket is up now, the process is known to be the same."""
        if link:
            self._good_at["link"] = now
        if process:
            self._good_at["process"] = now

    def healthy(self, now: float) -> None:
        """The engine answered."""
        self._good_at["health"] = now

    def holds(self, now: float) -> bool:
        """Whether live prefixes may be told again."""
        return all(now - at < self._interval for at in self._good_at.values())

    def engine_silent_for(self, now: float) -> float:
        """Seconds since the engine last answered ``/health``."""
        return now - self._good_at["health"]
