import random
from collections import Counter

from continuum_router.routing.hash_ring import HashRing, text_point
from continuum_router.routing.plain_strategies import (
    ConsistentHash,
    LeastLatency,
    Random,
    WeightedRoundRobin,
)
from continuum_router.routing.strategies import MAX_CURSORS, Rule
from support.backends import ask, backend, backends

ABC = backends("a", "b", "c")


def names(strategy, request, count):
    return [strategy.pick(request).backend.name for _ in range(count)]


class TestWeightedRoundRobin:
    FIVE_ONE_ONE = (backend("a", weight=5), backend("b"), backend("c"))

    def test_turns_follow_the_weights_and_are_spread_out(self):
        # the sequence that smooth weighted round robin is known for
        assert names(WeightedRoundRobin(), ask(self.FIVE_ONE_ONE), 7) == list("aabacaa")

    def test_equal_weights_take_turns(self):
        assert names(WeightedRoundRobin(), ask(ABC), 6) == list("abcabc")

    def test_weight_nought_only_when_nobody_else_is_left(self):
        members = (backend("a", weight=0), backend("b"))
        strategy = WeightedRoundRobin()
        assert names(strategy, ask(members), 3) == list("bbb")
        assert names(strategy, ask(members, candidates=members[:1]), 2) == list("aa")

    def test_models_and_retries_do_not_disturb(self):
        strategy = WeightedRoundRobin()
        seen = []
        for _ in range(3):
            seen.append(strategy.pick(ask(ABC)).backend.name)
            strategy.pick(ask(ABC, model="other"))
            strategy.pick(ask(ABC, retry=True))
        assert seen == list("abc")

    def test_model_names_of_strangers_do_not_pile_up(self):
        strategy = WeightedRoundRobin()
        for i in range(MAX_CURSORS + 5):
            strategy.pick(ask(ABC, model=f"m{i}"))
        assert len(strategy._credits) == MAX_CURSORS

    def test_says_its_name_and_when_there_is_nobody(self):
        assert WeightedRoundRobin().pick(ask(ABC)).rule is Rule.WEIGHTED_ROUND_ROBIN
        assert WeightedRoundRobin().pick(ask(())) is None


class TestLeastLatency:
    def test_the_fastest_serves(self):
        times = {"a": 0.3, "b": 0.1, "c": 0.2}
        pick = LeastLatency(times.get).pick(ask(ABC))
        assert (pick.backend.name, pick.rule) == ("b", Rule.LEAST_LATENCY)

    def test_who_has_no_time_yet_comes_first_by_load(self):
        strategy = LeastLatency({"a": 0.1}.get)
        assert strategy.pick(ask(ABC, loads={"b": 2, "c": 1})).backend.name == "c"

    def test_equals_go_by_load_then_by_order(self):
        strategy = LeastLatency(lambda _name: 0.5)
        assert strategy.pick(ask(ABC, loads={"a": 1})).backend.name == "b"
        assert strategy.pick(ask(ABC)).backend.name == "a"

    def test_nobody(self):
        assert LeastLatency(lambda _name: None).pick(ask(())) is None


class TestRandom:
    def test_in_the_proportion_of_the_weights(self):
        members = (backend("a", weight=3), backend("b"), backend("c", weight=0))
        drawn = Counter(names(Random(random.Random(7)), ask(members), 4000))
        assert drawn["c"] == 0
        assert 2880 < drawn["a"] < 3120

    def test_no_weight_at_all_is_no_reason_to_refuse(self):
        members = (backend("a", weight=0), backend("b", weight=0))
        assert set(names(Random(random.Random(7)), ask(members), 50)) == {"a", "b"}

    def test_says_its_name_and_when_there_is_nobody(self):
        assert Random(random.Random(1)).pick(ask(ABC)).rule is Rule.RANDOM
        assert Random(random.Random(1)).pick(ask(())) is None


class TestConsistentHash:
    def owner(self, text):
        return next(HashRing([(b.name, 1) for b in ABC], 150).walk(text_point(text)))

    def test_a_client_stays_with_its_backend_whatever_it_asks(self):
        strategy = ConsistentHash(150)
        for client in ("key-1", "10.0.0.7", "10.0.0.8"):
            for model in ("x", "y"):
                pick = strategy.pick(ask(ABC, client=client, model=model, loads={"a": 99}))
                assert pick.backend.name == self.owner(client)

    def test_without_a_client_the_model_decides(self):
        pick = ConsistentHash(150).pick(ask(ABC, model="x"))
        assert (pick.backend.name, pick.rule) == (self.owner("x"), Rule.CONSISTENT_HASH)

    def test_who_cannot_serve_is_skipped(self):
        strategy, owner = ConsistentHash(150), self.owner("k")
        left = tuple(b for b in ABC if b.name != owner)
        ring = HashRing([(b.name, 1) for b in ABC], 150)
        second = list(ring.walk(text_point("k")))[1]
        assert strategy.pick(ask(ABC, client="k", candidates=left)).backend.name == second

    def test_off_the_ring_and_nobody(self):
        idle = (backend("a", weight=0),)
        assert ConsistentHash(150).pick(ask(idle)).backend.name == "a"
        assert ConsistentHash(150).pick(ask(())) is None
