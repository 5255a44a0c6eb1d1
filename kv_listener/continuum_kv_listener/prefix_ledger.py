"""What each prefix is worth on one engine, and which changes of that are due to be told.

A prefix is worth its deepest resident leaf: the ledger keeps a small multiset of leaf depths for
each key and tier, so growth and shrinkage cost O(1) amortised and the removal of the deepest leaf
finds the next (design/chains.md). Records are the difference between what is true and what was last
said, so that any history between two drains costs at most one record a prefix.
"""

from heapq import heapify, heappop, heappush
from itertools import count

from continuum_kv_listener.chain_stats import TokenCount
from continuum_kv_listener.scope import Scope
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import PrefixKey

HOT = 1
"""A leaf with a GPU copy."""
WARM = 2
"""A leaf with copies on lower tiers only."""

GROWTH_INTERVAL_S = 0.1
"""At most one record for the growth of a prefix in this time (decisions C9)."""

_BASE_BITS = 32
_BASE_MASK = (1 << _BASE_BITS) - 1


class DepthBag:
    """A multiset of ints that knows its largest: a count by value and a lazily cleaned heap."""

    __slots__ = ("_counts", "_heap", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self.total = 0

    def add(self, value: int) -> None:
        """One more of ``value``."""
        counts = self._counts
        self.total += 1
        if value in counts:
            counts[value] += 1
            return
        counts[value] = 1
        heap = self._heap
        if len(heap) > 2 * len(counts) + 16:
            heap[:] = [-known for known in counts]
            heapify(heap)
        else:
            heappush(heap, -value)

    def remove(self, value: int) -> None:
        """One less of ``value``, which must be there."""
        counts = self._counts
        self.total -= 1
        if counts[value] > 1:
            counts[value] -= 1
        else:
            del counts[value]

    def move(self, old: int, new: int) -> None:
        """One ``old``, which must be there, becomes one ``new``."""
        counts = self._counts
        there = counts[old]
        if there > 1:
            counts[old] = there - 1
        else:
            del counts[old]
        if new in counts:
            counts[new] += 1
            return
        counts[new] = 1
        heap = self._heap
        if len(heap) > 2 * len(counts) + 16:
            heap[:] = [-known for known in counts]
            heapify(heap)
        else:
            heappush(heap, -new)

    def largest(self) -> int:
        """The largest value; the bag must not be empty."""
        heap = self._heap
        counts = self._counts
        while -heap[0] not in counts:
            heappop(heap)
        return -heap[0]


class _Entry:
    """One prefix: its leaves by tier, and what was last said about it (tier 0: nothing)."""

    __slots__ = (
        "dirty",
        "held",
        "hot",
        "key",
        "seen",
        "sent_at",
        "sent_tier",
        "sent_tokens",
        "warm",
    )

    def __init__(self, key: PrefixKey) -> None:
        self.key = key
        self.hot = DepthBag()
        self.warm = DepthBag()
        self.sent_tier = 0
        self.sent_tokens = 0
        self.sent_at = 0.0
        self.dirty = False
        self.held = False
        self.seen = 0
        """The age in which a block with this key was last shown to be there (``doubts.py``)."""


class PrefixLedger:
    """Leaves in, records out. ``token_count`` chooses what a prefix is said to be worth (C9)."""

    def __init__(self, token_count: TokenCount) -> None:
        self._shared_head = token_count is TokenCount.SHARED_HEAD
        self._entries: dict[PrefixKey, _Entry] = {}
        self._dirty: list[_Entry] = []
        self._held: list[tuple[float, int, _Entry]] = []
        self._order = count()
        self._purged = False
        self._announced = 0

    @property
    def announced(self) -> int:
        """How many prefixes the listeners of this source believe to be there."""
        return self._announced

    def add(self, scope: Scope, depth: int, tier: int) -> None:
        """A resident leaf at ``depth`` tokens, for every key of its scope."""
        for key, head in zip(scope.keys, scope.heads, strict=True):
            value = depth
            if self._shared_head:
                value = head.depth << _BASE_BITS | head.base
                if head.more(tier) > 1:
                    continue
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(key)
            (entry.hot if tier == HOT else entry.warm).add(value)
            if not entry.dirty:
                entry.dirty = True
                self._dirty.append(entry)

    def remove(self, scope: Scope, depth: int, tier: int) -> None:
        """Take back an :meth:`add` with the same arguments."""
        for key, head in zip(scope.keys, scope.heads, strict=True):
            value = depth
            if self._shared_head:
                value = head.depth << _BASE_BITS | head.base
                if head.less(tier) > 0:
                    continue
            entry = self._entries[key]
            (entry.hot if tier == HOT else entry.warm).remove(value)
            if not entry.dirty:
                entry.dirty = True
                self._dirty.append(entry)

    def move(self, scope: Scope, old: int, new: int) -> None:
        """A hot leaf at depth ``old`` gave way to one at ``new`` on the same chain."""
        if self._shared_head:
            return  # the head of the path is where it was
        for key in scope.keys:
            entry = self._entries[key]
            entry.hot.move(old, new)
            if not entry.dirty:
                entry.dirty = True
                self._dirty.append(entry)

    def proved(self, scope: Scope, age: int) -> None:
        """A block of this scope is known to be there in this age."""
        for key in scope.keys:
            entry = self._entries.get(key)
            if entry is not None:
                entry.seen = age

    def doubted(self, age: int) -> frozenset[PrefixKey]:
        """Prefixes of which no block has been shown to be there in this age."""
        return frozenset(entry.key for entry in self._entries.values() if entry.seen < age)

    def purge(self) -> None:
        """All is gone at once; the next drain says so in one record, whatever was known."""
        self._entries.clear()
        self._dirty.clear()
        self._held.clear()
        self._announced = 0
        self._purged = True

    def drain(self, now: float) -> list[KvEvent]:
        """The records that are due. Growth waits until 100 ms after the prefix's last record;
        everything else is due at once (C9)."""
        events: list[KvEvent] = []
        if self._purged:
            self._purged = False
            events.append(KvEvent(action=KvAction.PURGED))
        while self._held and self._held[0][0] <= now:
            entry = heappop(self._held)[2]
            entry.held = False
            if not entry.dirty:
                entry.dirty = True
                self._dirty.append(entry)
        dirty, self._dirty = self._dirty, []
        for entry in dirty:
            entry.dirty = False
            event = self._difference(entry, now)
            if event is not None:
                events.append(event)
        return events

    def next_due(self, now: float) -> float | None:
        """When :meth:`drain` has something to do; None while nothing is open."""
        if self._dirty or self._purged:
            return now
        return self._held[0][0] if self._held else None

    def snapshot(self) -> list[tuple[PrefixKey, int, bool]]:
        """(key, tokens, warm) of every prefix as last said: what a reader of all records knows."""
        return [
            (entry.key, entry.sent_tokens, entry.sent_tier == WARM)
            for entry in self._entries.values()
            if entry.sent_tier
        ]

    def _difference(self, entry: _Entry, now: float) -> KvEvent | None:
        tier = HOT if entry.hot.total else WARM if entry.warm.total else 0
        was = entry.sent_tier
        if not tier:
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            if not was:
                return None
            self._announced -= 1
            entry.sent_tier = 0
            return KvEvent(action=KvAction.EVICTED, prefix=entry.key)
        tokens = self._worth(entry.hot if tier == HOT else entry.warm)
        if tier == was:
            if tokens == entry.sent_tokens:
                return None
            due = entry.sent_at + GROWTH_INTERVAL_S
            if tokens > entry.sent_tokens and now < due:
                if not entry.held:
                    entry.held = True
                    heappush(self._held, (due, next(self._order), entry))
                return None
        elif not was:
            self._announced += 1
        entry.sent_tier = tier
        entry.sent_tokens = tokens
        entry.sent_at = now
        return KvEvent(action=ACTIONS[was, tier], prefix=entry.key, tokens=tokens)

    def _worth(self, bag: DepthBag) -> int:
        value = bag.largest()
        if not self._shared_head:
            return value
        # several completing blocks: only the tokens before the branch are sure to be shared
        return max(1, value >> _BASE_BITS if bag.total == 1 else value & _BASE_MASK)


ACTIONS = {
    (0, HOT): KvAction.CREATED,
    (HOT, HOT): KvAction.CREATED,
    (WARM, HOT): KvAction.RELOADED,
    (0, WARM): KvAction.OFFLOADED,
    (HOT, WARM): KvAction.OFFLOADED,
    (WARM, WARM): KvAction.OFFLOADED,
}
"""Tier last said, tier now: the record (decisions C11, C13, J17)."""
