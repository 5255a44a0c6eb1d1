"""The bound on one backend's share of the load, used by the prefix ring and by the KV score."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from continuum_router.backends.pool import Backend

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBound:
    """Decisions A9: nobody takes more than ``(1 + epsilon)`` times its share.

    The share counts the request that is being placed, and follows the weights (A12). Below
    ``floor`` requests in flight a backend is never over its bound.
    """

    epsilon: float
    floor: int = 1

    def cap(self, total: int, share: float) -> int:
        """Most requests in flight for a ``share`` (0 to 1) of ``total`` running ones."""
        # Without the allowance 1.1 * 50, which is 55.00000000000001, would round up to 56.
        return max(1, math.ceil((1 + self.epsilon) * (total + 1) * share - _ROUNDING))

    def below(
        self, name: str, members: Iterable[Backend], loads: Mapping[str, int]
    ) -> Backend | None:
        """The member of this name, if one more request does not lead it past its bound."""
        found: Backend | None = None
        total, weights, count = 0, 0.0, 0
        for member in members:
            total += loads.get(member.name, 0)
            weights += member.weight
            count += 1
            if member.name == name:
                found = member
        if found is None:
            return None
        share = found.weight / weights if weights > 0 else 1 / count
        return None if self.over(loads.get(name, 0), total, share) else found

    def over(self, load: int, total: int, share: float) -> bool:
        """Whether one more request would lead a backend with ``load`` in flight past its bound."""
        return load >= self.floor and load + 1 > self.cap(total, share)


class Crowd:
    """The loads of the eligible backends at one moment, so that one pass compares equal things."""

    __slots__ = ("_loads", "_weights", "max_load", "total")

    def __init__(self, members: Iterable[Backend], loads: Mapping[str, int]) -> None:
        self._loads: dict[str, int] = {}
        self._weights = 0.0
        for member in members:
            self._loads[member.name] = loads.get(member.name, 0)
            self._weights += member.weight
        self.total = sum(self._loads.values())
        self.max_load = max(self._loads.values(), default=0)

    def load(self, backend: Backend) -> int:
        """Requests in flight on a member."""
        return self._loads[backend.name]

    def over(self, backend: Backend, bound: LoadBound) -> bool:
        """Whether a member is over ``bound`` among the members."""
        share = backend.weight / self._weights if self._weights > 0 else 1 / len(self._loads)
        return bound.over(self._loads[backend.name], self.total, share)
