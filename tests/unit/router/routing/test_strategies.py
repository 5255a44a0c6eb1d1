from dataclasses import replace

from continuum_router.routing.hash_ring import HashRing, key_point, text_point
from continuum_router.routing.strategies import (
    MAX_CURSORS,
    MAX_RINGS,
    PrefixAwareHash,
    RingCache,
    RoundRobin,
    Rule,
)
from support.backends import ask, backend, backends, prefix

ABC = backends("a", "b", "c")
KEY = prefix("system prompt")
ORDER = list(HashRing([(b.name, 1) for b in ABC], 150).walk(key_point(KEY)))


def prefix_hash(*, epsilon=0.25, floor=1):
    return PrefixAwareHash(load_factor_epsilon=epsilon, load_floor=floor, virtual_nodes=150)


def picked(strategy, request):
    pick = strategy.pick(request)
    return pick.backend.name, pick.rule


def without(name):
    return tuple(b for b in ABC if b.name != name)


def test_rules_are_the_words_of_the_route_header():
    assert [rule.value for rule in Rule] == [
        "kv_aware",
        "prefix_hash",
        "overflow",
        "fallback",
        "round_robin",
        "weighted_round_robin",
        "least_latency",
        "random",
        "consistent_hash",
        "least_work",
    ]
    assert {rule for rule in Rule if rule.by_prefix} == {Rule.PREFIX_HASH, Rule.OVERFLOW}


class TestRoundRobin:
    def test_one_after_the_other(self):
        strategy = RoundRobin()
        assert [strategy.pick(ask(ABC)).backend.name for _ in range(5)] == list("abcab")

    def test_says_its_name(self):
        assert RoundRobin().pick(ask(ABC)).rule is Rule.ROUND_ROBIN

    def test_models_do_not_disturb_each_other(self):
        strategy = RoundRobin()
        turns = [(strategy.pick(ask(ABC, model=m)).backend.name) for m in "xyxyxy"]
        assert turns == list("aabbcc")

    def test_a_retry_does_not_move_the_cursor(self):
        strategy = RoundRobin()
        firsts = []
        for _ in range(6):
            firsts.append(strategy.pick(ask(ABC)).backend.name)
            retry = ask(ABC, candidates=without("a"))
            assert strategy.pick(replace(retry, retry=True)) is not None
        assert firsts == list("abcabc")

    def test_nobody_to_pick(self):
        assert RoundRobin().pick(ask(())) is None

    def test_model_names_of_strangers_do_not_pile_up(self):
        strategy = RoundRobin()
        for i in range(MAX_CURSORS + 50):
            strategy.pick(ask(ABC, model=f"m{i}"))
        assert len(strategy._cursors) == MAX_CURSORS


