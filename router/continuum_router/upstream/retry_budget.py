"""How many retries there may be in all (decisions E10).

When a fleet fails, each request that is tried three times makes the load three times as high. The
budget lets a fifth of the recent requests be tried again and no more; with few requests there is a
floor, so that a single failure never meets an empty budget. Time is given by the caller.
"""

from collections import deque
from dataclasses import dataclass

MAX_WINDOW = 600.0
"""Seconds that are remembered at most."""

_SLOTS_PER_SECOND = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRules:
    """In any `window` seconds: `ratio` of the requests, but at least `min_retries`."""

    ratio: float = 0.2
    min_retries: int = 10
    window: float = 10.0


@dataclass(slots=True)
class _Slot:
    number: int
    requests: int = 0
    retries: int = 0


class RetryBudget:
    """Counts requests and retries in slots of a tenth of a second. Lives as long as the process."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()

    def request(self, now: float) -> None:
        """Note a request that begins. `now` is monotonic seconds."""
        self._slot(now).requests += 1

    def take(self, rules: BudgetRules, now: float) -> bool:
        """Take one retry out; False when there is none left."""
        slot = self._slot(now)
        oldest = slot.number - round(rules.window * _SLOTS_PER_SECOND)
        requests = retries = 0
        for past in reversed(self._slots):
            if past.number <= oldest:
                break
            requests += past.requests
            retries += past.retries
        if retries >= max(rules.min_retries, int(requests * rules.ratio)):
            return False
        slot.retries += 1
        return True

    def _slot(self, now: float) -> _Slot:
        slots = self._slots
        number = int(now * _SLOTS_PER_SECOND)
        if slots and slots[-1].number >= number:
            return slots[-1]
        slots.append(_Slot(number))
        while slots[0].number <= number - MAX_WINDOW * _SLOTS_PER_SECOND:
            slots.popleft()
        return slots[-1]
