"""What each backend still has to do of what it was sent: the router's own books, nothing measured.

Work is counted in tokens: one of work is one token of prefill with nothing before it. A request's
work is in its backend's line until its first token passes by; its context stays until it has ended.
From the time that a request headed the line the speed of the backend is learned.
Times are monotonic seconds.
"""

import math
from collections.abc import Callable

ATTENTION = 4.5e-5
"""Work of attending to one token, relative to a token's own (design/routing.md 6.2, ``a``)."""

FIRST_RATE = 30_000.0
"""Work a second until the first answer has come."""

LEAST_WORK = 16.0
"""Tokens that no cache spares: engines compute at least a few."""

BUSY_TIME = 30.0
"""Time constant in seconds of the share of time with work in line."""

_WEIGHT = 0.05
_SAMPLE_WORK = 2000.0
_SAMPLE_LONG = 0.25
_SAMPLE_LEAST = 0.02


def work_of(uncached: float, cached: float) -> float:
    """The work of ``uncached`` tokens behind ``cached`` ones."""
    return uncached * (1 + ATTENTION * (cached + 0.5 * uncached))


class Lane:
    """One backend's line.

    ``context`` are tokens in flight, ``last`` when it was sent something, ``rate`` the work it does
    in a second.
    """

    __slots__ = (
        "_busy",
        "_busy_at",
        "_line",
        "_samples",
        "_since",
        "_total",
        "context",
        "last",
        "rate",
    )

    def __init__(self) -> None:
        self.context = 0.0
        self.last = 0.0
        self.rate = FIRST_RATE
        self._line: dict[int, float] = {}
        self._total = 0.0
        self._since = 0.0
        self._busy = 0.0
        self._busy_at = 0.0
        self._samples = 0

    def wait(self, now: float) -> float:
        """Work in line, less what the head's has been reduced by since it came up."""
        line = self._line
        if not line:
            return 0.0
        head = next(iter(line.values()))
        return max(0.0, self._total - min(head, max(0.0, (now - self._since) * self.rate)))

    def busy(self, now: float) -> float:
        """Share of recent time with work in line, 0 to 1."""
        elapsed = now - self._busy_at
        if elapsed <= 0:
            return self._busy
        kept = math.exp(-elapsed / BUSY_TIME)
        return self._busy * kept + ((1 - kept) if self._line else 0.0)

    def sent(self, number: int, work: float, tokens: float, now: float) -> None:
        """A request has gone out."""
        self._note_busy(now)
        if not self._line:
            self._since = now
        self._line[number] = work
        self._total += work
        self.context += tokens
        self.last = now

    def answered(self, number: int, now: float) -> None:
        """Its first token has passed by: the speed is learned if it was the head."""
        if number not in self._line:
            return
        self._note_busy(now)
        head = next(iter(self._line)) == number
        work = self._take(number)
        took = now - self._since
        if head and took > _SAMPLE_LEAST and (work > _SAMPLE_WORK or took > _SAMPLE_LONG):
            self._samples += 1
            weight = max(_WEIGHT, 1 / (self._samples + 1))
            self.rate += weight * (work / took - self.rate)
        self._since = now

    def given_up(self, number: int, now: float) -> None:
        """It ended without a token: nothing is learned."""
        if number in self._line:
            self._note_busy(now)
            if next(iter(self._line)) == number:
                self._since = now
            self._take(number)

    def ended(self, tokens: float) -> None:
        """Its context is free again."""
        self.context = max(0.0, self.context - tokens)

    def __len__(self) -> int:
        return len(self._line)

    def _take(self, number: int) -> float:
        work = self._line.pop(number)
        # Sums of floats drift; an empty line is the moment to forget that.
        self._total = self._total - work if self._line else 0.0
        return work

    def _note_busy(self, now: float) -> None:
        self._busy = self.busy(now)
        self._busy_at = now


class WorkLedger:
    """The lanes by backend name; at most as many as the configuration has had backends."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._lanes: dict[str, Lane] = {}
        self._numbers = 0

    def lane(self, name: str) -> Lane:
        """The lane of a backend; made when it is asked for the first time."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane()
        return lane

    def next_number(self) -> int:
        """A number that no request in flight has."""
        self._numbers += 1
        return self._numbers

    def forget(self, name: str) -> None:
        """A backend has left the configuration; tickets that are out keep their lane."""
        self._lanes.pop(name, None)


class WorkTicket:
    """One attempt's entry in the books: what `backends.fleet.Lease` tells of it."""

    __slots__ = ("_answered", "_begun", "_lane", "_ledger", "_number", "_tokens", "_work")

    def __init__(self, ledger: WorkLedger, lane: Lane, *, work: float, tokens: float) -> None:
        self._ledger = ledger
        self._lane = lane
        self._work = work
        self._tokens = tokens
        self._number = ledger.next_number()
        self._begun = False
        self._answered = False

    def begun(self) -> None:
        """It is being sent."""
        self._begun = True
        self._lane.sent(self._number, self._work, self._tokens, self._ledger.clock())

    def first_token(self) -> None:
        """Its first token has passed by."""
        self._answered = True
        self._lane.answered(self._number, self._ledger.clock())

    def usage(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Of no use here."""

    def ended(self) -> None:
        """It has ended, whatever way."""
        if self._begun:
            self._begun = False
            self._lane.given_up(self._number, self._ledger.clock())
            self._lane.ended(self._tokens)
