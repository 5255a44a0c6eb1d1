"""The composite score of Tier 4: which holder of a prefix is worth the request. No waiting here.

S0 "Overlap scoring" gives the formula, decisions C2-C7 its denominators and guards:

    score = overlap_weight * (tokens / most tokens) * tier weight
          + load_weight    * (1 - in flight / most in flight)
          + health_weight  * success rate

Only backends that hold the prefix have a score at all. One passes if its tier-weighted overlap is
at least ``min_overlap_threshold`` and it is not over the load bound; the best one decides if its
score is over 0.3.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from continuum_router.backends.holding import Holding, Tier
from continuum_router.backends.pool import Backend
from continuum_router.routing.load_bound import Crowd, LoadBound
from continuum_shared.logs import fields
from continuum_shared.prefix_key import PrefixKey

log = logging.getLogger("continuum_router.routing")

SCORE_THRESHOLD = 0.3
"""S0 DEFAULT_SCORER_THRESHOLD: the best composite score must be greater."""

MAX_SNAPSHOTS = 4096
"""Prefixes that keep a snapshot of the loads at one time."""


class ScoringValues(Protocol):
    """The section ``kv_cache_index.scoring``, by shape."""

    @property
    def overlap_weight(self) -> float: ...
    @property
    def load_weight(self) -> float: ...
    @property
    def health_weight(self) -> float: ...
    @property
    def min_overlap_threshold(self) -> float: ...
    @property
    def gpu_tier_weight(self) -> float: ...
    @property
    def storage_tier_weight(self) -> float: ...
    @property
    def holder_load_bound(self) -> float | None: ...
    @property
    def holder_load_floor(self) -> int: ...
    @property
    def load_snapshot_ms(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The holder that won, its composite score (0 to 1) and what it holds."""

    backend: Backend
    score: float
    holding: Holding


class KvScorer:
    """Scores the holders among the candidates. Its values are fixed and logged once at INFO.

    ``min_tokens``: a backend with fewer resident tokens counts as no holder (decisions C5).
    """

    def __init__(self, scoring: ScoringValues, *, min_tokens: int = 0) -> None:
        self._overlap_weight = scoring.overlap_weight
        self._load_weight = scoring.load_weight
        self._health_weight = scoring.health_weight
        self._threshold = scoring.min_overlap_threshold
        self._tier_weight = {
            Tier.GPU_HOT: scoring.gpu_tier_weight,
            Tier.STORAGE_WARM: scoring.storage_tier_weight,
        }
        self._bound = (
            None
            if scoring.holder_load_bound is None
            else LoadBound(epsilon=scoring.holder_load_bound, floor=scoring.holder_load_floor)
        )
        self._min_tokens = min_tokens
        self._loads = LoadSnapshots(scoring.load_snapshot_ms / 1000)
        log.info(
            "KV scorer registered",
            extra=fields(
                overlap_weight=scoring.overlap_weight,
                load_weight=scoring.load_weight,
                health_weight=scoring.health_weight,
                min_overlap_threshold=scoring.min_overlap_threshold,
                gpu_tier_weight=scoring.gpu_tier_weight,
                storage_tier_weight=scoring.storage_tier_weight,
                holder_load_bound=scoring.holder_load_bound,
                holder_load_floor=scoring.holder_load_floor,
                load_snapshot_ms=scoring.load_snapshot_ms,
                min_tokens=min_tokens,
            ),
        )

    def best(
        self,
        candidates: Sequence[Backend],
        holdings: Mapping[str, Holding],
        loads: Mapping[str, int],
        success_rate: Callable[[str], float],
        now: float,
        prefix: PrefixKey | None = None,
    ) -> Scored | None:
        """The winning holder, or ``None`` when the strategy has to choose.

        ``prefix`` is what a snapshot of the loads is kept by, if there is to be one.
        ``holdings`` by backend name; names that are no candidate are ignored (user report K16) and
        do not enter the denominators (C3). Equal scores: the earlier candidate wins.
        """
        holders = [
            (backend, holding)
            for backend in candidates
            if (holding := holdings.get(backend.name)) is not None
            and holding.tokens >= self._min_tokens
        ]
        if not holders:
            return None
        most_tokens = max(holding.tokens for _, holding in holders)
        crowd = Crowd(candidates, self._loads.read(prefix, loads, now))
        best: Scored | None = None
        for backend, holding in holders:
            overlap = holding.tokens / most_tokens if most_tokens else 0.0
            overlap *= self._tier_weight[holding.tier]
            if overlap < self._threshold:
                continue
            if self._bound is not None and crowd.over(backend, self._bound):
                continue
            load = crowd.load(backend) / crowd.max_load if crowd.max_load else 0.0
            score = (
                self._overlap_weight * overlap
                + self._load_weight * (1.0 - load)
                + self._health_weight * success_rate(backend.name)
            )
            if score > SCORE_THRESHOLD and (best is None or score > best.score):
                best = Scored(backend=backend, score=score, holding=holding)
        return best


class LoadSnapshots:
    """Loads as they were up to ``max_age`` seconds ago (decisions C6; 0: live, the default).

    One snapshot a prefix, as the source's prepare() takes it together with the index's answer. At
    most :data:`MAX_SNAPSHOTS` are kept, the oldest goes first.
    """

    __slots__ = ("_max_age", "_taken")

    def __init__(self, max_age: float) -> None:
        self._max_age = max_age
        self._taken: OrderedDict[PrefixKey | None, tuple[float, Mapping[str, int]]] = OrderedDict()

    def read(
        self, prefix: PrefixKey | None, loads: Mapping[str, int], now: float
    ) -> Mapping[str, int]:
        """``loads`` itself, or the copy that was taken less than ``max_age`` ago for ``prefix``."""
        if self._max_age <= 0:
            return loads
        taken = self._taken.get(prefix)
        if taken is None or now - taken[0] >= self._max_age:
            taken = self._taken[prefix] = (now, dict(loads))
            self._taken.move_to_end(prefix)
            if len(self._taken) > MAX_SNAPSHOTS:
                self._taken.popitem(last=False)
        return taken[1]
