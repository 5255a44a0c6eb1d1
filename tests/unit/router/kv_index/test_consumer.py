import asyncio
import logging
import random
from contextlib import asynccontextmanager

import pytest

from continuum_router.backends.holding import Tier
from continuum_router.kv_index.apply import OffloadPolicy
from continuum_router.kv_index.consumer import (
    SNAPSHOT_PATIENCE,
    ConsumerMetrics,
    EventSource,
    KvEventConsumer,
    source_backoff,
)
from continuum_router.kv_index.feeds import FeedError, FeedFault
from continuum_router.kv_index.index import MemoryKvIndex
from continuum_shared.backoff import Backoff
from continuum_shared.kv_event import KvAction, KvEvent, encode, prefix_length_comment
from continuum_shared.metrics import Metrics
from continuum_shared.sse import MAX_SSE_BYTES, encode_comment, encode_event
from continuum_shared.tasks import Supervisor
from support.backends import prefix
from support.feeds import ScriptedFeed

HOT, WARM = Tier.GPU_HOT, Tier.STORAGE_WARM
P, Q, R = prefix("p"), prefix("q"), prefix("r")


def record(action, key=None, tokens=None, *, snapshot=None, seq=None, epoch="e"):
    event = KvEvent(action=action, prefix=key, tokens=tokens, snapshot=snapshot)
    place = None if seq is None else f"{epoch}-{seq}"
    return encode_event(encode(event), event=action.value, id=place)


def created(key, tokens=None, **kw):
    return record(KvAction.CREATED, key, tokens, **kw)


class Rig:
    """One consumer of backend ``a`` on a scripted feed, with its counters and its sleeps."""

    def __init__(self, *connections, policy=None, patience=60.0):
        self.metrics = Metrics()
        self.feed = ScriptedFeed(*connections)
        self.index = MemoryKvIndex(max_entries=1000, ttl=600.0)
        self.now = 0.0
        self.slept = []
        self.consumer = KvEventConsumer(
            EventSource(
                backend="a",
                feed=self.feed,
                backoff=Backoff(1.0, 60.0, jitter=False),
                counters=ConsumerMetrics(self.metrics).bind("a"),
                patience=patience,
            ),
            self.index,
            policy=policy or OffloadPolicy(),
            max_prefix_length=1024,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds):
        self.slept.append(seconds)

    @asynccontextmanager
    async def running(self):
        """Run the consumer in the background; it is stopped on leaving."""
        supervisor = Supervisor("test")
        supervisor.spawn("consumer", self.consumer.run())
        try:
            yield
        finally:
            await supervisor.stop()
            assert supervisor.crashes == 0
            assert self.feed.open_now == 0

    async def play(self):
        """Run until the script has been played."""
        async with self.running():
            await asyncio.wait_for(self.feed.played.wait(), 10)

    def held(self):
        return {
            name: (held.tokens, held.tier)
            for name, key in (("p", P), ("q", Q), ("r", R))
            if (held := self.index.holding("a", key, self.now)) is not None
        }

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, {"backend": "a", **labels})

    def received(self):
        values = {
            action.value: self.value("continuum_kv_event_received_total", action=action.value)
            for action in KvAction
        }
        return {name: count for name, count in values.items() if count}

    def dropped(self, reason):
        return self.value("continuum_kv_event_dropped_total", reason=reason)


async def test_records_reach_the_index():
    rig = Rig([created(P, 64, seq=1), created(Q, 32, seq=2), created(P, 128, seq=3)])
    await rig.play()
    assert rig.held() == {"p": (128, HOT), "q": (32, HOT)}
    assert rig.received() == {"cache_created": 3}


async def test_an_eviction_takes_a_prefix_away():
    rig = Rig([created(P, 64), record(KvAction.EVICTED, P), created(Q, 1)])
    await rig.play()
    assert rig.held() == {"q": (1, HOT)}


async def test_tiers_follow_the_policy():
    script = [
        created(P, 64) + created(Q, 32) + created(R, 16),
        record(KvAction.OFFLOADED, P, 64) + record(KvAction.EVICTED, Q),
        record(KvAction.OFFLOADED, R) + record(KvAction.EVICTED, R),
    ]
    rig = Rig(script, policy=OffloadPolicy(enabled=True))
    await rig.play()
    assert rig.held() == {"p": (64, WARM), "q": (32, WARM)}
    rig = Rig(script)
    await rig.play()
    assert rig.held() == {}


