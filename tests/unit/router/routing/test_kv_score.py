import logging

import pytest

from continuum_router.backends.holding import Holding, Tier
from continuum_router.config.kv_cache_index import ScoringConfig
from continuum_router.routing.kv_score import (
    MAX_SNAPSHOTS,
    SCORE_THRESHOLD,
    KvScorer,
    LoadSnapshots,
)
from support.backends import backend, backends, prefix

ABC = backends("a", "b", "c")


def hot(tokens):
    return Holding(tokens=tokens, tier=Tier.GPU_HOT)


def warm(tokens):
    return Holding(tokens=tokens, tier=Tier.STORAGE_WARM)


def best(holdings, *, candidates=ABC, loads=None, rates=None, now=0.0, scorer=None, **values):
    min_tokens = values.pop("min_tokens", 0)
    scorer = scorer or KvScorer(ScoringConfig(**values), min_tokens=min_tokens)
    rates = rates or {}
    return scorer.best(candidates, holdings, loads or {}, lambda n: rates.get(n, 1.0), now)


def outcome(*args, **kwargs):
    won = best(*args, **kwargs)
    return None if won is None else (won.backend.name, pytest.approx(won.score, abs=1e-12))


SCORES = {
    "a sole idle holder has full marks": ({"b": hot(100)}, {}, {}, ("b", 1.0)),
    "overlap is relative to the longest": ({"a": hot(1024), "b": hot(2048)}, {}, {}, ("b", 1.0)),
    "a busier long holder loses to an idle half": (
        # a: .6 + .3 * (1 - 1) + .1 = .7; b: .6 * .7 + .3 + .1 = .82
        {"a": hot(1000), "b": hot(700)},
        {"a": 2},
        {},
        ("b", 0.82),
    ),
    "a warm copy counts less": ({"a": warm(100), "b": hot(100)}, {}, {}, ("b", 1.0)),
    "a lone warm copy": ({"a": warm(100)}, {}, {}, ("a", 0.76)),
    "load is relative to the busiest candidate, holder or not": (
        # .6 + .3 * (1 - 2/4) + .1
        {"a": hot(10)},
        {"a": 2, "c": 4},
        {},
        ("a", 0.85),
    ),
    "success rate": ({"a": hot(10)}, {}, {"a": 0.5}, ("a", 0.95)),
    "everything at once": (
        # a: .6 * .6 * .5 + .3 * (1 - 1/3) + .1 * .2 = .18 + .2 + .02
        {"a": warm(50), "c": hot(100)},
        {"a": 1, "b": 3, "c": 3},
        {"a": 0.2, "c": 0.0},
        # c: .6 + 0 + 0
        ("c", 0.6),
    ),
    "nobody holds it": ({}, {}, {}, None),
}


@pytest.mark.parametrize("case", SCORES, ids=list(SCORES))
def test_the_formula(case):
    holdings, loads, rates, expected = SCORES[case]
    assert outcome(holdings, loads=loads, rates=rates) == expected


def test_an_idle_stranger_is_never_scored():
    # S0: load and health alone (0.4) must not beat the threshold
    assert best({"elsewhere": hot(100)}) is None


def test_a_stranger_with_many_tokens_does_not_hide_the_holders():
    # decisions C3, user report K16
    assert outcome({"gone": hot(10**6), "a": hot(10)}) == ("a", 1.0)


def test_an_unavailable_holder_is_out_of_the_denominators():
    holdings = {"a": hot(1000), "b": hot(100)}
    loads = {"a": 50, "b": 1}
    without_a = (ABC[1], ABC[2])
    # only b counts: overlap 1, load 1/1
    assert outcome(holdings, candidates=without_a, loads=loads) == ("b", 0.7)


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a")])
def test_the_order_of_holders_does_not_matter(order):
    # user report K17
    counts = {"a": 100, "b": 900, "c": 500}
    assert best({name: hot(counts[name]) for name in order}).backend.name == "b"


def test_equal_holders_are_taken_in_configured_order():
    assert best({"c": hot(5), "b": hot(5)}).backend.name == "b"
    assert best({"b": hot(5), "c": hot(5)}).backend.name == "b"


class TestOverlapThreshold:
    def test_at_the_threshold_is_enough(self):
        # decisions C2: >=
        loads = {"a": 1}
        holdings = {"a": hot(1000), "b": hot(300)}
        # a: .6 + 0 + .1 * 0 ; b: .6 * .3 + .3 + .1 * 1
        assert outcome(holdings, loads=loads, rates={"a": -0.5}) == ("b", 0.58)

    def test_below_the_threshold_is_no_holder(self):
        loads = {"a": 1}
        holdings = {"a": hot(1000), "b": hot(299)}
        assert outcome(holdings, loads=loads, rates={"a": -0.5}) == ("a", 0.55)

    def test_a_low_gpu_weight_blocks_everybody(self):
        assert best({"a": hot(100)}, gpu_tier_weight=0.29) is None

    def test_a_low_storage_weight_blocks_warm_copies_only(self):
        assert best({"a": warm(100)}, storage_tier_weight=0.29) is None
        assert best({"a": hot(100)}, storage_tier_weight=0.29) is not None

    def test_no_tokens_at_all_is_ratio_zero(self):
        assert best({"a": hot(0)}) is None
        assert outcome({"a": hot(0)}, min_overlap_threshold=0.0) == ("a", 0.4)


