"""Events are relayed whole, bytes stay the same, nothing waits that need not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuum_router.upstream.whole_events import MAX_HELD, WholeEvents

EVENT = b'data: {"a": 1}\n\n'


def test_whole_events_pass_as_the_same_object() -> None:
    piece = EVENT * 3
    assert WholeEvents().feed(piece) is piece


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_the_unfinished_tail_waits(end: bytes) -> None:
    whole = WholeEvents()
    assert whole.feed(b"data: 1" + end + b"data: 2") == b"data: 1" + end
    assert whole.feed(end[:1]) == b""
    assert whole.between_events
    assert whole.feed(end[1:] + b"da") == b"data: 2" + end
    assert whole.rest() == b"da"


def test_a_heartbeat_without_a_blank_line_does_not_wait() -> None:
    whole = WholeEvents()
    assert whole.feed(b": ping\n") == b": ping\n"
    assert whole.feed(EVENT + b": ping\n: pong\nda") == EVENT + b": ping\n: pong\n"
    assert whole.feed(b"ta: 2\n: not between\n") == b""
    assert whole.feed(b"\n") == b"data: 2\n: not between\n\n"


def test_an_event_too_long_to_hold_passes_as_it_comes() -> None:
    whole = WholeEvents()
    big = b"data: " + b"x" * MAX_HELD
    assert whole.feed(big) == big
    assert not whole.between_events
    assert whole.feed(b"y\n\n" + EVENT + b"d") == b"y\n\n" + EVENT
    assert whole.between_events


@given(st.lists(st.sampled_from([b"data: 1", b": c", b"\n", b"\n\n", b"\r", b"\r\n", b"x" * 9])))
def test_bytes_are_never_changed(pieces: list[bytes]) -> None:
    whole = WholeEvents()
    out = b"".join([*(whole.feed(piece) for piece in pieces), whole.rest()])
    assert out == b"".join(pieces)


@given(st.lists(st.integers(1, 12), min_size=1), st.integers(1, 4))
def test_any_split_releases_only_whole_events(cuts: list[int], count: int) -> None:
    wire = EVENT * count + b"data: tail"
    whole, out, at = WholeEvents(), b"", 0
    for cut in [*cuts, len(wire)]:
        out += whole.feed(wire[at : at + cut])
        at += cut
        assert len(out) % len(EVENT) == 0
    assert out == EVENT * count
    assert whole.rest() == b"data: tail"
