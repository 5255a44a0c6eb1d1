import random

import pytest

from continuum_router.assemble_routing import (
    make_key_scoper,
    make_piecer,
    make_selector,
    routing_state,
)
from continuum_router.backends.fleet import Fleet
from continuum_router.config.root import Config
from continuum_router.kv_index.cost_index import CostKvIndex
from continuum_router.kv_index.index import MemoryKvIndex, NoKvIndex
from continuum_router.request import RequestRules
from continuum_router.routing.strategies import Rule
from continuum_shared.metrics import Metrics
from support.backends import ask, backends
from support.config_files import good_router
from support.cost_bench import prompt

AB = backends("a", "b")


def put_together(text):
    config: Config = good_router(text)
    metrics = Metrics()
    state = routing_state(config.kv_cache_index, metrics)
    selector = make_selector(config, state, Fleet(metrics, ("a", "b")), random.Random(1))
    return state, selector, make_piecer(config, state, RequestRules())


STRATEGIES = {
    "RoundRobin": Rule.ROUND_ROBIN,
    "WeightedRoundRobin": Rule.WEIGHTED_ROUND_ROBIN,
    "LeastLatency": Rule.LEAST_LATENCY,
    "Random": Rule.RANDOM,
    "ConsistentHash": Rule.CONSISTENT_HASH,
    "LeastWork": Rule.LEAST_WORK,
    "PrefixAwareHash": Rule.FALLBACK,
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy(name):
    state, selector, piecer = put_together(f"selection_strategy: {name}")
    choice = selector.select(ask(AB), holdings=None, now=0.0)
    assert choice.rule is STRATEGIES[name]
    assert (choice.ticket is not None) is (name == "LeastWork")
    assert isinstance(state.kv, NoKvIndex)
    assert (state.lookup, state.scorer, state.cost, piecer) == (None, None, None, None)


def test_composite_mode():
    state, _, piecer = put_together("kv_cache_index: {enabled: true}")
    assert isinstance(state.kv, MemoryKvIndex)
    assert state.lookup is not None
    assert state.scorer is not None
    assert (state.cost, piecer) == (None, None)


def test_cost_mode_needs_nothing_but_the_index():
    state, selector, piecer = put_together("kv_cache_index: {enabled: true, scoring: {mode: cost}}")
    assert isinstance(state.kv, CostKvIndex)
    assert (state.lookup, state.scorer) == (None, None)
    assert piecer is not None
    choice = selector.select(ask(AB, pieces=prompt("x" * 9)), holdings=None, now=0.0)
    assert choice.rule is Rule.LEAST_WORK


@pytest.mark.parametrize(("written", "held"), [("", 0.05), (", min_overlap_threshold: 0.3", 0.0)])
def test_the_threshold_counts_only_when_it_is_written(written, held):
    state, selector, _ = put_together(
        f"kv_cache_index: {{enabled: true, scoring: {{mode: cost{written}}}}}"
    )
    state.kv.pieces.sent("b", prompt("x" * 4), 0.0)
    choice = selector.select(ask(AB, pieces=prompt("x" * 42)), holdings=None, now=0.0)
    assert (choice.score or 0.0) == pytest.approx(held)


def test_a_backend_that_leaves_is_forgotten_everywhere():
    state, selector, _ = put_together("kv_cache_index: {enabled: true, scoring: {mode: cost}}")
    choice = selector.select(ask(AB, pieces=prompt("x" * 9)), holdings=None, now=0.0)
    choice.ticket.begun()
    name = choice.backend.name
    lane = state.ledger.lane(name)
    state.forget(name)
    assert state.kv.pieces.names() == ()
    assert state.ledger.lane(name) is not lane
    choice.ticket.first_token()
    choice.ticket.ended()
    assert (lane.context, state.kv.pieces.stats().pairs) == (0.0, 0)


@pytest.mark.parametrize("scope", ["system", "system_and_first_user", "session"])
def test_key_scopes(scope):
    config = good_router(f"prefix_routing: {{enabled: true, key_scope: {scope}}}")
    assert (make_key_scoper(config) is None) is (scope == "system")
