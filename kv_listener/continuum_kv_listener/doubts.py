"""What was known before a loss, and until when it may still be believed (decisions C17).

Batches that no replay brings back may have held removals. Each such loss begins a new *age*: blocks
carry the age in which they were last shown to be there, so that older ones are suspect without
touching any of them. A suspect that nothing proves is believed for one more time to live of the
router's entries, then it is retired.
"""

from collections import deque

STEPS = 32
"""Losses that follow each other within this part of the time share one date."""


class Doubts:
    """The present age and the dates at which older ones are retired. ``patience`` in seconds."""

    __slots__ = ("_dates", "_patience", "age", "retired")

    def __init__(self, patience: float) -> None:
        self.age = 0
        self.retired = 0
        """Blocks of an age before this one are believed no longer."""
        self._patience = patience
        self._dates: deque[tuple[float, int]] = deque()

    @property
    def open(self) -> bool:
        """Whether anything may be suspect and is not retired yet."""
        return bool(self._dates)

    def begin(self, now: float) -> None:
        """Something was lost: what is known by now is suspect."""
        self.age += 1
        date = now + self._patience
        if self._dates and date - self._dates[-1][0] < self._patience / STEPS:
            date = self._dates.pop()[0]
        self._dates.append((date, self.age))

    def next_due(self) -> float | None:
        """When suspects are to be retired; None while there are none."""
        return self._dates[0][0] if self._dates else None

    def retire(self, now: float) -> bool:
        """Move :attr:`retired` on to what is due by now; whether it moved."""
        moved = False
        while self._dates and self._dates[0][0] <= now:
            self.retired = self._dates.popleft()[1]
            moved = True
        return moved

    def settle(self) -> None:
        """Nothing of an older age is left."""
        self._dates.clear()
