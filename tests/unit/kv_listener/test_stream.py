"""The numbered stream: ids, resume, snapshot, swap, re-announcement, falling behind."""

import pytest

from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.stream import EventStream, FellBehind
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
    assert names(stream.subscribe(None).take()) == [
        (None, None),
        ("cache_created", None),
        ("cache_created", "e1-4"),
    ]


@pytest.mark.parametrize("header", ["other-3", "e1-99", "e1-x", "e1", "ü", "e1--1"])
def test_an_unknown_position_gets_a_swap(stream, live, header):
    stream.publish([created(0), created(1)])
    live.extend([created(0), created(1)])
    got = read(stream.subscribe(header).take())
    assert [(event, identity) for event, _, identity in got] == [
        (None, None),
        ("cache_purged", None),
        ("cache_created", None),
        ("cache_created", "e1-2"),
    ]
    assert got[1][1] == '{"event":"cache_purged","snapshot":2}'


def test_a_swap_to_nothing_carries_the_id_on_the_purge(stream):
    stream.publish([created(0), evicted(0)])
    got = read(stream.subscribe("other-1").take())
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
    got = read(stream.subscribe(header).take())
    assert got[0] == (None, "prefix-length=1024", None)
    assert [identity for _, _, identity in got[1:]] == ids


def test_a_position_before_the_history_gets_a_swap(stream):
    for n in range(6):
        stream.publish([created(n)])
    assert names(stream.subscribe("e1-1").take())[1][0] == "cache_purged"


def test_the_place_before_the_first_record_resumes(stream):
    assert names(stream.subscribe("e1-0").take()) == [(None, None)]
    sub = stream.subscribe("e1-0")
    stream.publish([created(0)])
    assert names(sub.take()) == [(None, None), ("cache_created", "e1-1")]


def test_all_subscribers_get_the_same_bytes(stream):
    subs = [stream.subscribe("e1-0") for _ in range(3)]
    stream.publish([created(0), evicted(0)])
    assert len({sub.take() for sub in subs}) == 1


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
    assert names(stream.subscribe("e1-1").take())[1][0] == "cache_purged"


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
    assert [identity for _, _, identity in read(stream.subscribe("e1-0").take())[1:]] == [
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
