"""The index of cost mode as the event consumers see it: records go to both maps.

Events of the wire contract name whole prefixes. The map of prefixes is kept as in composite mode,
so that administrators see the same; what goes from it prunes the pieces below.
"""

from collections.abc import Mapping

from continuum_router.backends.holding import Holding, Tier
from continuum_router.kv_index.index import IndexStats, MemoryKvIndex
from continuum_router.kv_index.piece_index import PieceIndex
from continuum_shared.prefix_key import PrefixKey


class CostKvIndex:
    """A :class:`~continuum_router.kv_index.index.KvIndex`; see there for what each call means."""

    def __init__(self, prefixes: MemoryKvIndex, pieces: PieceIndex) -> None:
        self.pieces = pieces
        self._prefixes = prefixes

    def holdings(self, prefix: PrefixKey, now: float) -> Mapping[str, Holding]:
        """Who has reported the prefix."""
        return self._prefixes.holdings(prefix, now)

    def holding(self, backend: str, prefix: PrefixKey, now: float) -> Holding | None:
        """What one backend has reported."""
        return self._prefixes.holding(backend, prefix, now)

    def set(
        self, backend: str, prefix: PrefixKey, tokens: int | None, tier: Tier, now: float
    ) -> None:
        """The tier reaches the pieces; the longest chain's tokens say nothing about the others."""
        self._prefixes.set(backend, prefix, tokens, tier, now)
        self.pieces.resident(backend, prefix, tier)

    def remove(self, backend: str, prefix: PrefixKey) -> None:
        """The last block has gone, and so has everything below."""
        self._prefixes.remove(backend, prefix)
        self.pieces.evict(backend, prefix)

    def purge(self, backend: str) -> None:
        """Nothing is left."""
        self._prefixes.purge(backend)
        self.pieces.purge(backend)

    def swap(
        self, backend: str, records: Mapping[PrefixKey, tuple[int | None, Tier]], now: float
    ) -> None:
        """What had been reported and is no longer has gone; what never was is not judged."""
        for prefix in self._prefixes.prefixes_of(backend) - records.keys():
            self.pieces.evict(backend, prefix)
        self._prefixes.swap(backend, records, now)
        for prefix, (_, tier) in records.items():
            self.pieces.resident(backend, prefix, tier)

    def refresh(self, backend: str, prefix: PrefixKey, now: float) -> None:
        """The entry lives longer; the pieces have been touched by the attempt itself."""
        self._prefixes.refresh(backend, prefix, now)

    def expire(self, now: float) -> int:
        """Both maps; pieces have times of their own."""
        return self._prefixes.expire(now) + self.pieces.expire(now)

    def clear(self) -> int:
        """Both maps."""
        return self._prefixes.clear() + self.pieces.clear()

    def stats(self) -> IndexStats:
        """Those of the prefixes; the pieces have their own."""
        return self._prefixes.stats()
