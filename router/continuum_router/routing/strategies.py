"""The configured ``selection_strategy``: who serves a request when the KV score did not decide.

Strategies are plain objects with one synchronous method. Their own state (a cursor, the rings they
have built) is small, bounded, and survives a reload only where the same object is handed on.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from continuum_router.backends.pieces import Pieces
from continuum_router.backends.pool import Backend
from continuum_router.routing.hash_ring import HashRing, key_point, text_point
from continuum_router.routing.load_bound import Crowd, LoadBound
from continuum_shared.prefix_key import PrefixKey

MAX_RINGS = 256
MAX_CURSORS = 1024


class Rule(StrEnum):
    """Which rule placed a request: the first word of ``x-continuum-route`` (decisions J7)."""

    KV_AWARE = "kv_aware"
    PREFIX_HASH = "prefix_hash"
    OVERFLOW = "overflow"
    FALLBACK = "fallback"
    ROUND_ROBIN = "round_robin"
    WEIGHTED_ROUND_ROBIN = "weighted_round_robin"
    LEAST_LATENCY = "least_latency"
    RANDOM = "random"
    CONSISTENT_HASH = "consistent_hash"
    LEAST_WORK = "least_work"

    @property
    def by_prefix(self) -> bool:
        """Whether the prefix hash chose the place (gauge of decisions A13)."""
        return self is Rule.PREFIX_HASH or self is Rule.OVERFLOW


@dataclass(slots=True, kw_only=True)
class Ask:
    """What a selection needs to know of one request. Read-only; not frozen, because that costs as
    much as the choice, once a request.

    ``prefix`` is the key that Tier 1 hashes (``None``: none). ``ring_members`` are the configured
    backends of the model, ``candidates`` those of them that may be used now, both in configuration
    order (decisions A11); hand the pool's own tuples on, rings are cached by them. ``loads`` gives
    attempts in flight by name; names it lacks have 0. ``retry`` marks a second selection for the
    same request. ``client`` is who asks: the id of its key, else its address. ``pieces`` are what
    cost mode decides by, ``size`` the bytes of the request.
    """

    model: str
    prefix: PrefixKey | None
    candidates: Sequence[Backend]
    ring_members: Sequence[Backend]
    loads: Mapping[str, int]
    retry: bool = False
    client: str | None = None
    pieces: Pieces | None = None
    size: int = 0


@dataclass(slots=True, kw_only=True)
class Pick:
    """A strategy's answer. Read-only, see :class:`Ask`."""

    backend: Backend
    rule: Rule


class Strategy(Protocol):
    """Chooses one of ``ask.candidates``; ``None`` only when there is none."""

    def pick(self, ask: Ask) -> Pick | None:
        """Choose. Plain and synchronous: needs no event loop."""


class RoundRobin:
    """One after the other, for each model on its own.

    A retry is answered without moving the cursor: a dead backend would otherwise push every
    request's first try onto the same neighbour.
    """

    def __init__(self) -> None:
        self._cursors: OrderedDict[str, int] = OrderedDict()

    def pick(self, ask: Ask) -> Pick | None:
        """The next candidate of this model."""
        if not ask.candidates:
            return None
        cursor = self._cursors.get(ask.model, 0)
        if not ask.retry:
            # Model names come from clients, so the oldest cursors go when there are too many.
            self._cursors[ask.model] = cursor + 1
            self._cursors.move_to_end(ask.model)
            if len(self._cursors) > MAX_CURSORS:
                self._cursors.popitem(last=False)
        backend = ask.candidates[cursor % len(ask.candidates)]
        return Pick(backend=backend, rule=Rule.ROUND_ROBIN)


class PrefixAwareHash:
    """Tier 1: consistent hashing with bounded loads (S0 "CHWBL", decisions A8-A13)."""

    def __init__(self, *, load_factor_epsilon: float, load_floor: int, virtual_nodes: int) -> None:
        self._bound = LoadBound(epsilon=load_factor_epsilon, floor=load_floor)
        self._rings = RingCache(virtual_nodes)

    def pick(self, ask: Ask) -> Pick | None:
        """The owner of the prefix, or the next below its bound; without a key the model's owner.

        A backend that is passed over because it is not a candidate leaves the label at
        ``prefix_hash``; only one that is passed over for its load makes it ``overflow`` (A11). When
        all are over their bound the owner serves, to keep locality (S0 "routing labels").
        """
        if not ask.candidates:
            return None
        ring = self._rings.ring(ask.ring_members)
        backend = self._unhindered(ask, ring)
        if backend is not None:
            return Pick(backend=backend, rule=Rule.PREFIX_HASH)
        usable = {backend.name: backend for backend in ask.candidates}
        if ask.prefix is None:
            for name in ring.walk(text_point(ask.model)):
                if name in usable:
                    return Pick(backend=usable[name], rule=Rule.FALLBACK)
            return Pick(backend=ask.candidates[0], rule=Rule.FALLBACK)
        crowd = Crowd(ask.candidates, ask.loads)
        owner: Backend | None = None
        for name in ring.walk(key_point(ask.prefix)):
            backend = usable.get(name)
            if backend is None:
                continue
            if not crowd.over(backend, self._bound):
                rule = Rule.PREFIX_HASH if owner is None else Rule.OVERFLOW
                return Pick(backend=backend, rule=rule)
            owner = owner or backend
        # No candidate is on the ring only when all that are left have weight 0.
        return Pick(backend=owner or ask.candidates[0], rule=Rule.PREFIX_HASH)

    def _unhindered(self, ask: Ask, ring: HashRing) -> Backend | None:
        """The owner in the ordinary case: everybody is fit, and it is below its bound. One pass."""
        if ask.prefix is None or ask.candidates is not ask.ring_members:
            return None
        first = ring.owner(int.from_bytes(ask.prefix[:8], "big"))  # key_point
        return None if first is None else self._bound.below(first, ask.candidates, ask.loads)


class RingCache:
    """Rings by their members; at most :data:`MAX_RINGS`, the least recently used goes first."""

    def __init__(self, virtual_nodes: int) -> None:
        self._virtual_nodes = virtual_nodes
        self._rings: OrderedDict[tuple[tuple[str, float], ...], HashRing] = OrderedDict()
        self._last: tuple[Sequence[Backend], HashRing] | None = None

    def ring(self, members: Sequence[Backend]) -> HashRing:
        """The ring over ``members``; built when it is asked for the first time."""
        if self._last is not None and self._last[0] is members:
            return self._last[1]
        key = tuple((backend.name, backend.weight) for backend in members)
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = HashRing(key, self._virtual_nodes)
            if len(self._rings) > MAX_RINGS:
                self._rings.popitem(last=False)
        else:
            self._rings.move_to_end(key)
        # The commonest case by far is one set of members; only a tuple cannot change under us.
        if isinstance(members, tuple):
            self._last = (members, ring)
        return ring