async def test_a_reload_makes_hot_again():
    rig = Rig(
        [created(P, 64), record(KvAction.OFFLOADED, P), record(KvAction.RELOADED, P)],
        policy=OffloadPolicy(enabled=True),
    )
    await rig.play()
    assert rig.held() == {"p": (64, HOT)}


async def test_an_eviction_of_a_stranger_brings_nothing_up():
    rig = Rig([record(KvAction.EVICTED, P)], policy=OffloadPolicy(enabled=True))
    await rig.play()
    assert rig.held() == {}


async def test_a_purge_clears_this_backend_only():
    # user report K4
    rig = Rig([created(P, 64), created(Q, 64), record(KvAction.PURGED)])
    rig.index.set("b", P, 9, HOT, 0.0)
    await rig.play()
    assert rig.held() == {}
    assert rig.index.holding("b", P, 0.0) is not None


async def test_any_split_of_the_bytes_gives_the_same():
    data = created(P, 64, seq=1) + created(Q, 32, seq=2) + record(KvAction.EVICTED, P, seq=3)
    rig = Rig([data[i : i + 1] for i in range(len(data))])
    await rig.play()
    assert rig.held() == {"q": (32, HOT)}
    assert rig.feed.asked == [None, "e-3"]


async def test_the_sse_name_wins_over_the_json_one():
    data = encode(KvEvent(action=KvAction.EVICTED, prefix=P, tokens=7))
    named = encode_event(data, event="cache_created")
    unnamed = encode_event(encode(KvEvent(action=KvAction.CREATED, prefix=Q, tokens=8)))
    rig = Rig([named, unnamed])
    await rig.play()
    assert rig.held() == {"p": (7, HOT), "q": (8, HOT)}


BAD = {
    "not json": (b"event: cache_created\ndata: {\n\n", "malformed"),
    "not an object": (b"event: cache_created\ndata: []\n\n", "malformed"),
    "no hash": (b"event: cache_created\ndata: {}\n\n", "malformed"),
    "short hash": (b'event: cache_created\ndata: {"prefix_hash":"ab"}\n\n', "malformed"),
    "negative count": (
        encode_event(encode(KvEvent(action=KvAction.CREATED, prefix=P, tokens=-1))),
        "malformed",
    ),
    "unknown name": (b"event: cache_moved\ndata: {}\n\n", "unknown_type"),
    "no name": (b"data: {}\n\n", "unknown_type"),
}


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
async def test_a_bad_record_costs_itself(case):
    bad, reason = BAD[case]
    rig = Rig([created(P, 64, seq=1) + bad + created(Q, 32, seq=2)])
    await rig.play()
    assert rig.held() == {"p": (64, HOT), "q": (32, HOT)}
    assert rig.dropped(reason) == 1
    assert rig.received() == {"cache_created": 2}
    assert rig.feed.asked == [None, "e-2"]


