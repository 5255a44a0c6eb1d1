"""The stream that the listener's tests write, read by the router's consumer (S0 "equivalence")."""

import json
import random

import pytest

from continuum_router.backends.holding import Holding, Tier
from continuum_router.kv_index.apply import OffloadPolicy
from continuum_router.kv_index.consumer import (
    ConsumerMetrics,
    EventSource,
    KvEventConsumer,
    source_backoff,
)
from continuum_router.kv_index.index import MemoryKvIndex
from continuum_shared.kv_event import KvAction
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import KeyTag, KeyText, PrefixKey, derive
from continuum_shared.sse import SseParser
from support.feeds import ScriptedFeed
from support.source_tree import ROOT

STREAM = (ROOT / "tests" / "fixtures" / "push_stream_golden.sse").read_bytes()
EVENTS = json.loads((ROOT / "tests" / "fixtures" / "push_stream_golden.json").read_text())

CLERK = derive("tiny-chat", KeyText(tag=KeyTag.SYSTEM, text="You are a clerk."), 1024)
PILOT = derive("tiny-chat", KeyText(tag=KeyTag.SYSTEM, text="You are a pilot."), 1024)
QUESTION = derive("tiny-lora", KeyText(tag=KeyTag.FIRST_MESSAGE, text="안녕?"), 1024)
STALE = PrefixKey(b"s" * 32)
HOT, WARM = Tier.GPU_HOT, Tier.STORAGE_WARM


def until(place: str) -> bytes:
    """The stream up to and with the record of this id."""
    end = STREAM.index(f"id: 00c0ffee0001-{place}\n".encode())
    return STREAM[: STREAM.index(b"\n\n", end) + 2]


AFTER = {
    "3": {CLERK: (512, HOT), QUESTION: (64, WARM)},
    "4": {CLERK: (512, HOT), QUESTION: (64, WARM), PILOT: (32, HOT)},
    "6": {CLERK: (512, HOT), QUESTION: (80, HOT), PILOT: (48, HOT)},
    "7": {CLERK: (512, HOT), QUESTION: (80, HOT), PILOT: (48, WARM)},
    "8": {},
    "9": {CLERK: (16, HOT)},
}


class Reader:
    def __init__(self):
        self.metrics = Metrics()
        self.index = MemoryKvIndex(max_entries=100, ttl=600.0)
        self.consumer = KvEventConsumer(
            EventSource(
                backend="a",
                feed=ScriptedFeed(),
                backoff=source_backoff(None, random.Random(1)),
                counters=ConsumerMetrics(self.metrics).bind("a"),
            ),
            self.index,
            policy=OffloadPolicy(enabled=True),
            max_prefix_length=1024,
            clock=lambda: 0.0,
        )

    def read(self, data, step):
        parser = SseParser()
        for at in range(0, len(data), step):
            self.consumer.take(parser.feed(data[at : at + step]))

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, {"backend": "a", **labels})


@pytest.mark.parametrize("step", [1, 7, len(STREAM)])
@pytest.mark.parametrize("place", list(AFTER))
async def test_what_the_index_holds_after_each_record(place, step):
    reader = Reader()
    reader.index.set("a", STALE, 9, HOT, 0.0)
    reader.read(until(place), step)
    expected = {k: Holding(tokens=n, tier=tier) for k, (n, tier) in AFTER[place].items()}
    known = {
        key: held
        for key in (CLERK, PILOT, QUESTION, STALE)
        if (held := reader.index.holding("a", key, 0.0)) is not None
    }
    assert known == expected
    assert reader.consumer.resume_id == f"00c0ffee0001-{place}"


async def test_every_record_is_counted_and_none_dropped():
    reader = Reader()
    reader.read(STREAM, len(STREAM))
    for action in KvAction:
        count = sum(row["event"] == action.value for row in EVENTS)
        assert reader.value("continuum_kv_event_received_total", action=action.value) == count
    for reason in ("malformed", "unknown_type", "oversized"):
        assert reader.value("continuum_kv_event_dropped_total", reason=reason) == 0
    assert reader.value("continuum_kv_prefix_length_mismatch") == 0
