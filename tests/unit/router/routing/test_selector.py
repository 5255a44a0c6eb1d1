import asyncio

import pytest

from continuum_router.backends.holding import Holding, Tier
from continuum_router.config.kv_cache_index import ScoringConfig
from continuum_router.routing.hash_ring import HashRing, key_point
from continuum_router.routing.kv_score import KvScorer
from continuum_router.routing.selector import Choice, RoutingMetrics, Selector
from continuum_router.routing.strategies import PrefixAwareHash, RoundRobin, Rule
from continuum_shared.metrics import Metrics
from support.backends import ask, backends, prefix

ABC = backends("a", "b", "c")
KEY = prefix("system prompt")
ORDER = list(HashRing([(b.name, 1) for b in ABC], 150).walk(key_point(KEY)))


def selector(*, strategy=None, scoring=True):
    return Selector(
        strategy=strategy or RoundRobin(),
        scorer=KvScorer(ScoringConfig()) if scoring else None,
        success_rate=lambda name: 1.0,
    )


def hashing():
    return PrefixAwareHash(load_factor_epsilon=0.25, load_floor=1, virtual_nodes=150)


def held(tokens=64, tier=Tier.GPU_HOT):
    return Holding(tokens=tokens, tier=tier)


def test_a_holder_comes_before_the_strategy():
    choice = selector().select(ask(ABC, key=KEY), holdings={"c": held(80)}, now=0.0)
    assert choice == Choice(
        backend=ABC[2],
        rule=Rule.KV_AWARE,
        tier=Tier.GPU_HOT,
        score=pytest.approx(1.0),
        held=80,
        scored=True,
    )
    assert choice.route_header() == "kv_aware; tier=gpu_hot; score=1.000; held=80"


def test_without_a_holder_the_strategy_chooses_and_the_scorer_has_run():
    choice = selector().select(ask(ABC, key=KEY), holdings={}, now=0.0)
    assert choice == Choice(backend=ABC[0], rule=Rule.ROUND_ROBIN, scored=True)
    assert choice.route_header() == "round_robin"


@pytest.mark.parametrize(
    ("scoring", "key", "holdings"),
    [
        pytest.param(False, KEY, {"c": held()}, id="no scorer"),
        pytest.param(True, None, {"c": held()}, id="no key"),
        pytest.param(True, KEY, None, id="index not asked"),
    ],
)
def test_the_scorer_does_not_run(scoring, key, holdings):
    choice = selector(scoring=scoring).select(ask(ABC, key=key), holdings=holdings, now=0.0)
    assert choice == Choice(backend=ABC[0], rule=Rule.ROUND_ROBIN, scored=False)


def test_holders_that_are_all_over_their_bound_leave_it_to_the_strategy():
    request = ask(ABC, key=KEY, loads={"c": 9})
    choice = selector().select(request, holdings={"c": held()}, now=0.0)
    assert (choice.rule, choice.scored) == (Rule.ROUND_ROBIN, True)


def test_nobody_to_choose():
    chosen = selector().select(ask(ABC, key=KEY, candidates=()), holdings={"a": held()}, now=0.0)
    assert chosen is None


def test_a_stranger_in_the_index_is_no_error():
    # user report K16
    choice = selector().select(ask(ABC, key=KEY), holdings={"gone": held()}, now=0.0)
    assert choice.backend.name == "a"


class TestTried:
    def test_an_untried_backend_is_preferred_by_the_strategy(self):
        chooser = selector(strategy=hashing(), scoring=False)
        choice = chooser.select(ask(ABC, key=KEY), holdings=None, now=0.0, tried={ORDER[0]})
        assert (choice.backend.name, choice.rule) == (ORDER[1], Rule.PREFIX_HASH)

    def test_and_by_the_scorer(self):
        holdings = {"a": held(100), "b": held(90)}
        chosen = selector().select(ask(ABC, key=KEY), holdings=holdings, now=0.0, tried=["a"])
        assert chosen.backend.name == "b"

    def test_when_all_were_tried_all_are_open_again(self):
        chooser = selector(strategy=hashing(), scoring=False)
        choice = chooser.select(ask(ABC, key=KEY), holdings=None, now=0.0, tried=set("abc"))
        assert choice.backend.name == ORDER[0]

    def test_a_retry_leaves_the_round_robin_cursor_alone(self):
        chooser = selector(scoring=False)
        firsts = []
        for _ in range(3):
            first = chooser.select(ask(ABC), holdings=None, now=0.0)
            firsts.append(first.backend.name)
            again = chooser.select(ask(ABC), holdings=None, now=0.0, tried=[first.backend.name])
            assert again.backend.name != first.backend.name
        assert firsts == ["a", "b", "c"]


