"""Which backend holds which prefix: ``prefix key -> {backend: Holding}``, from the engines' events.

S0 "Index structure", decisions C1, C28, C29, C33, C36. Everything is synchronous and touched from
one thread, so each call is atomic: a reader sees an index before or after a swap, never between.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from continuum_router.backends.holding import Holding, Tier
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey

NOTHING: Mapping[str, Holding] = MappingProxyType({})
"""The answer for a prefix that nobody holds."""

EVICTED_SHARE = 10
"""One in so many prefixes goes when the index is full (S0 "oldest 10 %")."""

SWEPT_AT_ONCE = 2000
"""Prefixes that one call of ``expire`` looks at: a millisecond or so of the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """Counts: prefixes and (prefix, backend) entries now; hits, evictions and expiries since start.

    A hit is a lookup that found at least one backend (C36). An eviction is a prefix that went for
    want of room, an expiry an entry whose time was up.
    """

    prefix_count: int
    entry_count: int
    total_hits: int
    total_evictions: int
    total_expired: int


class KvIndex(Protocol):
    """What routing and the event consumers need of an index. ``now`` is monotonic seconds."""

    def holdings(self, prefix: PrefixKey, now: float) -> Mapping[str, Holding]:
        """Who holds ``prefix``, by backend name; entries whose time is up are not among them."""

    def holding(self, backend: str, prefix: PrefixKey, now: float) -> Holding | None:
        """What one backend holds; not a lookup in the sense of the statistics."""

    def set(
        self, backend: str, prefix: PrefixKey, tokens: int | None, tier: Tier, now: float
    ) -> None:
        """Set (not add) what ``backend`` holds. ``tokens`` absent: the known count, else 1 (C8)."""

    def remove(self, backend: str, prefix: PrefixKey) -> None:
        """``backend`` holds ``prefix`` no longer; unknown is fine."""

    def purge(self, backend: str) -> None:
        """``backend`` holds nothing any more."""

    def swap(
        self,
        backend: str,
        records: Mapping[PrefixKey, tuple[int | None, Tier]],
        now: float,
    ) -> None:
        """Replace everything known about ``backend`` by ``records`` in one step (C28)."""

    def refresh(self, backend: str, prefix: PrefixKey, now: float) -> None:
        """A request with ``prefix`` went to ``backend``: lengthen its entry, if any (C29)."""

    def expire(self, now: float) -> int:
        """Drop entries whose time is up; how many. Each call looks at a bounded part, in turn."""

    def clear(self) -> int:
        """Drop everything; how many entries there were (C35)."""

    def stats(self) -> IndexStats:
        """Present counts."""


class NoKvIndex:
    """The index that is switched off: knows nothing, takes nothing."""

    def holdings(self, prefix: PrefixKey, now: float) -> Mapping[str, Holding]:  # noqa: ARG002
        """Nobody."""
        return NOTHING

    def holding(self, backend: str, prefix: PrefixKey, now: float) -> Holding | None:  # noqa: ARG002
        """Nothing."""
        return None

    def set(
        self, backend: str, prefix: PrefixKey, tokens: int | None, tier: Tier, now: float
    ) -> None:
        """Ignored."""

    def remove(self, backend: str, prefix: PrefixKey) -> None:
        """Ignored."""

    def purge(self, backend: str) -> None:
        """Ignored."""

    def swap(
        self,
        backend: str,
        records: Mapping[PrefixKey, tuple[int | None, Tier]],
        now: float,
    ) -> None:
        """Ignored."""

    def refresh(self, backend: str, prefix: PrefixKey, now: float) -> None:
        """Ignored."""

    def expire(self, now: float) -> int:  # noqa: ARG002
        """Nothing to drop."""
        return 0

    def clear(self) -> int:
        """Nothing to drop."""
        return 0

    def stats(self) -> IndexStats:
        """All zero."""
        return IndexStats(
            prefix_count=0, entry_count=0, total_hits=0, total_evictions=0, total_expired=0
        )


