"""From raw batches to published records, without any waiting."""

import logging

import msgpack
import pytest

from continuum_kv_listener.attribution_types import Completion, PathVerdict
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.engine_events import DropReason, RawBatch
from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.pipeline import Pipeline
from continuum_kv_listener.stream import EventStream
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from support.kv_publisher import Encoding, removed, stored

KEY = PrefixKey(b"k" * 32)


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        families = ListenerMetrics(self.metrics)
        self.restarts: list[float] = []
        self.pipeline = Pipeline(
            engine="vllm",
            tracker=ChainTracker(),
            metrics=families.intake("s"),
            clock=lambda: self.now,
            on_restart=self.restarts.append,
        )
        self.stream = EventStream(
            epoch="e",
            max_prefix_length=1024,
            snapshot=self.pipeline.snapshot,
            metrics=families.stream("s"),
        )
        self.pipeline.publish_to(self.stream)

    def feed(self, *events: object) -> None:
        apply(self.pipeline, msgpack.packb([1.5, list(events), 0]))
        self.pipeline.caught_up()

    def attribute(self) -> None:
        for question in self.pipeline.tracker.questions(9, self.now):
            verdict = PathVerdict(completions=(Completion(block_index=0, keys=(KEY,)),), done=True)
            self.pipeline.tracker.answer(question.node, verdict, self.now)
        self.pipeline.caught_up()

    def count(self, line: str) -> float:
        for sample in self.metrics.exposition().decode().splitlines():
            name, _, value = sample.rpartition(" ")
            if name == f"continuum_listener_{line}":
                return float(value)
        raise AssertionError(line)


def raw(payload: bytes) -> RawBatch:
    return RawBatch(source="s", rank=0, seq=0, payload=payload)


def apply(pipeline: Pipeline, payload: bytes) -> None:
    for _ in pipeline.batch(raw(payload)):
        pass


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_stored_chain_is_published_once_it_is_attributed(rig):
    rig.feed(stored(Encoding.MAP, [1, 2], None, range(32)))
    assert rig.stream.last_seq == 0
    rig.attribute()
    assert rig.stream.last_seq == 1
    assert rig.pipeline.snapshot() == [KvEvent(action=KvAction.CREATED, prefix=KEY, tokens=32)]
    rig.feed(removed(Encoding.MAP, [2]), removed(Encoding.MAP, [1]))
    assert rig.stream.last_seq == 2
    assert rig.pipeline.snapshot() == []


def test_a_warm_prefix_is_in_the_snapshot_as_offloaded(rig):
    rig.feed(stored(Encoding.MAP, [1], None, range(16)))
    rig.attribute()
    rig.feed(stored(Encoding.MAP, [1], None, range(16), medium="CPU"))
    rig.feed(removed(Encoding.MAP, [1]))
    assert rig.pipeline.snapshot() == [KvEvent(action=KvAction.OFFLOADED, prefix=KEY, tokens=16)]


def test_both_events_are_set_when_something_may_have_changed(rig):
    rig.pipeline.due_changed.clear()
    rig.pipeline.work_changed.clear()
    rig.feed(stored(Encoding.MAP, [1], None, range(16)))
    assert rig.pipeline.due_changed.is_set()
    assert rig.pipeline.work_changed.is_set()


def test_a_restart_purges_at_once_and_tells(rig):
    rig.feed(stored(Encoding.MAP, [1], None, range(16)))
    rig.attribute()
    rig.now = 7.0
    rig.pipeline.restarted()
    assert rig.stream.last_seq == 2
    assert rig.pipeline.snapshot() == []
    assert rig.restarts == [7.0]


def test_one_bad_event_costs_one(rig):
    good = stored(Encoding.ARRAY, [1], None, range(16))
    rig.feed(good, {"type": "Never"}, {"type": "BlockStored"}, removed(Encoding.ARRAY, [99]))
    assert rig.pipeline.drops == {
        DropReason.UNKNOWN_TAG: 1,
        DropReason.MALFORMED_EVENT: 1,
        DropReason.UNKNOWN_BLOCK: 1,
    }
    assert rig.count('events_total{source="s",type="stored"}') == 1
    assert rig.count('events_total{source="s",type="removed"}') == 1
    assert rig.count('dropped_total{reason="unknown_tag",source="s"}') == 1


def test_an_undecodable_batch_is_logged_once_a_source(rig, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            apply(rig.pipeline, b"\xc1")
    assert rig.pipeline.drops == {DropReason.UNDECODABLE_BATCH: 5}
    assert [record.message for record in caplog.records] == ["Batch cannot be decoded"]
    assert rig.count('dropped_total{reason="undecodable_batch",source="s"}') == 5


def test_duplicates_are_not_worth_a_log_line(rig, caplog):
    with caplog.at_level(logging.DEBUG):
        rig.pipeline.dropped(DropReason.DUPLICATE)
    assert caplog.records == []


def large(count: int) -> bytes:
    """Each block the child of the one before; the last event takes the last block away."""
    events = [stored(Encoding.MAP, [at + 1], at or None, range(16)) for at in range(count)]
    return msgpack.packb([1.5, [*events, removed(Encoding.MAP, [count])], 0])


def test_a_large_batch_pauses_and_a_small_one_does_not(rig):
    assert rig.pipeline.batch(raw(large(100))) == ()
    assert rig.pipeline.tracker.stats.blocks == 99
    steps = rig.pipeline.batch(raw(large(3000)))
    assert sum(1 for _ in steps) >= 5
    assert rig.pipeline.tracker.stats.blocks == 2999


def test_a_subscriber_in_the_middle_of_a_batch_ends_where_one_before_it_does(rig):
    """A stream begins at any pause; what is known there and what follows make the same state."""
    rig.feed(stored(Encoding.MAP, [1], None, range(16)))
    rig.attribute()
    assert rig.pipeline.snapshot() == [KvEvent(action=KvAction.CREATED, prefix=KEY, tokens=16)]
    fill = [stored(Encoding.MAP, [at + 9], at + 8, range(16)) for at in range(1, 1000)]
    batch = [stored(Encoding.MAP, [9], None, range(16, 32)), *fill, removed(Encoding.MAP, [1])]
    batch += [removed(Encoding.MAP, [at + 9]) for at in range(999, -1, -1)]
    batch += [stored(Encoding.MAP, [9], None, range(16, 32)), *fill[:300]]
    batch += [removed(Encoding.MAP, [at + 9]) for at in range(300, -1, -1)]
    batch.append(stored(Encoding.MAP, [1], None, range(16)))
    seen = set()
    for _ in rig.pipeline.batch(raw(msgpack.packb([1.5, batch, 0]))):
        seen.add(tuple(rig.pipeline.snapshot()))
    assert seen == {(KvEvent(action=KvAction.CREATED, prefix=KEY, tokens=16),), ()}
    rig.attribute()
    assert rig.pipeline.snapshot() == [KvEvent(action=KvAction.CREATED, prefix=KEY, tokens=16)]
    assert rig.stream.last_seq == 3  # created, gone while the batch was applied, created again


def test_nothing_of_a_large_batch_that_breaks_off_is_applied(rig):
    payload = large(3000)
    apply(rig.pipeline, payload[:-50])
    assert rig.pipeline.tracker.stats.blocks == 0
    assert rig.pipeline.drops == {DropReason.UNDECODABLE_BATCH: 1}