class TestResuming:
    async def test_from_the_last_record(self):
        rig = Rig([created(P, 1, seq=4)], [created(Q, 1, seq=5)], [FeedError(FeedFault.CONNECT)])
        await rig.play()
        assert rig.feed.asked == [None, "e-4", "e-5", "e-5"]
        assert rig.consumer.resume_id == "e-5"

    async def test_records_without_an_id_keep_the_place(self):
        # decisions C29: re-announced records carry none
        rig = Rig([created(P, 1, seq=4)], [created(Q, 1)])
        await rig.play()
        assert rig.feed.asked == [None, "e-4", "e-4"]

    @pytest.mark.parametrize("place", ["what", "7", "-7", "e-", "é-3", "\x01-3"])
    async def test_an_id_of_another_form_is_not_repeated(self, place):
        data = encode_event(encode(KvEvent(action=KvAction.CREATED, prefix=P)), id=place)
        rig = Rig([data])
        await rig.play()
        assert rig.held() == {"p": (1, HOT)}
        assert rig.feed.asked == [None, None]

    async def test_without_a_place_everything_is_told_anew(self):
        # a first snapshot that broke off before its last record, the one with the id
        rig = Rig([created(P, 1) + created(Q, 1), FeedError(FeedFault.CUT)], [created(Q, 2)])
        rig.index.set("b", P, 9, HOT, 0.0)
        await rig.play()
        assert rig.held() == {"q": (2, HOT)}
        assert rig.index.holding("b", P, 0.0) is not None

    async def test_a_cut_in_a_record_drops_the_rest_of_it(self):
        whole = created(Q, 32, seq=2)
        rig = Rig([created(P, 1, seq=1) + whole[:-5], FeedError(FeedFault.CUT)], [whole])
        await rig.play()
        assert rig.held() == {"p": (1, HOT), "q": (32, HOT)}
        assert rig.feed.asked == [None, "e-1", "e-2"]

    async def test_a_record_over_the_limit_breaks_the_stream(self):
        # S0 "SSE parsing": stop, back off, go on from the last id
        line = b"data: " + b"x" * 1000 + b"\n"
        flood = [line * 100] * (MAX_SSE_BYTES // len(line) // 100 + 2)
        rig = Rig([created(P, 1, seq=1), *flood, created(Q, 1, seq=2)], [created(R, 1, seq=3)])
        await rig.play()
        assert rig.held() == {"p": (1, HOT), "r": (1, HOT)}
        assert rig.feed.asked == [None, "e-1", "e-3"]
        assert rig.dropped("oversized") == 1

    async def test_what_is_known_stays_while_the_stream_is_away(self):
        rig = Rig([created(P, 1, seq=1)], *[[FeedError(FeedFault.CONNECT)]] * 5)
        await rig.play()
        assert rig.held() == {"p": (1, HOT)}


class TestBackoff:
    async def test_it_doubles_while_nothing_arrives(self):
        rig = Rig(*[[FeedError(FeedFault.STATUS, 503)]] * 8)
        await rig.play()
        assert rig.slept == [1, 2, 4, 8, 16, 32, 60, 60]

    async def test_a_listener_that_is_away_gets_the_same_time_in_all(self):
        rig = Rig(*[[FeedError(FeedFault.CONNECT)]] * 8)
        await rig.play()
        assert sum(rig.slept) == 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60
        assert set(rig.slept) == {1}

    async def test_a_listener_that_is_back_is_noticed_within_a_second(self):
        rig = Rig(*[[FeedError(FeedFault.CONNECT)]] * 4)
        # The first wait is as short as a look, the second has one, the third ends at its third.
        rig.feed.looks = [False, False, False, True]
        await rig.play()
        assert rig.slept == [1, 1, 1, 1, 1, 1, *[1] * 8]

    async def test_a_record_starts_it_anew(self):
        down = [FeedError(FeedFault.STATUS, 503)]
        rig = Rig(down, down, down, [created(P, 1)], down)
        await rig.play()
        assert rig.slept == [1, 2, 4, 1, 2]

    async def test_an_open_stream_without_a_record_does_not(self):
        rig = Rig([FeedError(FeedFault.CONNECT)], [b": hello\n\n"], [b""])
        await rig.play()
        assert rig.slept == [1, 2, 4]

    @pytest.mark.parametrize(
        ("interval", "nominal"),
        [(None, [1, 2, 4, 8, 16, 32, 60]), (5.0, [5, 10, 20, 40, 60]), (90.0, [90, 90])],
    )
    def test_the_configured_interval(self, interval, nominal):
        # decisions C31
        backoff = source_backoff(interval, random.Random(1))
        for seconds in nominal:
            assert seconds / 2 <= backoff.next() <= seconds


class TestSnapshot:
    def purge(self, count):
        return record(KvAction.PURGED, snapshot=count)

    async def test_it_is_swapped_in_with_its_last_record(self):
        go_on = asyncio.Event()
        rig = Rig(
            [
                created(P, 64, seq=9, epoch="old"),
                self.purge(2) + created(Q, 32),
                go_on,
                created(R, 16, seq=0, epoch="new"),
            ]
        )
        async with rig.running():
            await settle()
            assert rig.held() == {"p": (64, HOT)}, "no hole while it is on its way"
            assert rig.consumer.resume_id == "old-9"
            go_on.set()
            await rig.feed.played.wait()
            assert rig.held() == {"q": (32, HOT), "r": (16, HOT)}
        assert rig.feed.asked == [None, "new-0"]
        assert rig.received() == {"cache_created": 3, "cache_purged": 1}

    async def test_an_empty_one_is_a_purge(self):
        rig = Rig([created(P, 64), self.purge(0)])
        await rig.play()
        assert rig.held() == {}

    async def test_records_after_it_are_live(self):
        rig = Rig([created(P, 1) + self.purge(1) + created(Q, 2) + record(KvAction.EVICTED, Q)])
        await rig.play()
        assert rig.held() == {}

    async def test_a_bad_record_counts_as_one_of_it(self):
        rig = Rig([created(P, 1) + self.purge(2) + b"data: {\n\n" + created(Q, 2)])
        await rig.play()
        assert rig.held() == {"q": (2, HOT)}

    async def test_a_bad_last_record_completes_it(self):
        rig = Rig([created(P, 1) + self.purge(2) + created(Q, 2) + b"data: {\n\n"])
        await rig.play()
        assert rig.held() == {"q": (2, HOT)}

    async def test_warm_records(self):
        snapshot = self.purge(2) + created(P, 2) + record(KvAction.OFFLOADED, Q, 3)
        rig = Rig([snapshot], policy=OffloadPolicy(enabled=True))
        await rig.play()
        assert rig.held() == {"p": (2, HOT), "q": (3, WARM)}
        rig = Rig([snapshot])
        await rig.play()
        assert rig.held() == {"p": (2, HOT)}

    async def test_a_broken_one_leaves_the_index_alone(self):
        rig = Rig(
            [created(P, 1, seq=1), self.purge(3) + created(Q, 2), FeedError(FeedFault.CUT)],
            [FeedError(FeedFault.CONNECT)],
            [created(R, 1, seq=2)],
        )
        await rig.play()
        assert rig.held() == {"p": (1, HOT), "r": (1, HOT)}, "what was staged is forgotten"
        assert rig.feed.asked == [None, "e-1", "e-1", "e-2"]

    async def test_a_second_one_replaces_the_first(self):
        rig = Rig([self.purge(3) + created(P, 1) + self.purge(1) + created(Q, 2)])
        await rig.play()
        assert rig.held() == {"q": (2, HOT)}

    async def test_a_plain_purge_ends_it(self):
        rig = Rig([created(R, 1) + self.purge(3) + created(P, 1) + record(KvAction.PURGED)])
        await rig.play()
        assert rig.held() == {}

    async def test_an_incomplete_one_is_swapped_in_after_its_time(self):
        stay = asyncio.Event()
        rig = Rig(
            [created(P, 1) + self.purge(3) + created(Q, 2), stay, created(R, 1)], patience=0.0
        )
        async with rig.running():
            await settle()
            assert rig.held() == {"q": (2, HOT)}
            stay.set()
            await rig.feed.played.wait()
            assert rig.held() == {"q": (2, HOT), "r": (1, HOT)}, "what comes late is live"

    async def test_its_time_is_two_seconds(self):
        assert SNAPSHOT_PATIENCE == 2.0
        source = EventSource(backend="a", feed=ScriptedFeed(), backoff=None, counters=None)
        assert source.patience == SNAPSHOT_PATIENCE


class TestPrefixLength:
    # decisions A17
    def gauge(self, rig):
        return rig.value("continuum_kv_prefix_length_mismatch")

    async def test_the_same_length_is_fine(self, caplog):
        rig = Rig([encode_comment(prefix_length_comment(1024))])
        with caplog.at_level(logging.WARNING, logger="continuum_router.kv_index"):
            await rig.play()
        assert self.gauge(rig) == 0
        assert [r for r in caplog.records if "length" in r.getMessage()] == []

    async def test_another_length_is_told_once(self, caplog):
        other = encode_comment(prefix_length_comment(512))
        rig = Rig([other], [other], [other])
        with caplog.at_level(logging.WARNING, logger="continuum_router.kv_index"):
            await rig.play()
        assert self.gauge(rig) == 1
        assert len([r for r in caplog.records if "length" in r.getMessage()]) == 1

    async def test_the_gauge_falls_when_the_listener_is_put_right(self):
        other = encode_comment(prefix_length_comment(512))
        rig = Rig([other], [encode_comment(prefix_length_comment(1024))])
        await rig.play()
        assert self.gauge(rig) == 0

    async def test_other_comments_mean_nothing(self):
        rig = Rig([encode_comment("heartbeat"), encode_comment("prefix-length=many")])
        await rig.play()
        assert self.gauge(rig) == 0


class TestConnection:
    async def test_the_gauge_shows_an_open_stream(self):
        go_on = asyncio.Event()
        rig = Rig([created(P, 1), go_on])
        assert rig.value("continuum_kv_consumer_connected") == 0
        async with rig.running():
            await settle()
            assert rig.value("continuum_kv_consumer_connected") == 1
            go_on.set()
            await rig.feed.played.wait()
            assert rig.value("continuum_kv_consumer_connected") == 0

    async def test_a_stopped_consumer_is_not_connected(self):
        rig = Rig([created(P, 1), asyncio.Event()])
        async with rig.running():
            await settle()
            assert rig.value("continuum_kv_consumer_connected") == 1
        assert rig.value("continuum_kv_consumer_connected") == 0

    async def test_each_further_attempt_is_a_reconnect(self):
        rig = Rig([created(P, 1)], [FeedError(FeedFault.CONNECT)], [created(Q, 1)])
        await rig.play()
        assert rig.value("continuum_kv_consumer_reconnects_total") == 3

    async def test_a_long_outage_is_one_warning(self, caplog):
        rig = Rig([created(P, 1)], *[[FeedError(FeedFault.CONNECT)]] * 20)
        with caplog.at_level(logging.WARNING, logger="continuum_router.kv_index"):
            await rig.play()
        assert [r.getMessage() for r in caplog.records] == ["Event stream lost"]
        assert rig.value("continuum_kv_consumer_losses_total", reason="connect") == 20

    async def test_a_fault_of_the_wiring_is_told_although_the_loss_was(self, caplog):
        wrong = FeedError(FeedFault.UNAUTHORIZED, 401)
        rig = Rig([created(P, 1)], [FeedError(FeedFault.CONNECT)], *[[wrong]] * 5)
        with caplog.at_level(logging.WARNING, logger="continuum_router.kv_index"):
            await rig.play()
        assert [r.fields for r in caplog.records] == [
            {"backend": "a", "reason": "ended"},
            {
                "backend": "a",
                "reason": "unauthorized 401",
                "hint": "auth_token must be one of the listener's auth_token_env",
            },
        ]
        assert rig.value("continuum_kv_consumer_losses_total", reason="unauthorized") == 5
        assert rig.value("continuum_kv_consumer_losses_total", reason="ended") == 1

    async def test_the_listeners_own_reason_is_told(self, caplog):
        rig = Rig([created(P, 1), b": closed=fell_behind\n\n"])
        with caplog.at_level(logging.WARNING, logger="continuum_router.kv_index"):
            await rig.play()
        assert [r.fields["reason"] for r in caplog.records] == ["fell_behind"]


def test_every_series_of_a_source_is_there_from_the_start():
    metrics = Metrics()
    ConsumerMetrics(metrics).bind("a")
    text = metrics.exposition().decode()
    for name in (
        'continuum_kv_event_received_total{action="cache_created",backend="a"} 0.0',
        'continuum_kv_event_dropped_total{backend="a",reason="malformed"} 0.0',
        'continuum_kv_event_dropped_total{backend="a",reason="oversized"} 0.0',
        'continuum_kv_event_dropped_total{backend="a",reason="unknown_type"} 0.0',
        'continuum_kv_consumer_connected{backend="a"} 0.0',
        'continuum_kv_consumer_reconnects_total{backend="a"} 0.0',
        'continuum_kv_prefix_length_mismatch{backend="a"} 0.0',
    ):
        assert name in text


async def settle():
    """Let the consumer take in what is there."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_large_piece_gives_way_to_others():
    records = [created(prefix(str(i)), i) for i in range(1, 1001)]
    rig = Rig([b"".join(records)])
    seen = []

    async def look():
        while True:
            seen.append(rig.index.stats().entry_count)
            await asyncio.sleep(0)

    supervisor = Supervisor("look")
    supervisor.spawn("look", look())
    async with rig.running(), asyncio.timeout(5):
        await rig.feed.played.wait()
    await supervisor.stop()
    assert rig.index.stats().entry_count == 1000
    steps = [after - before for before, after in zip(seen, seen[1:], strict=False)]
    assert max(steps) <= 100
