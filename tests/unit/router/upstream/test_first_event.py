"""When holding back a stream ends, and which first events are errors."""

import pytest

from continuum_router.upstream.first_event import PEEK_LIMIT, FirstEvent


def _feed(*pieces: bytes) -> FirstEvent:
    first = FirstEvent()
    for piece in pieces:
        if not first.seen:
            first.feed(piece)
    return first


@pytest.mark.parametrize(
    ("wire", "seen"),
    [
        (b"data: {}\n\n", True),
        (b"data: {}\r\n\r\n", True),
        (b"data: {}\r\r", True),
        (b"event: x\ndata: y\n\n", True),
        (b"\xef\xbb\xbfdata: y\n\n", True),
        (b": ping\n\n", False),
        (b"\n\n\n", False),
        (b"event: x\n\n", False),
        (b"id: 1\n\n", False),
        (b"retry: 5\n\n", False),
        (b"data: {", False),
        (b"data: {}\n", False),
        (b": a\n\ndata: {}\n\n", True),
    ],
)
def test_what_counts_as_a_first_data_event(wire: bytes, seen: bool) -> None:
    whole = _feed(wire)
    split = _feed(*(wire[i : i + 1] for i in range(len(wire))))
    assert (whole.seen, split.seen) == (seen, seen)
    assert (whole.open, split.open) == (seen, seen)
    assert whole.take() == wire
    held = split.take()
    # A CR alone may be a line end, so an LF behind it comes after the event.
    assert wire in (held, held + b"\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ('{"error":{"message":"x","code":400}}', 400),
        ('{"error":{"message":"x","code":"bad"}}', 502),
        ('{"error":{"message":"x","status":429}}', 429),
        ('{"error":"x","status":503}', 503),
        ('{"error":"x"}', 502),
        ('{"error":{"code":200}}', 502),
        ('{"error":{"code":true}}', 502),
        ('{"object":"error","error":{"code":404}}', 404),
        ('{"type":"error","error":{"type":"overloaded_error","message":"x"}}', 503),
        ('{"type":"error","error":{"type":"invalid_request_error","message":"x"}}', 400),
        ('{"error":{"type":"rate_limit_error","code":"slow_down"}}', 429),
        ('{"error":{"type":"rate_limit_error","code":400}}', 400),
        ('{"error":{"type":"another"}}', 502),
        ('{"error":{"type":["x"]}}', 502),
    ],
)
def test_errors(data: str, status: int) -> None:
    for wire in (f"data: {data}\n\n", f": ping\n\nevent: error\ndata: {data}\n\n"):
        first = _feed(wire.encode())
        assert first.error is not None
        assert (first.error.status, first.error.body) == (status, data.encode())


@pytest.mark.parametrize(
    "data",
    [
        '{"choices":[{"delta":{"content":"the \\"error\\" is"}}]}',
        '{"error":null,"choices":[]}',
        '{"error":{},"choices":[]}',
        '["error"]',
        '"error"',
        "[DONE]",
        "error",
    ],
)
def test_no_errors(data: str) -> None:
    first = _feed(f"data: {data}\n\n".encode())
    assert first.seen
    assert first.error is None


def test_only_the_first_event_counts() -> None:
    first = _feed(b'data: {"a":1}\n\ndata: {"error":{"code":400}}\n\n')
    assert first.error is None


def test_holding_back_ends_at_the_limit_without_an_event() -> None:
    first = FirstEvent()
    line = b": " + b"x" * 1021 + b"\n"
    for _ in range(PEEK_LIMIT // len(line)):
        first.feed(line)
    assert (first.open, first.seen) == (False, False)
    first.feed(line)
    assert (first.open, first.seen) == (True, False)
    assert len(first.take()) == PEEK_LIMIT + len(line)
    first.feed(b'data: {"error":{"code":400}}\n\n')
    assert first.seen
    assert first.error is None
    assert first.take() == b""


def test_an_endless_first_event_is_let_go() -> None:
    first = _feed(b"data: " + b"x" * (1024 * 1024 + 1))
    assert first.seen
    assert first.error is None
