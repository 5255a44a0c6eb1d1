"""Passive health: failures of traffic take a backend out for a while (issue "the fleet", R7, R8).

Only what is the backend's own doing counts: a refused or broken connection, a timeout, a 5xx other
than 503. A client's mistakes and "full" (429, 503) neither open nor close it.
"""

from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """Failures in a row that open it, and seconds until one request may try again."""

    failures: int
    cooldown: float
    enabled: bool = True


class Breaker:
    """The breaker of one backend. `now` is monotonic seconds.

    After the cooldown it is half open: one request at a time is let through as a trial, and its
    end decides. A trial that ends without a verdict (its client left) frees the place.
    """

    __slots__ = ("_open_until", "_trial", "opened", "streak")

    def __init__(self) -> None:
        self.streak = 0
        self.opened = 0
        self._open_until: float | None = None
        self._trial = False

    @property
    def closed(self) -> bool:
        """True in the ordinary case: nothing to ask, nothing to wait for."""
        return self._open_until is None

    def state(self, now: float) -> BreakerState:
        """Where it stands."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def admits(self, now: float) -> bool:
        """May a request be sent now?"""
        return self._open_until is None or (now >= self._open_until and not self._trial)

    def begin(self, now: float) -> bool:
        """A request is sent. True when it is the trial: then call `release` at its end."""
        if self.state(now) is not BreakerState.HALF_OPEN or self._trial:
            return False
        self._trial = True
        return True

    def release(self) -> None:
        """The trial is over, in whatever way; `succeeded` or `failed` says which, if either."""
        self._trial = False

    def succeeded(self) -> bool:
        """The backend served a request. Returns True when this has closed it."""
        self.streak = 0
        was_open, self._open_until = self._open_until is not None, None
        return was_open

    def failed(self, rules: BreakerRules, now: float) -> bool:
        """The backend failed a request. Returns True when this has opened it, or opened it again.

        What was sent before it opened may still fail: that is no news and prolongs nothing.
        """
        self.streak += 1
        if not rules.enabled or self.streak < rules.failures:
            return False
        if self._open_until is not None and now < self._open_until:
            return False
        self._open_until = now + rules.cooldown
        self.opened += 1
        return True
