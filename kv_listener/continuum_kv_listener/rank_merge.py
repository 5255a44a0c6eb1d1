"""Data-parallel ranks of one backend, told as one (decisions C18).

Ranks keep separate caches and are tracked apart, but a stream has no ranks: a prefix is worth what
its best rank holds (the GPU before lower tiers, then the most tokens) and is gone when the last
rank drops it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from continuum_kv_listener.prefix_ledger import ACTIONS, HOT, WARM
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import PrefixKey

Holding = tuple[int, int]
"""Tier and tokens of a prefix on one rank."""


class Outlet(Protocol):
    """Where records go (``stream.EventStream``)."""

    def publish(self, events: Iterable[KvEvent]) -> None: ...


class Rank(Protocol):
    """What tracks one rank (``pipeline.Pipeline``)."""

    def publish_to(self, outlet: Outlet) -> None: ...

    def flush(self) -> None: ...


class RankMerge:
    """Takes each rank's records and publishes those of the backend."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks
        self._outlet: Outlet | None = None
        self._held: dict[PrefixKey, dict[int, Holding]] = {}
        for number, rank in enumerate(ranks):
            rank.publish_to(RankPort(self, number))

    @property
    def prefixes(self) -> int:
        """How many prefixes are live."""
        return len(self._held)

    def publish_to(self, outlet: Outlet) -> None:
        """Where the backend's records go."""
        self._outlet = outlet

    def take(self, rank: int, events: Sequence[KvEvent]) -> None:
        """Apply one rank's records in their order."""
        records: list[KvEvent] = []
        for event in events:
            if event.action is KvAction.PURGED:
                records.extend(self._purged(rank))
            elif event.prefix is not None:
                records.extend(self._changed(rank, event.prefix, _holding(event)))
        if records and self._outlet is not None:
            self._outlet.publish(records)

    def snapshot(self) -> list[KvEvent]:
        """One record for each live prefix, after everything due was published (decisions J17)."""
        for rank in self._ranks:
            rank.flush()
        return [_record(0, best(held.values()), key) for key, held in self._held.items()]

    def sure(self, doubted: Sequence[frozenset[PrefixKey] | None]) -> Iterator[KvEvent]:
        """The same, of what is not ``doubted`` by its rank; None: nothing of that rank is sure."""
        for key, held in self._held.items():
            sure = [
                holding
                for rank, holding in held.items()
                if (doubts := doubted[rank]) is not None and key not in doubts
            ]
            if sure:
                yield _record(0, best(sure), key)

    def _purged(self, rank: int) -> Iterator[KvEvent]:
        if all(held.keys() <= {rank} for held in self._held.values()):
            self._held.clear()
            yield KvEvent(action=KvAction.PURGED)
            return
        for key in [key for key, held in self._held.items() if rank in held]:
            yield from self._changed(rank, key, None)

    def _changed(self, rank: int, key: PrefixKey, now: Holding | None) -> Iterator[KvEvent]:
        held = self._held.setdefault(key, {})
        before = best(held.values()) if held else None
        if now is None:
            held.pop(rank, None)
        else:
            held[rank] = now
        if not held:
            del self._held[key]
            if before is not None:
                yield KvEvent(action=KvAction.EVICTED, prefix=key)
            return
        after = best(held.values())
        if after != before:
            yield _record(0 if before is None else before[0], after, key)


class RankPort:
    """One rank's way into the merge; an :class:`Outlet`."""

    def __init__(self, merge: RankMerge, rank: int) -> None:
        self._merge = merge
        self._rank = rank

    def publish(self, events: Iterable[KvEvent]) -> None:
        """Tell the backend's stream what changed by these records."""
        self._merge.take(self._rank, list(events))


def best(holdings: Iterable[Holding]) -> Holding:
    """The hottest tier, and the most tokens there."""
    tier, tokens = min((tier, -tokens) for tier, tokens in holdings)
    return tier, -tokens


def _holding(event: KvEvent) -> Holding | None:
    if event.action is KvAction.EVICTED:
        return None
    return (WARM if event.action is KvAction.OFFLOADED else HOT), event.tokens or 1


def _record(before: int, now: Holding, key: PrefixKey) -> KvEvent:
    tier, tokens = now
    return KvEvent(action=ACTIONS[before, tier], prefix=key, tokens=tokens)
