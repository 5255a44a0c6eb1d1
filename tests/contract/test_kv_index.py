"""What every KvIndex must do. A store is one more entry in ``INDEXES``."""

import pytest

from continuum_router.backends.holding import Holding, Tier
from continuum_router.kv_index.index import MemoryKvIndex
from support.backends import prefix

HOT, WARM = Tier.GPU_HOT, Tier.STORAGE_WARM
P, Q, R = prefix("p"), prefix("q"), prefix("r")
TTL = 600.0

INDEXES = {"memory": lambda: MemoryKvIndex(max_entries=1000, ttl=TTL)}


@pytest.fixture(params=list(INDEXES))
def index(request):
    return INDEXES[request.param]()


def hot(tokens):
    return Holding(tokens=tokens, tier=HOT)


def counts(index):
    stats = index.stats()
    return stats.prefix_count, stats.entry_count


def test_empty(index):
    assert index.holdings(P, 0.0) == {}
    assert counts(index) == (0, 0)


def test_who_holds_what(index):
    index.set("a", P, 10, HOT, 0.0)
    index.set("b", P, 20, WARM, 0.0)
    index.set("a", Q, 30, HOT, 0.0)
    assert index.holdings(P, 1.0) == {"a": hot(10), "b": Holding(tokens=20, tier=WARM)}
    assert index.holdings(Q, 1.0) == {"a": hot(30)}
    assert index.holding("a", P, 1.0) == hot(10)
    assert index.holding("b", Q, 1.0) is None
    assert counts(index) == (2, 3)


def test_counts_are_set_and_not_added(index):
    # decisions C9
    index.set("a", P, 10, HOT, 0.0)
    index.set("a", P, 30, HOT, 0.0)
    index.set("a", P, 20, HOT, 0.0)
    assert index.holdings(P, 0.0) == {"a": hot(20)}
    assert counts(index) == (1, 1)


def test_an_absent_count_keeps_the_known_one(index):
    # decisions C8
    index.set("a", P, 10, HOT, 0.0)
    index.set("a", P, None, WARM, 0.0)
    index.set("b", P, None, HOT, 0.0)
    assert index.holdings(P, 0.0) == {"a": Holding(tokens=10, tier=WARM), "b": hot(1)}


def test_an_absent_count_forgets_what_has_expired(index):
    index.set("a", P, 10, HOT, 0.0)
    index.set("a", P, None, HOT, TTL)
    assert index.holdings(P, TTL) == {"a": hot(1)}


def test_remove(index):
    index.set("a", P, 10, HOT, 0.0)
    index.set("b", P, 20, HOT, 0.0)
    index.remove("a", P)
    index.remove("a", P)
    index.remove("a", Q)
    assert index.holdings(P, 0.0) == {"b": hot(20)}
    index.remove("b", P)
    assert index.holdings(P, 0.0) == {}
    assert counts(index) == (0, 0)


def test_a_purge_is_of_one_backend_only(index):
    # user report K4
    index.set("a", P, 10, HOT, 0.0)
    index.set("a", Q, 10, WARM, 0.0)
    index.set("b", P, 20, HOT, 0.0)
    index.purge("a")
    index.purge("nobody")
    assert index.holdings(P, 0.0) == {"b": hot(20)}
    assert index.holdings(Q, 0.0) == {}
    assert counts(index) == (1, 1)


def test_a_swap_replaces_one_backend(index):
    # decisions C28
    index.set("a", P, 10, HOT, 0.0)
    index.set("a", Q, 11, HOT, 0.0)
    index.set("b", P, 20, HOT, 0.0)
    index.swap("a", {Q: (None, WARM), R: (12, HOT)}, 0.0)
    assert index.holdings(P, 0.0) == {"b": hot(20)}
    assert index.holdings(Q, 0.0) == {"a": Holding(tokens=11, tier=WARM)}
    assert index.holdings(R, 0.0) == {"a": hot(12)}
    index.swap("a", {}, 0.0)
    assert counts(index) == (1, 1)


def test_entries_live_for_their_time(index):
    index.set("a", P, 10, HOT, 0.0)
    index.set("b", P, 20, HOT, 1.0)
    assert index.holdings(P, TTL - 0.5) == {"a": hot(10), "b": hot(20)}
    assert index.holdings(P, TTL) == {"b": hot(20)}
    assert index.holding("b", P, TTL + 1) is None
    assert index.holdings(P, TTL + 1) == {}


def test_a_repeated_record_lengthens_the_life(index):
    # decisions C29: re-announcement
    index.set("a", P, 10, HOT, 0.0)
    index.set("a", P, 10, HOT, 500.0)
    assert index.holdings(P, 1000.0) == {"a": hot(10)}


def test_own_traffic_refreshes_only_what_exists(index):
    # decisions C29
    index.set("a", P, 10, HOT, 0.0)
    index.refresh("a", P, 500.0)
    index.refresh("b", P, 500.0)
    index.refresh("a", Q, 500.0)
    assert index.holdings(P, 1000.0) == {"a": hot(10)}
    index.refresh("a", P, 1100.0)
    assert index.holdings(P, 1100.0) == {}, "what has expired does not come back"


def test_expired_entries_are_swept(index):
    index.set("a", P, 10, HOT, 0.0)
    index.set("b", P, 20, HOT, 1.0)
    index.set("a", Q, 30, HOT, 0.0)
    assert index.expire(TTL) == 2
    assert counts(index) == (1, 1)
    assert index.expire(TTL) == 0


def test_clear(index):
    index.set("a", P, 10, HOT, 0.0)
    index.set("b", P, 20, HOT, 0.0)
    index.set("a", Q, 30, HOT, 0.0)
    assert index.clear() == 3
    assert index.holdings(P, 0.0) == {}
    index.set("a", P, 1, HOT, 0.0)
    assert counts(index) == (1, 1)


def test_hits_are_lookups_that_found_somebody(index):
    # decisions C36
    index.set("a", P, 10, HOT, 0.0)
    index.set("b", P, 10, HOT, 0.0)
    index.holdings(P, 0.0)
    index.holdings(Q, 0.0)
    index.holdings(P, TTL)
    index.holding("a", P, 0.0)
    assert index.stats().total_hits == 1


def test_an_answer_does_not_change_afterwards(index):
    index.set("a", P, 10, HOT, 0.0)
    answer = index.holdings(P, 0.0)
    index.purge("a")
    assert answer == {"a": hot(10)}
