"""The SSE reader and writer: tables of what a stream means, and its bounds."""

import pytest

from continuum_shared.sse import (
    SseComment,
    SseEvent,
    SseOverflow,
    SseParser,
    encode_comment,
    encode_event,
)


def event(data, name=None, id=None):
    return SseEvent(event=name, data=data, id=id)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [event("a")]),
        (b"data:a\r\n\r\n", [event("a")]),
        (b"data: a\r\r", [event("a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [event("a")]),
        (b"data: a\ndata: b\n\n", [event("a\nb")]),
        (b"data:  a\n\n", [event(" a")]),
        (b"data\n\n", [event("")]),
        (b"event: x\nid: 7\ndata: a\n\n", [event("a", "x", "7")]),
        (b"id: 7\ndata: a\n\ndata: b\n\n", [event("a", None, "7"), event("b", None, "7")]),
        (b"event: x\n\ndata: a\n\n", [event("a")]),
        (b": hello\n\n", [SseComment(text="hello")]),
        (b":\n", [SseComment(text="")]),
        (b"retry: 100\nother: x\ndata: a\n\n", [event("a")]),
        (b"id: a\x00b\ndata: a\n\n", [event("a")]),
        ("data: 가\n\n".encode(), [event("가")]),
        (b"data: a", []),
        (b"data: a\n", []),
    ],
)
def test_meaning(stream, expected):
    assert SseParser().feed(stream) == expected
    one_by_one = SseParser()
    assert [r for b in stream for r in one_by_one.feed(bytes([b]))] == expected


def test_last_event_id_moves_only_when_a_record_ends():
    parser = SseParser()
    parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert parser.last_event_id == "1"
    parser.feed(b"\n")
    assert parser.last_event_id == "2"


def test_a_line_over_the_bound_stops_the_stream():
    with pytest.raises(SseOverflow) as caught:
        SseParser(max_bytes=10).feed(b"data: 0123456789")
    assert caught.value.where == "line"


def test_data_lines_without_an_end_stop_the_stream():
    parser = SseParser(max_bytes=20)
    parser.feed(b"data: 01234567\n")
    with pytest.raises(SseOverflow) as caught:
        parser.feed(b"data: 01234567\ndata: 01234567\n")
    assert caught.value.where == "record"


def test_exactly_the_bound_is_fine():
    assert SseParser(max_bytes=16).feed(b"data: 0123456789\n\n") == [event("0123456789")]


def test_writer():
    assert encode_event(b"a\nb", event="x", id="e-1") == (
        b"event: x\nid: e-1\ndata: a\ndata: b\n\n"
    )
    assert encode_comment("a\nb") == b": a b\n\n"
