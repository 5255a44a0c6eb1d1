"""The consistent hash ring: which backend owns a point, and who comes next.

Decisions A12 fix every bit of it, because several routers, their workers and the simulator must
agree: SHA-256; a ring point is the first 8 bytes, big-endian, of SHA-256(``name#i``); a key's point
is the first 8 bytes of the prefix key; the owner is the first point strictly greater, wrapping.
"""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from continuum_shared.prefix_key import PrefixKey

MAX_POINTS = 100_000
"""Most points of one member: a tenth of a second of hashing, whatever the configuration says."""


def key_point(key: PrefixKey) -> int:
    """Where a prefix key falls on the ring."""
    return int.from_bytes(key[:8], "big")


def text_point(text: str) -> int:
    """Where a plain name (a model's) falls on the ring; any string, surrogates included."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


class HashRing:
    """Immutable ring over named members with weights.

    Each member has ``virtual_nodes`` times its weight points, rounded, at least one unless its
    weight is 0, at most :data:`MAX_POINTS`. Who else is a member does not move a member's points.
    """

    __slots__ = ("_names", "_owners", "_points")

    def __init__(self, members: Iterable[tuple[str, float]], virtual_nodes: int) -> None:
        self._names: list[str] = []
        placed: list[tuple[int, str, int]] = []
        for name, weight in members:
            if weight <= 0:
                continue
            owner = len(self._names)
            self._names.append(name)
            count = min(MAX_POINTS, max(1, round(virtual_nodes * weight)))
            placed.extend((text_point(f"{name}#{i}"), name, owner) for i in range(count))
        # Two equal points are ordered by name, so that the order of the members never matters.
        placed.sort()
        self._points = array("Q", (point for point, _, _ in placed))
        self._owners = array("I", (owner for _, _, owner in placed))

    def __len__(self) -> int:
        """Number of points."""
        return len(self._points)

    def owner(self, point: int) -> str | None:
        """The member that owns ``point``; None on an empty ring."""
        owners = self._owners
        if not owners:
            return None
        return self._names[owners[bisect_right(self._points, point) % len(owners)]]

    def walk(self, point: int) -> Iterator[str]:
        """Each member once, clockwise from the owner of ``point``."""
        owners, names = self._owners, self._names
        size = len(owners)
        start = bisect_right(self._points, point)
        seen: set[int] = set()
        for step in range(size):
            owner = owners[(start + step) % size]
            if owner not in seen:
                seen.add(owner)
                yield names[owner]
                if len(seen) == len(names):
                    return
