"""One look at all requests of the fast path, a few times a second, in place of a timer for each."""

import asyncio
from collections.abc import Callable
from typing import Protocol

SWEEP_SECONDS = 0.25
"""Longest time between two looks: so late may a limit be noticed at most."""

SHORTEST = 0.01


class Timed(Protocol):
    """Something with a limit."""

    due: float
    """When its limit passes, on the sweep's clock. May move at any time."""

    def expire(self, now: float) -> None:
        """The limit has passed. Moves `due` or leaves the sweep."""


class DeadlineSweep:
    """`clock` is monotonic seconds. Runs only while there is something to look at."""

    __slots__ = ("_at", "_clock", "_timed", "_timer")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._timed: set[Timed] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def __len__(self) -> int:
        return len(self._timed)

    def add(self, timed: Timed) -> None:
        """Look at it from now on."""
        self._timed.add(timed)
        if self._timer is None or timed.due < self._at:
            self._arm()

    def drop(self, timed: Timed) -> None:
        """Look at it no longer; unknown is fine."""
        self._timed.discard(timed)

    def close(self) -> None:
        """Stop looking."""
        self._timed.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._clock()
        first = min(timed.due for timed in self._timed)
        delay = min(max(first - now, SHORTEST), SWEEP_SECONDS)
        self._at = now + delay
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._clock()
        for timed in [timed for timed in self._timed if timed.due <= now]:
            timed.expire(now)
        if self._timed and self._timer is None:
            self._arm()