class TestMetrics:
    PREFIX = "continuum_prefix_routing_requests_total"
    DECISIONS = "continuum_kv_index_routing_decisions_total"
    SCORE = "continuum_kv_index_overlap_score"

    def counted(self, *choices):
        metrics = Metrics()
        routing = RoutingMetrics(metrics)
        for choice in choices:
            routing.count(choice)
        found = {}
        for family in metrics.registry.collect():
            for sample in family.samples:
                if sample.value and not sample.name.endswith("_bucket"):
                    labels = "/".join(sample.labels.values())
                    found[(sample.name, labels)] = sample.value
        return found

    def test_a_kv_aware_choice(self):
        choice = Choice(
            backend=ABC[0],
            rule=Rule.KV_AWARE,
            tier=Tier.STORAGE_WARM,
            score=0.75,
            held=9,
            scored=True,
        )
        assert self.counted(choice, choice) == {
            (self.DECISIONS, "kv_aware/storage_warm"): 2,
            (self.SCORE + "_count", ""): 2,
            (self.SCORE + "_sum", ""): 1.5,
        }

    @pytest.mark.parametrize("rule", [Rule.PREFIX_HASH, Rule.OVERFLOW, Rule.FALLBACK])
    def test_a_prefix_choice_without_the_scorer(self, rule):
        choice = Choice(backend=ABC[0], rule=rule)
        assert self.counted(choice) == {(self.PREFIX, rule.value): 1}

    def test_a_prefix_choice_after_the_scorer(self):
        choice = Choice(backend=ABC[0], rule=Rule.OVERFLOW, scored=True)
        assert self.counted(choice) == {
            (self.PREFIX, "overflow"): 1,
            (self.DECISIONS, "fallback/none"): 1,
        }

    def test_another_strategy_after_the_scorer(self):
        choice = Choice(backend=ABC[0], rule=Rule.ROUND_ROBIN, scored=True)
        assert self.counted(choice) == {(self.DECISIONS, "fallback/none"): 1}

    def test_another_strategy_alone(self):
        assert self.counted(Choice(backend=ABC[0], rule=Rule.ROUND_ROBIN)) == {}

    def test_a_scripted_run_is_counted_exactly(self):
        metrics = Metrics()
        routing = RoutingMetrics(metrics)
        chooser = selector(strategy=hashing())
        loads = {ORDER[0]: 9}
        script = [
            (ask(ABC, key=KEY), {"b": held()}),  # kv_aware
            (ask(ABC, key=KEY), {"b": held(tier=Tier.STORAGE_WARM)}),  # kv_aware, warm
            (ask(ABC, key=KEY), {}),  # fallback, prefix_hash
            (ask(ABC, key=KEY, loads=loads), {}),  # fallback, overflow
            (ask(ABC), {"b": held()}),  # no key: Tier 1 fallback only
            (ask(ABC, key=KEY), None),  # own salt: prefix_hash only
        ]
        for request, holdings in script:
            routing.count(chooser.select(request, holdings=holdings, now=0.0))

        def value(name, **labels):
            return metrics.registry.get_sample_value(name, labels)

        assert value(self.PREFIX, strategy="prefix_hash") == 2
        assert value(self.PREFIX, strategy="overflow") == 1
        assert value(self.PREFIX, strategy="fallback") == 1
        assert value(self.DECISIONS, decision="kv_aware", tier="gpu_hot") == 1
        assert value(self.DECISIONS, decision="kv_aware", tier="storage_warm") == 1
        assert value(self.DECISIONS, decision="fallback", tier="none") == 2
        assert value(self.SCORE + "_count") == 2
        assert value(self.SCORE + "_sum") == pytest.approx(1.76)


def test_selecting_needs_no_event_loop():
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert selector().select(ask(ABC, key=KEY), holdings={"b": held()}, now=0.0) is not None
