"""The JSON form of events: round trip, precedence of the names, refusal of everything else."""

import pytest

from continuum_shared.kv_event import (
    EventId,
    KvAction,
    KvEvent,
    KvEventError,
    closing_comment,
    decode,
    encode,
    parse_closing,
    parse_prefix_length,
    prefix_length_comment,
)

P = bytes(range(32))
HEX = P.hex()

EVENTS = [
    KvEvent(action=KvAction.CREATED, prefix=P, tokens=32),
    KvEvent(action=KvAction.CREATED, prefix=P),
    KvEvent(action=KvAction.EVICTED, prefix=P),
    KvEvent(action=KvAction.OFFLOADED, prefix=P, tokens=0),
    KvEvent(action=KvAction.RELOADED, prefix=P, tokens=7),
    KvEvent(action=KvAction.PURGED),
    KvEvent(action=KvAction.PURGED, snapshot=3),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_round_trip_with_and_without_the_sse_name(event):
    data = encode(event).decode()
    assert decode(event.action.value, data) == event
    assert decode(None, data) == event


def test_bytes_are_fixed():
    assert encode(EVENTS[0]) == (
        b'{"event":"cache_created","prefix_hash":"%s","token_count":32}' % HEX.encode()
    )
    assert encode(EVENTS[6]) == b'{"event":"cache_purged","snapshot":3}'


def test_the_sse_name_wins_over_the_json_event():
    data = f'{{"event":"cache_created","prefix_hash":"{HEX}"}}'
    assert decode("cache_evicted", data).action is KvAction.EVICTED


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        ("cache_moved", f'{{"prefix_hash":"{HEX}"}}', "unknown_type"),
        (None, f'{{"prefix_hash":"{HEX}"}}', "unknown_type"),
        ("cache_created", "{}", "malformed"),
        ("cache_created", "[]", "malformed"),
        ("cache_created", "nope", "malformed"),
        ("cache_created", '{"prefix_hash":"abc"}', "malformed"),
        ("cache_created", f'{{"prefix_hash":"{HEX[:30]}    {HEX[34:]}"}}', "malformed"),
        ("cache_created", f'{{"prefix_hash":"{"z" * 64}"}}', "malformed"),
        ("cache_created", f'{{"prefix_hash":"{HEX}","token_count":-1}}', "malformed"),
        ("cache_created", f'{{"prefix_hash":"{HEX}","token_count":true}}', "malformed"),
        ("cache_created", f'{{"prefix_hash":"{HEX}","token_count":1e3}}', "malformed"),
        ("cache_purged", '{"snapshot":"3"}', "malformed"),
    ],
)
def test_bad_record(name, data, fault):
    with pytest.raises(KvEventError) as caught:
        decode(name, data)
    assert caught.value.fault.value == fault


def test_event_ids():
    assert str(EventId(epoch="a-b", seq=7)) == "a-b-7"
    assert EventId.parse("a-b-7") == EventId(epoch="a-b", seq=7)
    for text in ("", "7", "-7", "a-", "a-x", "a-٣", "a-" + "9" * 30, "e" * 200 + "-1"):
        assert EventId.parse(text) is None


def test_prefix_length_comment():
    assert parse_prefix_length(prefix_length_comment(1024)) == 1024
    for text in ("", "prefix-length=", "prefix-length=x", "other=3", "prefix-length=-4"):
        assert parse_prefix_length(text) is None


@pytest.mark.parametrize(
    ("comment", "reason"),
    [
        (closing_comment("fell_behind"), "fell_behind"),
        ("closed=shutdown", "shutdown"),
        ("closed=", None),
        ("closed=two words", None),
        ("closed=" + "x" * 33, None),
        ("heartbeat", None),
        ("prefix-length=3", None),
    ],
)
def test_why_a_stream_ended(comment, reason):
    assert parse_closing(comment) == reason
