"""Relaying one reply over fakes: framing of what the client gets, holding back, taps, endings."""

import gzip

import pytest

from continuum_router.error_bodies import ErrorForm
from continuum_router.errors import AttemptFailure, Cause, Stage, UpstreamFailed
from continuum_router.upstream.deadlines import Deadlines, Limits
from continuum_router.upstream.relay import COLLECT_LIMIT, ErrorEvent, Relay
from support.dispatch import JSON_HEADERS, SSE_HEADERS, FakeReply, RecordingSink
from support.virtual_time import now, on_virtual_time

EVENT = b'data: {"a":1}\n\n'
CUT = AttemptFailure(Stage.STREAMING, Cause.CUT)


class Tap:
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self.seen.append(data)


def _relay(
    reply: FakeReply, *, wants_stream: bool = True, sink: RecordingSink | None = None
) -> tuple[Relay, RecordingSink, Tap, list[str]]:
    used = RecordingSink() if sink is None else sink
    tap = Tap()
    frames: list[str] = []
    relay = Relay(
        reply,
        used,
        wants_stream=wants_stream,
        deadlines=Deadlines(Limits(total=5)),
        taps=(tap,),
        on_first_frame=lambda: frames.append("first"),
    )
    return relay, used, tap, frames


async def test_a_plain_answer_is_sent_whole_with_its_length() -> None:
    relay, sink, tap, frames = _relay(FakeReply(200, b"ab", b"cd"), wants_stream=False)
    await relay.run()
    assert (sink.status, sink.length, sink.pieces, sink.end) == (200, 4, [b"abcd"], "finished")
    assert tap.seen == [b"ab", b"cd"]
    assert frames == []


