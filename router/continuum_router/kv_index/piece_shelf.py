"""What one backend is thought to hold: pieces in order of use, in groups that events name.

A group are the pieces sent under one prefix key. The room is counted in whole pieces of 2 KiB; the
three heads of a prompt are together one such piece. Oldest use goes first, over all groups, and
within a prompt its tail before its head, as engines evict.
"""

import heapq
from collections import deque
from collections.abc import Iterable

from continuum_router.backends.holding import Tier
from continuum_router.backends.pieces import HEADS, PIECE

Stamp = tuple[float, float]
"""When a piece was used last, and its weight. One object for all pieces of a request."""

HEAD_WEIGHTS = tuple(
    (end - start) / PIECE for start, end in zip((0, *HEADS[:-1]), HEADS, strict=True)
)

RECENT = 64
"""Growths of a group that are remembered."""

SLACK = 1 + 1 / 64
"""How far over its room a shelf may be: what goes, goes in batches."""


class Group:
    """Pieces under one prefix key, least recently used first, and what events said of it.

    ``new`` are the last times at which it grew, with how much.
    """

    __slots__ = ("key", "new", "pieces", "tier")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.pieces: dict[bytes, Stamp] = {}
        self.tier = Tier.GPU_HOT
        self.new: deque[tuple[float, float]] = deque(maxlen=RECENT)


class Shelf:
    """The groups of one backend.

    ``bit`` is its place in the masks of the index; ``room`` how many whole pieces it is thought to
    have room for, never corrected below ``least`` and by ``step`` at a time.
    """

    __slots__ = ("_ages", "_order", "bit", "gone", "groups", "least", "put", "room", "size", "step")

    def __init__(self, bit: int, room: float, *, least: float, step: float) -> None:
        self.bit = bit
        self.room = room
        self.least = least
        self.step = step
        self.size = 0.0
        # Decayed sums of what came and of what went for want of room, in whole pieces.
        self.put = 1.0
        self.gone = 0.0
        self.groups: dict[bytes, Group] = {}
        # (time of the oldest piece when last looked at, tie break, group), a heap.
        self._ages: list[tuple[float, int, Group]] = []
        self._order = 0

    def group(self, key: bytes, now: float) -> Group:
        """The group of ``key``; made when there is none."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key)
            self._order += 1
            if len(self._ages) > 64 + 2 * len(self.groups):
                self._ages = [entry for entry in self._ages if self._lives(entry[2])]
                heapq.heapify(self._ages)
            heapq.heappush(self._ages, (now, self._order, group))
        return group

    def oldest(self) -> tuple[float, Group] | None:
        """When the least recently used piece was used, and its group; ``None`` when empty."""
        ages = self._ages
        while ages:
            then, order, group = ages[0]
            if not self._lives(group):
                heapq.heappop(ages)
                continue
            first = next(iter(group.pieces.values()), None)
            if first is None:
                heapq.heappop(ages)
                del self.groups[group.key]
                continue
            if first[0] > then:
                heapq.heapreplace(ages, (first[0], order, group))
                continue
            return then, group
        return None

    def trim(self, room: float) -> list[bytes]:
        """Take out the oldest pieces while there are more than ``room``."""
        gone: list[bytes] = []
        while self.size > room:
            found = self.oldest()
            if found is None:
                break
            then, group = found
            over = self.size - room
            batch: list[bytes] = []
            for piece, (used, weight) in group.pieces.items():
                if used > then or over <= 0:
                    break
                batch.append(piece)
                over -= weight
            self.take_out(group, batch)
            gone += batch
        return gone

    def expire(self, until: float, limit: int) -> list[bytes]:
        """Take out pieces that were used last at ``until`` or before, about ``limit`` at most."""
        gone: list[bytes] = []
        while len(gone) < limit:
            found = self.oldest()
            if found is None or found[0] > until:
                break
            group = found[1]
            batch: list[bytes] = []
            for piece, (used, _) in group.pieces.items():
                if used > until or len(gone) + len(batch) >= limit:
                    break
                batch.append(piece)
            self.take_out(group, batch)
            gone += batch
        return gone

    def trim_group(self, group: Group, room: float) -> list[bytes]:
        """Take out a group's oldest pieces until it is not over ``room`` whole pieces."""
        over = sum(stamp[1] for stamp in group.pieces.values()) - room
        batch: list[bytes] = []
        if over > 0:
            for piece, stamp in group.pieces.items():
                if over <= 0:
                    break
                batch.append(piece)
                over -= stamp[1]
            self.take_out(group, batch)
        return batch

    def take_out(self, group: Group, pieces: Iterable[bytes]) -> None:
        """Forget pieces of a group that are in it."""
        for piece in pieces:
            self.size -= group.pieces.pop(piece)[1]

    def note_new(self, key: bytes, now: float, weight: float) -> None:
        """A group has grown by so many whole pieces."""
        if weight > 0:
            self.groups[key].new.append((now, weight))

    def coming(self, group: Group, since: float) -> float:
        """By how much a group has grown after ``since``."""
        return sum(weight for then, weight in group.new if then > since)

    def drop(self, key: bytes) -> list[bytes]:
        """Forget a group; its pieces."""
        group = self.groups.pop(key, None)
        if group is None:
            return []
        self.size -= sum(stamp[1] for stamp in group.pieces.values())
        return list(group.pieces)

    def pieces(self) -> list[bytes]:
        """All pieces."""
        return [piece for group in self.groups.values() for piece in group.pieces]

    def count(self) -> int:
        """How many pieces."""
        return sum(len(group.pieces) for group in self.groups.values())

    def _lives(self, group: Group) -> bool:
        return self.groups.get(group.key) is group