class TestPrefixAwareHash:
    def test_the_owner_serves_while_it_is_within_its_bound(self):
        assert picked(prefix_hash(), ask(ABC, key=KEY)) == (ORDER[0], Rule.PREFIX_HASH)

    def test_an_owner_over_its_bound_hands_on_to_the_next(self):
        # total 3, cap ceil(1.25 * 4 / 3) = 2
        loads = {ORDER[0]: 2, ORDER[1]: 1}
        assert picked(prefix_hash(), ask(ABC, key=KEY, loads=loads)) == (ORDER[1], Rule.OVERFLOW)

    def test_overflow_goes_on_clockwise(self):
        loads = {ORDER[0]: 3, ORDER[1]: 3}
        # total 6, cap ceil(1.25 * 7 / 3) = 3
        assert picked(prefix_hash(), ask(ABC, key=KEY, loads=loads)) == (ORDER[2], Rule.OVERFLOW)

    def test_a_skip_for_availability_is_still_prefix_hash(self):
        # decisions A11
        request = ask(ABC, key=KEY, candidates=without(ORDER[0]))
        assert picked(prefix_hash(), request) == (ORDER[1], Rule.PREFIX_HASH)

    def test_the_load_of_an_unavailable_backend_counts_for_nothing(self):
        # decisions A9: total and n over the eligible; with ORDER[0]'s 100 the cap would be 64
        request = ask(
            ABC, key=KEY, candidates=without(ORDER[0]), loads={ORDER[0]: 100, ORDER[1]: 2}
        )
        # total 2, cap ceil(1.25 * 3 / 2) = 2
        assert picked(prefix_hash(), request) == (ORDER[2], Rule.OVERFLOW)

    def test_a_backend_below_the_floor_is_never_over(self):
        loads = {ORDER[0]: 3}
        assert picked(prefix_hash(), ask(ABC, key=KEY, loads=loads))[1] is Rule.OVERFLOW
        assert picked(prefix_hash(floor=4), ask(ABC, key=KEY, loads=loads)) == (
            ORDER[0],
            Rule.PREFIX_HASH,
        )

    def test_when_all_are_over_the_owner_serves(self):
        # The bound itself always leaves room for somebody; a negative epsilon takes it away.
        strategy = prefix_hash(epsilon=-1.0)
        loads = {"a": 1, "b": 1, "c": 1}
        assert picked(strategy, ask(ABC, key=KEY, loads=loads)) == (ORDER[0], Rule.PREFIX_HASH)

    def test_without_a_key_the_model_has_one_place_whatever_its_load(self):
        ring = HashRing([(b.name, 1) for b in ABC], 150)
        owner = next(ring.walk(text_point("m")))
        for load in (0, 10, 1000):
            assert picked(prefix_hash(), ask(ABC, loads={owner: load})) == (owner, Rule.FALLBACK)

    def test_without_a_key_the_next_takes_over_from_the_missing(self):
        order = list(HashRing([(b.name, 1) for b in ABC], 150).walk(text_point("m")))
        request = ask(ABC, candidates=without(order[0]))
        assert picked(prefix_hash(), request) == (order[1], Rule.FALLBACK)

    def test_nobody_to_pick(self):
        assert prefix_hash().pick(ask(ABC, key=KEY, candidates=())) is None

    def test_a_backend_of_weight_zero_serves_when_it_is_all_there_is(self):
        idle = backend("idle", weight=0)
        members = (*ABC, idle)
        assert picked(prefix_hash(), ask(members, key=KEY, candidates=(idle,)))[0] == "idle"
        assert picked(prefix_hash(), ask(members, candidates=(idle,)))[0] == "idle"

    def test_simultaneous_requests_of_one_prefix_spread(self):
        # user report R3: load counts from the selection on
        strategy = prefix_hash()
        loads = {"a": 0, "b": 0, "c": 0}
        for _ in range(60):
            loads[strategy.pick(ask(ABC, key=KEY, loads=loads)).backend.name] += 1
        assert max(loads.values()) <= 26  # ceil(1.25 * 61 / 3)
        assert min(loads.values()) >= 8


class TestRingCache:
    def test_the_same_members_share_a_ring(self):
        cache = RingCache(10)
        ring = cache.ring(ABC)
        assert cache.ring(ABC) is ring
        assert cache.ring(backends("a", "b", "c")) is ring
        assert cache.ring(backends("a", "b")) is not ring

    def test_a_list_that_changes_is_noticed(self):
        cache = RingCache(10)
        members = list(ABC)
        ring = cache.ring(members)
        members.pop()
        assert cache.ring(members) is not ring

    def test_a_changed_weight_is_another_ring(self):
        cache = RingCache(10)
        assert len(cache.ring([backend("a", weight=1)])) == 10
        assert len(cache.ring([backend("a", weight=2)])) == 20

    def test_rings_do_not_pile_up(self):
        cache = RingCache(1)
        for i in range(MAX_RINGS + 20):
            cache.ring(backends(f"e{i}"))
        assert len(cache._rings) == MAX_RINGS


def test_a_wide_epsilon_keeps_the_owner():
    # total 3, cap ceil(11 * 4 / 3) = 15: no overflow where 0.25 has one
    request = ask(ABC, key=KEY, loads={ORDER[0]: 3})
    assert picked(prefix_hash(epsilon=10.0), request) == (ORDER[0], Rule.PREFIX_HASH)
    assert picked(prefix_hash(epsilon=0.25), request)[1] is Rule.OVERFLOW


def test_the_key_and_not_the_model_decides_the_place():
    strategy = prefix_hash()
    for i in range(20):
        key = prefix(f"{i}")
        assert picked(strategy, ask(ABC, key=key, model="x")) == picked(
            strategy, ask(ABC, key=key, model="y")
        )
