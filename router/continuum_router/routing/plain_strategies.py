"""The strategies of the source that look neither at prefixes nor at caches (decisions A15).

S0 names them only; decisions A15 says what they mean. As everywhere in this package, randomness,
latencies and loads are handed in.
"""

import random
from collections import OrderedDict
from collections.abc import Callable

from continuum_router.backends.pool import Backend
from continuum_router.routing.hash_ring import text_point
from continuum_router.routing.strategies import MAX_CURSORS, Ask, Pick, RingCache, Rule


class WeightedRoundRobin:
    """Smooth weighted round robin, for each model on its own.

    In every round each backend gains its weight, the one with most serves and pays the sum. So a
    share follows the weights and turns are spread out instead of bunched. Weight 0 gets nothing
    while another backend is left. A retry is answered without a turn.
    """

    def __init__(self) -> None:
        self._credits: OrderedDict[str, dict[str, float]] = OrderedDict()

    def pick(self, ask: Ask) -> Pick | None:
        """Whoever's turn it is."""
        if not ask.candidates:
            return None
        held = self._credits.get(ask.model)
        if held is None:
            held = {}
        total = sum(backend.weight for backend in ask.candidates)
        if total <= 0:
            return Pick(backend=ask.candidates[0], rule=Rule.WEIGHTED_ROUND_ROBIN)
        after = {b.name: held.get(b.name, 0.0) + b.weight for b in ask.candidates}
        entitled = [backend for backend in ask.candidates if backend.weight > 0]
        best = max(entitled, key=lambda backend: after[backend.name])
        if not ask.retry:
            after[best.name] -= total
            # Model names come from clients, so the oldest go when there are too many.
            self._credits[ask.model] = after
            self._credits.move_to_end(ask.model)
            if len(self._credits) > MAX_CURSORS:
                self._credits.popitem(last=False)
        return Pick(backend=best, rule=Rule.WEIGHTED_ROUND_ROBIN)


class LeastLatency:
    """The shortest average time to headers; who has none yet comes first, ties go by load.

    ``latency`` gives a backend's average in seconds by name, ``None`` before its first answer.
    """

    def __init__(self, latency: Callable[[str], float | None]) -> None:
        self._latency = latency

    def pick(self, ask: Ask) -> Pick | None:
        """The fastest; of equals the one with fewest in flight, then the earlier one."""
        if not ask.candidates:
            return None
        best = min(ask.candidates, key=lambda b: (self._latency(b.name) or 0.0, _load(ask, b)))
        return Pick(backend=best, rule=Rule.LEAST_LATENCY)


class Random:
    """By chance, in the proportion of the weights."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def pick(self, ask: Ask) -> Pick | None:
        """Draw one."""
        if not ask.candidates:
            return None
        weights = [backend.weight for backend in ask.candidates]
        if sum(weights) <= 0:
            return Pick(backend=self._rng.choice(ask.candidates), rule=Rule.RANDOM)
        (best,) = self._rng.choices(ask.candidates, weights)
        return Pick(backend=best, rule=Rule.RANDOM)


class ConsistentHash:
    """A client stays with its backend: its identity on the ring, without one the model's name.

    There is no bound on load; a backend that cannot serve now is skipped (decisions A11).
    """

    def __init__(self, virtual_nodes: int) -> None:
        self._rings = RingCache(virtual_nodes)

    def pick(self, ask: Ask) -> Pick | None:
        """The first candidate clockwise from the client's point."""
        if not ask.candidates:
            return None
        usable = {backend.name: backend for backend in ask.candidates}
        ring = self._rings.ring(ask.ring_members)
        for name in ring.walk(text_point(ask.client or ask.model)):
            if name in usable:
                return Pick(backend=usable[name], rule=Rule.CONSISTENT_HASH)
        return Pick(backend=ask.candidates[0], rule=Rule.CONSISTENT_HASH)


def _load(ask: Ask, backend: Backend) -> int:
    return ask.loads.get(backend.name, 0)
