"""Which numbered events of a TensorRT-LLM engine are new, known already, or of another process.

Events are numbered from 0 on for each attention-DP rank, and an answer drains the engine's buffer:
nobody sends anything again, so what is missing is lost for good (decisions C37). Pure; no clock.
"""

from collections import OrderedDict
from enum import StrEnum

REMEMBERED = 1024
"""Events of each rank that can be recognised when an answer is delivered twice."""


class Step(StrEnum):
    """What one event number means."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    """Events before it are lost."""
    RESTART = "restart"
    """A number of a new process."""


class EventOrder:
    """Follows the numbers of all ranks of one engine.

    A number that is not new is a duplicate only if the same content was seen under it, and since
    the engine last failed to answer: a new process may well begin with the very words of the old.
    """

    __slots__ = ("_last", "_marks")

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._marks: dict[int, OrderedDict[int, int]] = {}

    @property
    def last(self) -> int | None:
        """The highest number seen of any rank."""
        return max(self._last.values(), default=None)

    def step(self, rank: int, event_id: int, mark: int) -> tuple[Step, int]:
        """Judge one event and move on to it; how many were lost before it.

        After a ``RESTART`` all ranks begin anew, with this event.
        """
        last = self._last.get(rank)
        if last is not None and event_id <= last:
            if self._marks[rank].get(event_id) == mark:
                return Step.DUPLICATE, 0
            self.forget()
            self._move(rank, event_id, mark)
            return Step.RESTART, 0
        missing = 0 if last is None else event_id - last - 1
        self._move(rank, event_id, mark)
        return (Step.GAP if missing else Step.NEXT), missing

    def unanswered(self) -> None:
        """The engine could not be reached: what comes next may be a new process."""
        for marks in self._marks.values():
            marks.clear()

    def forget(self) -> None:
        """Another process: whatever it sends first is the first."""
        self._last.clear()
        self._marks.clear()

    def _move(self, rank: int, event_id: int, mark: int) -> None:
        self._last[rank] = event_id
        marks = self._marks.setdefault(rank, OrderedDict())
        marks[event_id] = mark
        if len(marks) > REMEMBERED:
            marks.popitem(last=False)