async def test_an_answer_over_the_limit_starts_before_it_is_complete() -> None:
    piece = b"x" * (COLLECT_LIMIT // 2)
    reply = FakeReply(200, piece, piece, b"y", b"z", length=COLLECT_LIMIT + 2)
    relay, sink, _, _ = _relay(reply, wants_stream=False)
    await relay.run()
    assert (sink.length, sink.end) == (COLLECT_LIMIT + 2, "finished")
    assert [len(p) for p in sink.pieces] == [COLLECT_LIMIT + 1, 1]


async def test_a_stream_of_another_kind_is_not_collected() -> None:
    reply = FakeReply(200, b"{}\n", b"{}\n", headers=(("Content-Type", "application/x-ndjson"),))
    relay, sink, _, _ = _relay(reply)
    await relay.run()
    assert sink.pieces == [b"{}\n", b"{}\n"]


async def test_a_json_answer_to_a_stream_request_is_collected() -> None:
    relay, sink, _, _ = _relay(FakeReply(200, b"{", b"}", headers=JSON_HEADERS))
    await relay.run()
    assert (sink.length, sink.pieces) == (2, [b"{}"])


async def test_a_stream_is_held_until_its_first_event() -> None:
    reply = FakeReply(200, b": hi\n\n", b"data: ", b"1\n\n", EVENT, headers=SSE_HEADERS)
    relay, sink, tap, frames = _relay(reply)
    await relay.run()
    assert sink.pieces == [b": hi\n\ndata: 1\n\n", EVENT]
    assert (sink.length, sink.end) == (None, "finished")
    assert frames == ["first"]
    assert b"".join(tap.seen) == sink.body


async def test_an_empty_stream_is_an_empty_answer() -> None:
    relay, sink, _, frames = _relay(FakeReply(200, headers=SSE_HEADERS))
    await relay.run()
    assert (sink.status, sink.pieces, sink.end, frames) == (200, [], "finished", [])


async def test_a_stream_of_comments_only_is_relayed_at_its_end() -> None:
    relay, sink, _, _ = _relay(FakeReply(200, b": a\n\n", b": b", headers=SSE_HEADERS))
    await relay.run()
    assert sink.body == b": a\n\n: b"


async def test_a_long_first_event_is_not_held_for_ever() -> None:
    piece = b"data: " + b"x" * 9000
    reply = FakeReply(200, piece, b"y\n\n", EVENT, headers=SSE_HEADERS)
    relay, sink, _, frames = _relay(reply)
    await relay.run()
    assert sink.body == piece + b"y\n\n" + EVENT
    assert frames == ["first"]


async def test_an_error_event_is_raised_before_anything_is_sent() -> None:
    relay, sink, _, frames = _relay(
        FakeReply(200, b'data: {"error":{"code":400}}\n\n', headers=SSE_HEADERS)
    )
    with pytest.raises(ErrorEvent) as caught:
        await relay.run()
    assert caught.value.error.status == 400
    assert not sink.started
    assert frames == []


async def test_coded_streams_are_decoded_for_the_client_and_the_taps() -> None:
    wire = gzip.compress(EVENT * 3)
    headers = (*SSE_HEADERS, ("Content-Encoding", "gzip"), ("X-Kept", "1"))
    reply = FakeReply(200, wire[:11], wire[11:], headers=headers, length=len(wire))
    relay, sink, tap, _ = _relay(reply)
    await relay.run()
    assert sink.body == EVENT * 3
    assert b"".join(tap.seen) == EVENT * 3
    assert sink.headers == [*SSE_HEADERS, ("X-Kept", "1")]
    assert sink.length is None


async def test_a_damaged_coding_is_the_backends_failure() -> None:
    headers = (*JSON_HEADERS, ("Content-Encoding", "gzip"))
    relay, sink, _, _ = _relay(FakeReply(200, b"no gzip", headers=headers), wants_stream=False)
    with pytest.raises(AttemptFailure) as caught:
        await relay.run()
    assert (caught.value.stage, caught.value.cause) == (Stage.STREAMING, Cause.BAD_CODING)
    assert not sink.started


async def test_breaking_off_between_events() -> None:
    relay, sink, _, _ = _relay(FakeReply(200, EVENT, b"data: ha", CUT, headers=SSE_HEADERS))
    with pytest.raises(AttemptFailure):
        await relay.run()
    await relay.break_off(UpstreamFailed(), "r1")
    assert sink.pieces[0] == EVENT
    assert sink.pieces[1].startswith(b'data: {"error":')
    assert sink.pieces[1].endswith(b"\n\n")
    assert b'"request_id":"r1"' in sink.pieces[1]
    assert sink.end == "closed"


async def test_breaking_off_inside_an_event_that_was_too_long_to_hold() -> None:
    piece = b"data: " + b"x" * 70_000
    relay, sink, _, _ = _relay(FakeReply(200, EVENT, piece, CUT, headers=SSE_HEADERS))
    with pytest.raises(AttemptFailure):
        await relay.run()
    await relay.break_off(UpstreamFailed(), "r1")
    assert sink.pieces[1] == piece
    assert sink.pieces[2].startswith(b'\n\ndata: {"error":')


async def test_a_plain_answer_is_cut_not_ended() -> None:
    piece = b"x" * (COLLECT_LIMIT + 1)
    relay, sink, _, _ = _relay(FakeReply(200, piece, CUT), wants_stream=False)
    with pytest.raises(AttemptFailure):
        await relay.run()
    assert sink.started
    await relay.break_off(UpstreamFailed(), "r1")
    assert sink.end == "cut"


async def test_a_congested_client_is_cut_because_it_would_not_read_the_event() -> None:
    sink = RecordingSink()
    relay, _, _, _ = _relay(FakeReply(200, EVENT, CUT, headers=SSE_HEADERS), sink=sink)
    with pytest.raises(AttemptFailure):
        await relay.run()
    sink.congested = True
    await relay.break_off(UpstreamFailed(), "r1")
    assert sink.end == "cut"


def _keeping(reply: FakeReply, sink: RecordingSink | None = None) -> tuple[Relay, RecordingSink]:
    used = RecordingSink() if sink is None else sink
    relay = Relay(
        reply,
        used,
        wants_stream=True,
        deadlines=Deadlines(Limits(total=500)),
        taps=(),
        on_first_frame=lambda: None,
        keepalive=10.0,
    )
    return relay, used


@on_virtual_time
async def test_a_silent_stream_gets_comments_after_its_first_event() -> None:
    """S6: a comment with a single line feed, not before the first data event."""
    reply = FakeReply(200, 35.0, b": hello\n\n", 25.0, EVENT, 35.0, EVENT, headers=SSE_HEADERS)
    relay, sink = _keeping(reply)
    await relay.run()
    assert sink.pieces == [b": hello\n\n" + EVENT, *[b": ping\n"] * 3, EVENT]
    assert sink.end == "finished"


@on_virtual_time
async def test_comments_are_never_put_into_an_event() -> None:
    half = 5
    reply = FakeReply(200, EVENT, EVENT[:half], 15.0, EVENT[half:], headers=SSE_HEADERS)
    relay, sink = _keeping(reply)
    await relay.run()
    # Half an event is held back, so the client stands between two events.
    assert sink.body == EVENT + b": ping\n" + EVENT
    long = b"data: " + b"x" * 70_000
    relay, sink = _keeping(FakeReply(200, EVENT, long, 15.0, b"\n\n", headers=SSE_HEADERS))
    await relay.run()
    assert sink.body == EVENT + long + b"\n\n"


@on_virtual_time
async def test_a_client_that_does_not_read_gets_no_comments() -> None:
    sink = RecordingSink(congested=True)
    relay, _ = _keeping(FakeReply(200, EVENT, 35.0, EVENT, headers=SSE_HEADERS), sink)
    await relay.run()
    assert sink.pieces == [EVENT, EVENT]


@on_virtual_time
async def test_comments_give_the_backend_no_more_time() -> None:
    relay, sink = _keeping(FakeReply(200, EVENT, 100.0, EVENT, headers=SSE_HEADERS))
    relay._deadlines = Deadlines(Limits(total=500, chunk_interval=25.0))
    with pytest.raises(TimeoutError):
        async with relay._deadlines:
            await relay.run()
    assert sink.pieces == [EVENT, b": ping\n", b": ping\n"]
    assert now() == 25.0


async def test_clients_that_look_for_names_get_a_named_error_event() -> None:
    sink = RecordingSink()
    relay = Relay(
        FakeReply(200, EVENT, CUT, headers=SSE_HEADERS),
        sink,
        wants_stream=True,
        deadlines=Deadlines(Limits(total=5)),
        taps=(),
        on_first_frame=lambda: None,
        error_form=ErrorForm.ANTHROPIC,
    )
    with pytest.raises(AttemptFailure):
        await relay.run()
    await relay.break_off(UpstreamFailed(), "r1")
    last = sink.body.removeprefix(EVENT)
    assert last.startswith(b'event: error\ndata: {"type":"error","error":{')
    assert last.endswith(b"}\n\n")
