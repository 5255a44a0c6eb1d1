"""How old the list of models is, and what follows: pure, time is a parameter (S2)."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import StrEnum

GRACE_TTLS = 3
"""An old list is served until it is this many `cache_ttl` old."""

CALLS, WINDOW = 6, 60.0
"""Forced refreshes of one caller in a window of seconds (decisions E21)."""

MAX_CALLERS = 4096
MAX_DOUBLINGS = 32


class Age(StrEnum):
    """EMPTY: there was no pass yet. A stale list is shown while it is renewed, no expired one."""

    EMPTY = "empty"
    FRESH = "fresh"
    SOFT_STALE = "soft_stale"
    HARD_STALE = "hard_stale"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Seconds, but for the ratio."""

    ttl: float = 60.0
    soft_ratio: float = 0.8
    empty_base: float = 5.0
    empty_max: float = 60.0

    def empty_ttl(self, streak: int) -> float:
        """How long the `streak`th empty result in a row is kept: doubles up to `empty_max`."""
        doublings = min(max(streak, 1) - 1, MAX_DOUBLINGS)
        return min(self.empty_base * 2.0**doublings, self.empty_max)


class Freshness:
    """The age of one list."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self._lifetimes = lifetimes
        self._since: float | None = None
        self._empties = 0
        self._marked = False

    def filled(self, now: float, *, empty: bool) -> None:
        """A pass has ended; `empty`: without a model."""
        self._since = now
        self._marked = False
        self._empties = self._empties + 1 if empty else 0

    def invalidate(self, now: float) -> None:
        """The list is out of date but shown on; its grace begins anew."""
        if self._since is not None:
            self._since = now
            self._marked = True

    def clear(self) -> None:
        """Nothing to show until the next pass."""
        self._since = None
        self._empties = 0

    def age(self, now: float) -> Age:
        """What the list is worth now."""
        if self._since is None:
            return Age.EMPTY
        times, old = self._lifetimes, now - self._since
        if old >= GRACE_TTLS * times.ttl:
            return Age.EXPIRED
        if self._marked:
            return Age.HARD_STALE
        if self._empties:
            return Age.FRESH if old < times.empty_ttl(self._empties) else Age.HARD_STALE
        if old >= times.ttl:
            return Age.HARD_STALE
        return Age.SOFT_STALE if old >= times.soft_ratio * times.ttl else Age.FRESH


class RefreshGate:
    """Counts forced refreshes by caller; remembers the last `MAX_CALLERS` of them."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, caller: str, now: float) -> float:
        """Take one call: 0.0 when it may go on, else the seconds after which it could."""
        calls = self._calls.setdefault(caller, deque(maxlen=CALLS))
        self._calls.move_to_end(caller)
        if len(self._calls) > MAX_CALLERS:
            self._calls.popitem(last=False)
        if len(calls) == CALLS and now - calls[0] < WINDOW:
            return WINDOW - (now - calls[0])
        calls.append(now)
        return 0.0
