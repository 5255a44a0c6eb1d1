"""The time limits of one request, on one timer that follows the request as it proceeds.

`total` covers everything, retries and waiting included (decisions E12). While the backend owes the
first data event of a stream, `first_byte` applies too; after it `chunk_interval` for each wait (S2
"timeouts", E10, E11). Nobody but the backend is hurried: while a slow client reads, only `total`
runs.

Setting a limit is two assignments. The loop's timer is touched only when it fires too early or
would fire too late, so a stream of a thousand chunks does not cost a thousand timers.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from continuum_router.errors import Cause


class Limit(StrEnum):
    """Which limit is armed."""

    FIRST_BYTE = "first_byte"
    CHUNK_INTERVAL = "chunk_interval"
    TOTAL = "total"

    @property
    def cause(self) -> Cause:
        """The failure that passing this limit is."""
        return Cause(f"{self.value}_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds of each limit; None or 0 means none (`total` always is one)."""

    total: float
    first_byte: float | None = None
    chunk_interval: float | None = None


class Deadlines:
    """An async context manager around a request; raises TimeoutError when the armed limit passes.

    `armed` tells which limit that was or would be, `backend_owes` whether the backend was the one
    to act, `expired` that the limit has passed: a cancellation which is being handled comes from
    here. Times are the event loop's. `spent` seconds of `total` have passed already.
    """

    __slots__ = (
        "_cancelling",
        "_due",
        "_end",
        "_first_due",
        "_handle",
        "_limits",
        "_loop",
        "_task",
        "armed",
        "backend_owes",
        "expired",
    )

    def __init__(self, limits: Limits, *, spent: float = 0.0) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._end = self._due = self._loop.time() + limits.total - spent
        self._first_due: float | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self.armed = Limit.TOTAL
        self.backend_owes = False
        self.expired = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._handle = self._loop.call_at(self._due, self._fire)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        task, self._task = self._task, None
        # Take our own cancellation back; one that came from elsewhere besides must go on.
        ours_alone = self.expired and task.uncancel() <= self._cancelling
        if ours_alone and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    @property
    def time_left(self) -> float:
        """Seconds until `total` passes."""
        return self._end - self._loop.time()

    def change(self, limits: Limits) -> None:
        """Go on under another model's limits; `total` stays what it was at the start (E12)."""
        self._limits = limits

    def forgive(self) -> bool:
        """While the cancellation of a passed limit is handled: take it back and go on.

        False when that cannot be: no limit has passed, `total` has, or somebody else cancels the
        task too. Then the cancellation must go on.
        """
        task = self._task
        if not self.expired or task is None or self.armed is Limit.TOTAL or self.time_left <= 0:
            return False
        self.expired = False
        if task.uncancel() > self._cancelling:
            return False
        self._first_due = None
        self._handle = self._loop.call_at(self._end, self._fire)
        self.await_nothing()
        return True

    def await_first(self, *, spent: float = 0.0) -> None:
        """The request went out `spent` seconds ago: the backend owes the first data event."""
        seconds = self._limits.first_byte
        self._arm(Limit.FIRST_BYTE, max(seconds - spent, 1e-9) if seconds else None)
        self._first_due = self._due
        self.backend_owes = True

    def still_await_first(self) -> None:
        """What came was no data event: the backend owes it still, and its time runs on (E10)."""
        if self._first_due is None:
            self.await_first()
        else:
            self._arm_at(Limit.FIRST_BYTE, self._first_due)
        self.backend_owes = True

    def await_chunk(self) -> None:
        """The stream runs: the backend owes its next bytes."""
        self._arm(Limit.CHUNK_INTERVAL, self._limits.chunk_interval)
        self.backend_owes = True

    def await_nothing(self) -> None:
        """The backend owes nothing now: a choice is made, a delay passes, the client reads."""
        self._arm(Limit.TOTAL, None)
        self.backend_owes = False

    def _arm(self, limit: Limit, seconds: float | None) -> None:
        self._arm_at(limit, self._loop.time() + seconds if seconds else self._end)

    def _arm_at(self, limit: Limit, due: float) -> None:
        if self.expired:
            # The cancellation is on its way already; keep saying what it was.
            return
        if due >= self._end:
            limit, due = Limit.TOTAL, self._end
        self.armed = limit
        self._due = due
        if self._handle is not None and due < self._handle.when():
            self._handle.cancel()
            self._handle = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        assert self._task is not None
        if self._loop.time() < self._due:
            self._handle = self._loop.call_at(self._due, self._fire)
            return
        self._handle = None
        self.expired = True
        self._task.cancel()