class MemoryKvIndex:
    """The index in this process.

    ``max_entries`` bounds the prefixes: when a new one finds it full, the least recently used tenth
    goes. An entry lives ``ttl`` seconds from its last event, re-announcement or use; one that has
    outlived that is dropped by the lookup that meets it or by :meth:`expire`.
    """

    def __init__(self, *, max_entries: int, ttl: float) -> None:
        self._max_entries = max_entries
        self._ttl = ttl
        # Least recently used prefix first. Values: what a backend holds, and until when.
        self._prefixes: OrderedDict[PrefixKey, dict[str, tuple[Holding, float]]] = OrderedDict()
        self._of_backend: dict[str, set[PrefixKey]] = {}
        self._to_sweep: list[PrefixKey] = []
        self._entries = 0
        self._hits = 0
        self._evictions = 0
        self._expired = 0

    def holdings(self, prefix: PrefixKey, now: float) -> Mapping[str, Holding]:
        """See :class:`KvIndex`. Marks the prefix as used."""
        entry = self._prefixes.get(prefix)
        if entry is None:
            return NOTHING
        found = {backend: held for backend, (held, until) in entry.items() if until > now}
        if len(found) < len(entry):
            self._expire_entry(prefix, entry, now)
        if not found:
            return NOTHING
        self._prefixes.move_to_end(prefix)
        self._hits += 1
        return found

    def prefixes_of(self, backend: str) -> frozenset[PrefixKey]:
        """Every prefix that a backend has an entry for."""
        return frozenset(self._of_backend.get(backend, ()))

    def holding(self, backend: str, prefix: PrefixKey, now: float) -> Holding | None:
        """See :class:`KvIndex`."""
        found = self._prefixes.get(prefix, {}).get(backend)
        return found[0] if found is not None and found[1] > now else None

    def set(
        self, backend: str, prefix: PrefixKey, tokens: int | None, tier: Tier, now: float
    ) -> None:
        """See :class:`KvIndex`. Marks the prefix as used."""
        entry = self._prefixes.get(prefix)
        if entry is None:
            if len(self._prefixes) >= self._max_entries:
                self._make_room()
            entry = self._prefixes[prefix] = {}
        else:
            self._prefixes.move_to_end(prefix)
        known = entry.get(backend)
        if known is None:
            self._entries += 1
            self._of_backend.setdefault(backend, set()).add(prefix)
        if tokens is None:
            tokens = known[0].tokens if known is not None and known[1] > now else 1
        entry[backend] = (Holding(tokens=tokens, tier=tier), now + self._ttl)

    def remove(self, backend: str, prefix: PrefixKey) -> None:
        """See :class:`KvIndex`."""
        entry = self._prefixes.get(prefix)
        if entry is not None and backend in entry:
            self._drop(backend, prefix, entry)

    def purge(self, backend: str) -> None:
        """See :class:`KvIndex`."""
        for prefix in list(self._of_backend.get(backend, ())):
            self._drop(backend, prefix, self._prefixes[prefix])

    def swap(
        self,
        backend: str,
        records: Mapping[PrefixKey, tuple[int | None, Tier]],
        now: float,
    ) -> None:
        """See :class:`KvIndex`."""
        for prefix in [p for p in self._of_backend.get(backend, ()) if p not in records]:
            self._drop(backend, prefix, self._prefixes[prefix])
        for prefix, (tokens, tier) in records.items():
            self.set(backend, prefix, tokens, tier, now)

    def refresh(self, backend: str, prefix: PrefixKey, now: float) -> None:
        """See :class:`KvIndex`."""
        entry = self._prefixes.get(prefix)
        if entry is not None:
            found = entry.get(backend)
            if found is not None and found[1] > now:
                entry[backend] = (found[0], now + self._ttl)

    def expire(self, now: float) -> int:
        """See :class:`KvIndex`."""
        if not self._to_sweep:
            self._to_sweep = list(self._prefixes)
        before = self._entries
        for _ in range(min(SWEPT_AT_ONCE, len(self._to_sweep))):
            prefix = self._to_sweep.pop()
            entry = self._prefixes.get(prefix)
            if entry is not None:
                self._expire_entry(prefix, entry, now)
        return before - self._entries

    def clear(self) -> int:
        """See :class:`KvIndex`."""
        gone = self._entries
        self._to_sweep = []
        self._prefixes.clear()
        self._of_backend.clear()
        self._entries = 0
        return gone

    def stats(self) -> IndexStats:
        """See :class:`KvIndex`. Entries whose time is up count until somebody meets them."""
        return IndexStats(
            prefix_count=len(self._prefixes),
            entry_count=self._entries,
            total_hits=self._hits,
            total_evictions=self._evictions,
            total_expired=self._expired,
        )

    def _make_room(self) -> None:
        """Drop the least recently used tenth, at least one prefix."""
        for _ in range(max(1, self._max_entries // EVICTED_SHARE)):
            prefix, entry = next(iter(self._prefixes.items()))
            for backend in list(entry):
                self._drop(backend, prefix, entry)
            self._evictions += 1

    def _expire_entry(
        self, prefix: PrefixKey, entry: dict[str, tuple[Holding, float]], now: float
    ) -> None:
        for backend in [name for name, (_, until) in entry.items() if until <= now]:
            self._drop(backend, prefix, entry)
            self._expired += 1

    def _drop(
        self, backend: str, prefix: PrefixKey, entry: dict[str, tuple[Holding, float]]
    ) -> None:
        """Forget one existing entry in all three places."""
        del entry[backend]
        if not entry:
            del self._prefixes[prefix]
        mine = self._of_backend[backend]
        mine.discard(prefix)
        if not mine:
            del self._of_backend[backend]
        self._entries -= 1


def expose(index: KvIndex, metrics: Metrics) -> None:
    """Register the index's own families, read at scrape time (decisions G19)."""

    def entries() -> Iterable[tuple[tuple[str, ...], float]]:
        return [((), index.stats().entry_count)]

    def prefixes() -> Iterable[tuple[tuple[str, ...], float]]:
        return [((), index.stats().prefix_count)]

    def evictions() -> Iterable[tuple[tuple[str, ...], float]]:
        return [((), index.stats().total_evictions)]

    metrics.gauge_fn("continuum_kv_index_entries", "Entries (prefix, backend).", (), entries)
    metrics.gauge_fn("continuum_kv_index_prefixes", "Prefixes with an entry.", (), prefixes)
    metrics.counter_fn(
        "continuum_kv_index_evictions_total", "Prefixes dropped for want of room.", (), evictions
    )
