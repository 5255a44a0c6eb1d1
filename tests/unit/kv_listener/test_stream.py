"""The numbered stream: ids, resume, snapshot, swap, re-announcement, falling behind."""

import pytest

from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.stream import BLOCK, SHARED_BATCHES, EventStream, FellBehind
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from continuum_shared.sse import SseComment, SseParser

KEYS = [PrefixKey(bytes([n]) * 32) for n in range(8)]


def created(n: int, tokens: int = 16) -> KvEvent:
    return KvEvent(action=KvAction.CREATED, prefix=KEYS[n], tokens=tokens)


def evicted(n: int) -> KvEvent:
    return KvEvent(action=KvAction.EVICTED, prefix=KEYS[n])


class Live(list):
    """What is live now, as the tracker would say."""


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def live() -> Live:
    return Live()


@pytest.fixture
def stream(metrics, live) -> EventStream:
    return EventStream(
        epoch="e1",
        max_prefix_length=1024,
        snapshot=lambda: list(live),
        metrics=ListenerMetrics(metrics).stream("s"),
        history=4,
    )


def read(data: bytes) -> list[tuple[str | None, str, str | None]]:
    """(event, data or comment, id when the record itself had one)."""
    out: list[tuple[str | None, str, str | None]] = []
    parser = SseParser()
    for block in data.split(b"\n\n"):
        before = parser.last_event_id
        for item in parser.feed(block + b"\n\n") if block else []:
            if isinstance(item, SseComment):
                out.append((None, item.text, None))
            else:
                mine = item.id if b"\nid:" in block or block.startswith(b"id:") else None
                assert mine is not None or item.id == before
                out.append((item.event, item.data, mine))
    return out


def everything(sub) -> bytes:
    """All that is there for this subscriber now."""
    out = b""
    while piece := sub.take():
        out += piece
    return out


def names(data: bytes) -> list[tuple[str | None, str | None]]:
    return [(event, identity) for event, _, identity in read(data)]


def test_a_fresh_stream_greets_and_then_sends_live_records(stream):
    sub = stream.subscribe(None)
    assert read(sub.take()) == [(None, "prefix-length=1024", None)]
    assert sub.take() == b""
    assert not sub.news.is_set()
    stream.publish([created(0, 32)])
    assert sub.news.is_set()
    assert read(sub.take()) == [
        (
            "cache_created",
            '{"event":"cache_created","prefix_hash":"' + "00" * 32 + '","token_count":32}',
            "e1-1",
        )
    ]


def test_without_an_id_there_is_a_snapshot_whose_last_record_has_the_id(stream, live):
    stream.publish([created(0), created(1), evicted(0), created(2)])
    live.extend([created(1), created(2)])
    assert names(everything(stream.subscribe(None))) == [
        (None, None),
        ("cache_created", None),
        ("cache_created", "e1-4"),
    ]


@pytest.mark.parametrize("header", ["other-3", "e1-99", "e1-x", "e1", "ü", "e1--1"])
def test_an_unknown_position_gets_a_swap(stream, live, header):
    stream.publish([created(0), created(1)])
    live.extend([created(0), created(1)])
    got = read(everything(stream.subscribe(header)))
    assert [(event, identity) for event, _, identity in got] == [
        (None, None),
        ("cache_purged", None),
        ("cache_created", None),
        ("cache_created", "e1-2"),
    ]
    assert got[1][1] == '{"event":"cache_purged","snapshot":2}'


def test_a_swap_to_nothing_carries_the_id_on_the_purge(stream):
    stream.publish([created(0), evicted(0)])
    got = read(everything(stream.subscribe("other-1")))
    assert got[1] == ("cache_purged", '{"event":"cache_purged","snapshot":0}', "e1-2")


@pytest.mark.parametrize(
    ("header", "ids"),
    [
        ("e1-2", ["e1-3", "e1-4", "e1-5", "e1-6"]),
        ("e1-3", ["e1-4", "e1-5", "e1-6"]),
        ("e1-6", []),
    ],
)
def test_a_known_position_resumes_right_behind_it(stream, header, ids):
    for n in range(6):
        stream.publish([created(n)])
    got = read(everything(stream.subscribe(header)))
    assert got[0] == (None, "prefix-length=1024", None)
    assert [identity for _, _, identity in got[1:]] == ids


