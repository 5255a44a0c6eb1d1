"""What is particular to the index in memory; what every index does is in tests/contract."""

import itertools
import os
from pathlib import Path

from continuum_router.backends.holding import Tier
from continuum_router.kv_index.index import SWEPT_AT_ONCE, MemoryKvIndex, NoKvIndex, expose
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from support.backends import prefix

HOT = Tier.GPU_HOT
KEYS = [prefix(f"k{i}") for i in range(200)]


def filled(count, *, max_entries=100):
    index = MemoryKvIndex(max_entries=max_entries, ttl=600.0)
    for key in KEYS[:count]:
        index.set("a", key, 1, HOT, 0.0)
    return index


def held(index):
    return [i for i, key in enumerate(KEYS) if index.holding("a", key, 0.0)]


def test_a_full_index_drops_its_oldest_tenth():
    index = filled(100)
    assert held(index) == list(range(100))
    index.set("a", KEYS[100], 1, HOT, 0.0)
    assert held(index) == list(range(10, 101))
    assert index.stats().total_evictions == 10
    assert index.stats().prefix_count == 91


def test_a_known_prefix_needs_no_room():
    index = filled(100)
    index.set("b", KEYS[0], 1, HOT, 0.0)
    index.set("a", KEYS[0], 2, HOT, 0.0)
    assert index.stats().prefix_count == 100
    assert index.stats().total_evictions == 0


def test_use_keeps_a_prefix():
    index = filled(100)
    index.holdings(KEYS[0], 0.0)  # looked up
    index.set("b", KEYS[1], 5, HOT, 0.0)  # another backend has it now
    index.holding("a", KEYS[2], 0.0)  # not a use
    index.set("a", KEYS[100], 1, HOT, 0.0)
    assert held(index) == [0, 1, *range(12, 101)]


def test_an_evicted_prefix_is_gone_for_all_backends():
    index = filled(100)
    for key in KEYS[:10]:
        index.set("b", key, 1, HOT, 0.0)
    for key in KEYS[10:100]:
        index.holdings(key, 0.0)
    index.set("a", KEYS[100], 1, HOT, 0.0)
    assert index.stats().entry_count == 91
    index.purge("b")
    assert index.stats().entry_count == 91


def test_a_tiny_index_still_makes_room():
    index = filled(5, max_entries=3)
    assert held(index) == [2, 3, 4]


def test_a_swap_larger_than_the_index_stays_within_bounds():
    index = filled(50)
    index.swap("b", dict.fromkeys(KEYS, (1, HOT)), 0.0)
    assert index.stats().prefix_count <= 100
    assert index.holding("b", KEYS[-1], 0.0) is not None


def test_sweeping_goes_on_where_it_stopped():
    index = MemoryKvIndex(max_entries=10_000, ttl=1.0)
    count = 2 * SWEPT_AT_ONCE + 1
    for i in range(count):
        index.set("a", prefix(str(i)), 1, HOT, 0.0)
    assert [index.expire(2.0) for _ in range(4)] == [SWEPT_AT_ONCE, SWEPT_AT_ONCE, 1, 0]
    assert index.stats().total_expired == count


def test_sweeping_survives_what_went_meanwhile():
    index = MemoryKvIndex(max_entries=10_000, ttl=1.0)
    for i in range(SWEPT_AT_ONCE + 5):
        index.set("a", prefix(str(i)), 1, HOT, 0.0)
    index.expire(2.0)
    index.purge("a")
    index.set("a", prefix("0"), 1, HOT, 5.0)
    assert index.expire(5.0) == 0
    assert index.stats().entry_count == 1


def test_the_index_shows_its_size():
    metrics = Metrics()
    index = filled(100)
    expose(index, metrics)
    index.set("b", KEYS[99], 1, HOT, 0.0)
    value = metrics.registry.get_sample_value
    assert value("continuum_kv_index_entries") == 101
    assert value("continuum_kv_index_prefixes") == 100
    index.set("a", KEYS[100], 1, HOT, 0.0)
    assert value("continuum_kv_index_evictions_total") == 10


def test_the_index_that_is_off_knows_nothing():
    index = NoKvIndex()
    index.set("a", KEYS[0], 1, HOT, 0.0)
    index.swap("a", {KEYS[0]: (1, HOT)}, 0.0)
    index.refresh("a", KEYS[0], 0.0)
    index.remove("a", KEYS[0])
    index.purge("a")
    assert index.holdings(KEYS[0], 0.0) == {}
    assert index.holding("a", KEYS[0], 0.0) is None
    assert (index.expire(9.0), index.clear()) == (0, 0)
    assert index.stats().entry_count == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_k18_two_million_prefixes_leave_the_index_at_its_cap() -> None:
    """User report K18: counts at their caps, and memory that stays where the first tenth put it."""
    index = MemoryKvIndex(max_entries=10_000, ttl=600.0)
    names = itertools.cycle(("a", "b", "c"))
    settled = 0
    for number in range(2_000_000):
        prefix = PrefixKey(number.to_bytes(32, "big"))
        index.set(next(names), prefix, 64, Tier.GPU_HOT, 0.0)
        if number == 200_000:
            settled = resident_bytes()
    assert resident_bytes() - settled < 4 * 1024 * 1024
    stats = index.stats()
    assert 9_000 <= stats.prefix_count == stats.entry_count <= 10_000
    assert stats.total_evictions == 2_000_000 - stats.prefix_count
    assert sum(len(index.prefixes_of(name)) for name in "abc") == stats.entry_count
