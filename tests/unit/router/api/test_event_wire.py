"""From a backend's event stream to the client's bytes."""

from continuum_router.api.event_wire import LAST_CHUNK, EventWire
from continuum_router.upstream.usage import Usage
from support.scripted_backend import chunk, sse

ONE, TWO = sse("1"), sse("2")


def test_whole_events_are_framed_and_then_may_pass_as_they_are() -> None:
    wire = EventWire()
    assert not wire.passing
    assert wire.payload(ONE) == chunk(ONE)
    assert wire.first.seen
    assert wire.passing
    framed = chunk(TWO) + chunk(ONE)
    wire.passed(framed, len(ONE + TWO))
    assert wire.end() == LAST_CHUNK


def test_the_first_event_is_held_back_until_it_is_known() -> None:
    wire = EventWire()
    assert wire.payload(b": hello\n\n") == b""
    assert wire.payload(ONE[:4]) == b""
    assert wire.payload(ONE[4:]) == chunk(b": hello\n\n" + ONE)


def test_an_error_as_first_event_is_not_given_on() -> None:
    wire = EventWire()
    assert wire.payload(sse('{"error":{"code":503}}')) == b""
    assert wire.first.error is not None
    assert wire.first.error.status == 503


def test_half_an_event_waits_for_its_end_and_stops_the_passing() -> None:
    wire = EventWire()
    wire.payload(ONE)
    assert wire.payload(TWO + b"data: ha") == chunk(TWO)
    assert not wire.passing
    assert wire.payload(b"lf\n\n") == chunk(b"data: half\n\n")
    assert wire.passing


def test_what_is_held_at_the_end_goes_out() -> None:
    wire = EventWire()
    wire.payload(ONE)
    wire.payload(b"data: tail")
    assert wire.end() == chunk(b"data: tail") + LAST_CHUNK


def test_a_stream_without_an_event_still_ends() -> None:
    wire = EventWire()
    assert wire.payload(b": a\n\n") == b""
    assert wire.end() == chunk(b": a\n\n") + LAST_CHUNK


def test_a_broken_stream_ends_with_an_event_that_can_be_read() -> None:
    wire = EventWire()
    wire.payload(ONE)
    assert wire.broken(TWO) == chunk(TWO) + LAST_CHUNK
    long = EventWire()
    long.payload(ONE)
    long.payload(b"data: " + b"x" * 70_000)
    assert long.broken(TWO) == chunk(b"\n\n" + TWO) + LAST_CHUNK


def test_usage_is_read_from_the_end_in_either_form() -> None:
    last = sse('{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}')
    found = Usage(prompt_tokens=3, completion_tokens=4)
    for feed in (
        lambda wire: wire.payload(last),
        lambda wire: wire.passed(chunk(last), len(last)),
        lambda wire: (wire.passed(chunk(last[:30]), 30), wire.payload(last[30:])),
    ):
        wire = EventWire()
        wire.payload(ONE)
        feed(wire)
        assert wire.usage() == found


def test_what_is_kept_for_it_is_bounded() -> None:
    wire = EventWire()
    for _ in range(5000):
        wire.passed(chunk(ONE), len(ONE))
    assert len(wire._tail) <= 4096 // len(ONE) + 1