def test_a_position_before_the_history_gets_a_swap(stream):
    for n in range(6):
        stream.publish([created(n)])
    assert names(everything(stream.subscribe("e1-1")))[1][0] == "cache_purged"


def test_the_place_before_the_first_record_resumes(stream):
    assert names(everything(stream.subscribe("e1-0"))) == [(None, None)]
    sub = stream.subscribe("e1-0")
    stream.publish([created(0)])
    assert names(everything(sub)) == [(None, None), ("cache_created", "e1-1")]


def test_all_subscribers_get_the_same_bytes(stream):
    subs = [stream.subscribe("e1-0") for _ in range(3)]
    stream.publish([created(0), evicted(0)])
    assert len({sub.take() for sub in subs}) == 1


def test_subscribers_at_one_place_share_one_object(stream):
    subs = [stream.subscribe("e1-0") for _ in range(5)]
    for sub in subs:
        sub.take()
    stream.publish([created(0), created(1)])
    batches = [sub.take() for sub in subs]
    assert len({id(batch) for batch in batches}) == 1
    # Nothing that was joined for those who had everything is given to who comes later.
    stream.publish([created(2)])
    late = stream.subscribe("e1-0")
    late.take()
    assert [identity for _, identity in names(late.take())] == ["e1-1", "e1-2", "e1-3"]
    assert [identity for _, identity in names(subs[0].take())] == ["e1-3"]


def test_full_batches_are_shared_with_who_comes_later_and_few_are_kept(metrics, live):
    stream = EventStream(
        epoch="e1",
        max_prefix_length=1,
        snapshot=lambda: list(live),
        metrics=ListenerMetrics(metrics).stream("s"),
    )
    stream.publish([created(n % 8) for n in range(BLOCK * SHARED_BATCHES + 99)])
    first, second = stream.subscribe("e1-0"), stream.subscribe("e1-0")
    first.take()
    second.take()
    full = [first.take() for _ in range(SHARED_BATCHES)]
    stream.publish([created(1)])
    ends = [names(batch)[-1][1] for batch in full[:3]]
    assert ends == [f"e1-{BLOCK * n - 1}" for n in (1, 2, 3)]
    assert [second.take() is batch for batch in full] == [True] * SHARED_BATCHES
    rest = first.take()
    assert len(stream._full) == SHARED_BATCHES
    assert rest + everything(first) == everything(second)


def test_who_begins_elsewhere_stands_at_the_same_place_from_the_next_block_on(metrics):
    stream = EventStream(
        epoch="e1",
        max_prefix_length=1,
        snapshot=lambda: [],
        metrics=ListenerMetrics(metrics).stream("s"),
    )
    stream.publish([created(n % 8) for n in range(3 * BLOCK)])
    subs = [stream.subscribe(f"e1-{place}") for place in (0, 7, 50)]
    for sub in subs:
        sub.take()
        sub.take()
    assert len({id(sub.take()) for sub in subs}) == 1


def test_those_who_come_back_together_share_one_snapshot(stream, live):
    stream.publish([created(0), created(1), created(2)])
    live.extend([created(n) for n in range(3)])
    fresh, lost = stream.subscribe(None), stream.subscribe("gone-1")
    live[:] = [created(0), created(1)]
    stream.publish([evicted(2)])
    late = stream.subscribe(None)
    for sub in (fresh, lost, late):
        sub.take()
    first = fresh.take()
    assert lost.take() is first
    assert late.take() is first
    # What went after the snapshot follows it, so that all end in the same state.
    assert names(fresh.take()) == names(late.take()) == [("cache_evicted", "e1-4")]
    del fresh, lost, late, sub
    assert names(everything(stream.subscribe(None)))[-1] == ("cache_created", "e1-4")


