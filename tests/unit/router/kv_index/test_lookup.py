"""The question of a request: what the index says, and a time for each question."""

from continuum_router.backends.holding import Holding, Tier
from continuum_router.kv_index.index import MemoryKvIndex
from continuum_router.kv_index.lookup import MAX_ANSWERS, IndexLookup
from continuum_shared.metrics import Metrics
from support.backends import prefix


def test_a_lookup_is_answered_and_timed() -> None:
    index, metrics = MemoryKvIndex(max_entries=10, ttl=600.0), Metrics()
    index.set("a", prefix("p"), 7, Tier.GPU_HOT, 0.0)
    ticks = iter((100.0, 100.25, 700.0, 700.5))
    lookup = IndexLookup(index, metrics, clock=lambda: next(ticks))
    assert lookup.holdings(prefix("p")) == {"a": Holding(tokens=7, tier=Tier.GPU_HOT)}
    assert lookup.holdings(prefix("p")) == {}
    text = metrics.exposition().decode()
    assert "continuum_kv_index_query_seconds_count 2" in text
    assert "continuum_kv_index_query_seconds_sum 0.75" in text


def test_an_answer_serves_again_for_its_age() -> None:
    index, now = MemoryKvIndex(max_entries=10, ttl=600.0), [100.0]
    lookup = IndexLookup(index, Metrics(), clock=lambda: now[0], max_age=0.25)
    index.set("a", prefix("p"), 7, Tier.GPU_HOT, 100.0)
    first = lookup.holdings(prefix("p"))
    index.set("a", prefix("p"), 9, Tier.GPU_HOT, 100.0)
    now[0] = 100.125
    assert lookup.holdings(prefix("p")) is first
    now[0] = 100.25
    assert lookup.holdings(prefix("p")) == {"a": Holding(tokens=9, tier=Tier.GPU_HOT)}


def test_kept_answers_are_bounded() -> None:
    index = MemoryKvIndex(max_entries=10, ttl=600.0)
    lookup = IndexLookup(index, Metrics(), clock=lambda: 1.0, max_age=0.25)
    for i in range(MAX_ANSWERS + 10):
        lookup.holdings(prefix(str(i)))
    assert len(lookup._answers) == MAX_ANSWERS
