"""Puts the routing side together: the index, the scorers, the configured strategy.

A part of ``assemble``, which alone uses it: state once, selectors from each configuration.
"""

import random
import time
from dataclasses import dataclass, field

from continuum_router.backends.fleet import Fleet
from continuum_router.config.kv_cache_index import (
    KvCacheIndexConfig,
    ScoringConfig,
    ScoringMode,
    TenantScope,
)
from continuum_router.config.root import Config
from continuum_router.config.routing import KeyScope, StrategyName
from continuum_router.kv_index.cost_index import CostKvIndex
from continuum_router.kv_index.index import KvIndex, MemoryKvIndex, NoKvIndex, expose
from continuum_router.kv_index.lookup import IndexLookup
from continuum_router.kv_index.piece_index import PieceIndex, expose_pieces
from continuum_router.providers.key_scope import KeyScoper
from continuum_router.providers.piecer import Piecer
from continuum_router.request import RequestRules
from continuum_router.routing.cost_score import CostScorer
from continuum_router.routing.kv_score import KvScorer
from continuum_router.routing.least_work import LeastWork, WorkBook
from continuum_router.routing.plain_strategies import (
    ConsistentHash,
    LeastLatency,
    Random,
    WeightedRoundRobin,
)
from continuum_router.routing.selector import Selector
from continuum_router.routing.strategies import PrefixAwareHash, RoundRobin, Strategy
from continuum_router.routing.token_ratio import TokenRatios
from continuum_router.routing.work_ledger import WorkLedger
from continuum_shared.metrics import Metrics


@dataclass(slots=True, kw_only=True)
class RoutingState:
    """What outlives a configuration. ``lookup`` and ``scorer`` are of composite mode, ``cost`` is
    of cost mode; all three are absent when the index is off."""

    kv: KvIndex
    lookup: IndexLookup | None
    scorer: KvScorer | None
    cost: CostScorer | None
    ledger: WorkLedger
    round_robin: RoundRobin = field(default_factory=RoundRobin)
    weighted_round_robin: WeightedRoundRobin = field(default_factory=WeightedRoundRobin)

    def forget(self, name: str) -> None:
        """A backend has left the configuration."""
        self.kv.purge(name)
        if isinstance(self.kv, CostKvIndex):
            self.kv.pieces.forget(name)
        self.ledger.forget(name)


def routing_state(section: KvCacheIndexConfig, metrics: Metrics) -> RoutingState:
    """Make the state of this start and register its metrics."""
    ledger = WorkLedger(time.monotonic)
    kv = _index(section)
    if section.enabled:
        expose(kv, metrics)
    cost = lookup = scorer = None
    if isinstance(kv, CostKvIndex):
        expose_pieces(kv.pieces, metrics)
        cost = _cost_scorer(kv.pieces, ledger, section.scoring)
    elif section.enabled:
        max_age = section.scoring.load_snapshot_ms / 1000
        lookup = IndexLookup(kv, metrics, clock=time.monotonic, max_age=max_age)
        scorer = KvScorer(section.scoring, min_tokens=section.min_tokens)
    return RoutingState(kv=kv, lookup=lookup, scorer=scorer, cost=cost, ledger=ledger)


def make_selector(
    config: Config, state: RoutingState, fleet: Fleet, rng: random.Random
) -> Selector:
    """The rules of one configuration."""
    least_work = config.selection_strategy is StrategyName.LEAST_WORK
    return Selector(
        strategy=_strategy(config, state, fleet, rng),
        # Tier 4 needs both: keys of requests, and an index to ask (S0 "activation").
        scorer=state.scorer if config.prefix_routing.enabled else None,
        success_rate=fleet.success_rate,
        cost=state.cost,
        book=WorkBook(state.ledger) if least_work else None,
    )


def make_piecer(config: Config, state: RoutingState, rules: RequestRules) -> Piecer | None:
    """What cuts prompts, in cost mode."""
    if state.cost is None:
        return None
    per_tenant = config.kv_cache_index.scoring.tenant_scope is TenantScope.PER_TENANT
    return Piecer(rules, per_tenant=per_tenant)


def make_key_scoper(config: Config) -> KeyScoper | None:
    """What widens the keys of the ring, unless they are plain."""
    section = config.prefix_routing
    if section.key_scope is KeyScope.SYSTEM:
        return None
    return KeyScoper(section.key_scope, section.max_prefix_length)


def _index(section: KvCacheIndexConfig) -> KvIndex:
    if not section.enabled:
        return NoKvIndex()
    ttl = float(section.entry_ttl_seconds)
    prefixes = MemoryKvIndex(max_entries=section.max_entries, ttl=ttl)
    if section.scoring.mode is ScoringMode.COMPOSITE:
        return prefixes
    return CostKvIndex(prefixes, PieceIndex(max_entries=section.max_entries, ttl=ttl))


def _cost_scorer(pieces: PieceIndex, ledger: WorkLedger, scoring: ScoringConfig) -> CostScorer:
    # The default of composite mode costs hits here (design/routing.md 6.2): only a written one.
    written = "min_overlap_threshold" in scoring.model_fields_set
    return CostScorer(
        scoring,
        index=pieces,
        ledger=ledger,
        ratios=TokenRatios(),
        min_overlap=scoring.min_overlap_threshold if written else 0.0,
    )


def _strategy(config: Config, state: RoutingState, fleet: Fleet, rng: random.Random) -> Strategy:
    """The configured strategy. Those that take turns keep their place over reloads."""
    routing = config.prefix_routing
    match config.selection_strategy:
        case StrategyName.ROUND_ROBIN:
            return state.round_robin
        case StrategyName.WEIGHTED_ROUND_ROBIN:
            return state.weighted_round_robin
        case StrategyName.LEAST_LATENCY:
            return LeastLatency(fleet.latency)
        case StrategyName.RANDOM:
            return Random(rng)
        case StrategyName.CONSISTENT_HASH:
            return ConsistentHash(routing.virtual_nodes)
        case StrategyName.LEAST_WORK:
            return LeastWork(state.ledger)
        case StrategyName.PREFIX_AWARE_HASH:
            return PrefixAwareHash(
                load_factor_epsilon=routing.load_factor_epsilon,
                load_floor=routing.load_floor,
                virtual_nodes=routing.virtual_nodes,
            )