class TestScoreThreshold:
    def test_it_must_be_exceeded(self):
        assert SCORE_THRESHOLD == 0.3
        values = {
            "overlap_weight": 0.0,
            "load_weight": 0.5,
            "health_weight": 0.5,
            "holder_load_bound": None,
        }
        busy = {"a": 1}
        assert best({"a": hot(1)}, loads=busy, rates={"a": 0.6}, **values) is None
        assert best({"a": hot(1)}, loads=busy, rates={"a": 0.61}, **values) is not None


class TestHolderLoadBound:
    def test_a_holder_over_its_bound_is_passed_over(self):
        # decisions C4: total 6, n 3, cap ceil(1.25 * 7 / 3) = 3, floor 4
        assert best({"a": hot(9)}, loads={"a": 4, "b": 1, "c": 1}) is None
        assert best({"a": hot(9)}, loads={"a": 3, "b": 2, "c": 1}) is not None

    def test_the_next_holder_takes_over(self):
        loads = {"a": 6, "b": 0, "c": 0}
        assert best({"a": hot(100), "b": hot(50)}, loads=loads).backend.name == "b"

    def test_below_the_floor_a_holder_is_never_over(self):
        # total 3, cap 2: over its share, but engines batch three for free
        assert outcome({"a": hot(9)}, loads={"a": 3}) == ("a", 0.7)
        assert best({"a": hot(9)}, loads={"a": 3}, holder_load_floor=0) is None

    def test_null_is_the_letter(self):
        assert outcome({"a": hot(9)}, loads={"a": 500}, holder_load_bound=None) == ("a", 0.7)

    def test_a_holder_that_is_passed_over_still_sets_the_scale(self):
        # b's 200 of 1000 tokens are below the threshold whether or not a is over its bound
        assert best({"a": hot(1000), "b": hot(200)}, loads={"a": 9}) is None

    def test_weights_share_the_bound(self):
        big, small = backend("a", weight=3), backend("b", weight=1)
        loads = {"a": 6, "b": 2}
        # total 8: cap of a ceil(1.25 * 9 * .75) = 9
        assert best({"a": hot(9)}, candidates=(big, small), loads=loads) is not None
        assert best({"a": hot(9)}, candidates=(backend("a"), small), loads=loads) is None

    def test_one_hot_prefix_spreads(self):
        # user report R4: 64 at once with one holder
        scorer = KvScorer(ScoringConfig())
        loads = {"a": 0, "b": 0, "c": 0}
        turned_away = 0
        for i in range(64):
            won = best({"a": hot(100)}, loads=loads, scorer=scorer)
            name = won.backend.name if won else "bc"[i % 2]
            turned_away += won is None
            loads[name] += 1
        assert loads["a"] <= 28  # ceil(1.25 * 64 / 3) + 1
        assert turned_away == 64 - loads["a"]


def test_a_worthless_match_is_no_match():
    # decisions C5
    assert best({"a": hot(15)}, min_tokens=16) is None
    assert best({"a": hot(16)}, min_tokens=16) is not None


class TestLoadSnapshots:
    P, Q = prefix("p"), prefix("q")

    def test_live_by_default(self):
        loads = {"a": 1}
        assert LoadSnapshots(0).read(self.P, loads, 5.0) is loads

    def test_kept_for_its_age_by_prefix(self):
        snapshots = LoadSnapshots(0.25)
        loads = {"a": 1}
        assert snapshots.read(self.P, loads, 5.0) == {"a": 1}
        loads["a"] = 2
        assert snapshots.read(self.P, loads, 5.125) == {"a": 1}
        assert snapshots.read(self.Q, loads, 5.125) == {"a": 2}
        assert snapshots.read(self.P, loads, 5.25) == {"a": 2}

    def test_prefixes_of_strangers_do_not_pile_up(self):
        snapshots = LoadSnapshots(0.25)
        for i in range(MAX_SNAPSHOTS + 10):
            snapshots.read(prefix(str(i)), {}, 1.0)
        assert len(snapshots._taken) == MAX_SNAPSHOTS

    def test_the_setting_reaches_the_scorer(self):
        scorer = KvScorer(ScoringConfig(load_snapshot_ms=250, holder_load_bound=None))
        loads = {"a": 0, "b": 1}
        assert outcome({"a": hot(1)}, loads=loads, scorer=scorer, now=1.0) == ("a", 1.0)
        loads["a"] = 1
        assert outcome({"a": hot(1)}, loads=loads, scorer=scorer, now=1.125) == ("a", 1.0)
        assert outcome({"a": hot(1)}, loads=loads, scorer=scorer, now=1.25) == ("a", 0.7)


def test_the_values_are_logged_once_at_info(caplog):
    with caplog.at_level(logging.INFO, logger="continuum_router.routing"):
        scorer = KvScorer(ScoringConfig(), min_tokens=3)
        best({"a": hot(5)}, scorer=scorer)
        best({"a": hot(5)}, scorer=scorer)
    assert [record.getMessage() for record in caplog.records] == ["KV scorer registered"]
    assert caplog.records[0].levelno == logging.INFO
