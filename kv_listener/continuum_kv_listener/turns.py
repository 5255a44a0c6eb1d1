"""Gives other tasks of the loop their share, however much one source has to say.

A slice of a batch is applied in one go, and may take longer than a turn should. Whoever took n
turns at once lets the others have n: a quiet source needs several of them from its socket to its
subscribers, and would otherwise wait for a large batch of the loud one at each.
"""

import asyncio
from collections.abc import Callable

TURN_SECONDS = 0.005
MOST_TURNS = 20
"""Given away at once."""


class Turns:
    """``clock`` gives seconds."""

    __slots__ = ("_began", "_clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()

    def begin(self) -> None:
        """Work begins now: others had their turn just before."""
        self._began = self._clock()

    async def breathe(self) -> bool:
        """Give away as many turns as were taken; whether it was any."""
        turns = int((self._clock() - self._began) / TURN_SECONDS)
        if turns <= 0:
            return False
        for _ in range(min(turns, MOST_TURNS)):
            await asyncio.sleep(0)
        self._began = self._clock()
        return True