def test_a_snapshot_that_grows_old_is_not_shared(stream, live):
    live.append(created(0))
    reader = stream.subscribe(None)
    stream.publish([created(n) for n in range(3)])  # more than half of the history
    live.extend([created(1), created(2)])
    other = stream.subscribe(None)
    other.take()
    reader.take()
    assert len(names(other.take())) == 3
    assert len(names(reader.take())) == 1


def test_lag_and_caught_up(stream):
    sub = stream.subscribe("e1-0")
    assert (sub.lag, sub.caught_up) == (0, False)  # the greeting is still to be sent
    sub.take()
    assert sub.caught_up
    stream.publish([created(0), created(1)])
    assert (sub.lag, sub.caught_up) == (2, False)
    sub.take()
    assert (sub.lag, sub.caught_up) == (0, True)


def test_only_who_waits_is_woken(stream):
    waiting, busy = stream.subscribe("e1-0"), stream.subscribe("e1-0")
    waiting.take()
    waiting.take()
    busy.take()
    assert stream._idle == {waiting}
    stream.publish([created(0)])
    assert (waiting.news.is_set(), stream._idle) == (True, set())
    waiting.take()
    waiting.take()
    waiting.leave()
    assert stream._idle == set()


def test_take_is_bounded(stream):
    sub = stream.subscribe("e1-0")
    sub.take()
    stream.publish([created(n) for n in range(4)])
    first = sub.take(limit=1)
    assert names(first) == [("cache_created", "e1-1")]
    assert names(sub.take()) == [("cache_created", f"e1-{n}") for n in (2, 3, 4)]


def test_a_subscriber_that_falls_out_of_the_history_is_told_to_come_back(stream):
    sub = stream.subscribe("e1-0")
    sub.take()
    stream.publish([created(n % 8) for n in range(4)])
    assert names(sub.take(limit=1)) == [("cache_created", "e1-1")]
    stream.publish([created(4), created(5)])
    with pytest.raises(FellBehind):
        sub.take()
    # What it had, it had without a hole; coming back it gets everything anew.
    assert names(everything(stream.subscribe("e1-1")))[1][0] == "cache_purged"


def test_reannounced_records_have_no_id_and_keep_their_place(stream):
    sub = stream.subscribe("e1-0")
    sub.take()
    stream.publish([created(0)])
    stream.reannounce([created(0, 48)])
    stream.publish([evicted(0)])
    assert names(sub.take()) == [
        ("cache_created", "e1-1"),
        ("cache_created", None),
        ("cache_evicted", "e1-2"),
    ]
    assert sub.take() == b""


def test_reannounced_records_are_not_history(stream):
    stream.publish([created(0)])
    stream.reannounce([created(0)] * 10)
    stream.publish([created(1)])
    assert [identity for _, _, identity in read(everything(stream.subscribe("e1-0")))[1:]] == [
        "e1-1",
        "e1-2",
    ]


def test_close_ends_every_stream_now_and_later(stream):
    sub = stream.subscribe(None)
    sub.take()
    sub.take()
    stream.close()
    assert sub.closed
    assert sub.news.is_set()
    assert stream.subscribe(None).closed


def test_counts_are_exact(stream, metrics):
    sub = stream.subscribe(None)
    stream.subscribe("e1-0")
    stream.subscribe("nope")
    stream.publish([created(0), created(1), evicted(0)])
    stream.reannounce([created(1)])
    sub.leave()
    sub.leave()
    text = metrics.exposition().decode()
    for line in (
        'continuum_listener_records_total{action="cache_created",source="s"} 2.0',
        'continuum_listener_records_total{action="cache_evicted",source="s"} 1.0',
        'continuum_listener_reannounced_total{source="s"} 1.0',
        'continuum_listener_stream_starts_total{source="s",start="snapshot"} 1.0',
        'continuum_listener_stream_starts_total{source="s",start="resumed"} 1.0',
        'continuum_listener_stream_starts_total{source="s",start="swap"} 1.0',
        'continuum_listener_stream_ends_total{end="client_left",source="s"} 1.0',
        'continuum_listener_subscribers{source="s"} 2.0',
    ):
        assert line in text
    assert stream.subscribers == 2
