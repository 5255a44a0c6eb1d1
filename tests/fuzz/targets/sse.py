"""The reader of server-sent events: any split gives the same, and nothing grows."""

from continuum_shared.sse import (
    SseComment,
    SseEvent,
    SseOverflow,
    SseParser,
    encode_comment,
    encode_event,
)
from fuzz.target import Target, plain, splits
from support.source_tree import ROOT

LIMIT = 256


def _read(pieces: list[bytes]) -> tuple[list[SseEvent | SseComment], str | None, bool]:
    parser = SseParser(max_bytes=LIMIT)
    out: list[SseEvent | SseComment] = []
    try:
        for piece in pieces:
            out += parser.feed(piece)
            assert len(parser._buffer) <= LIMIT
            assert sum(map(len, parser._data)) <= LIMIT
    except SseOverflow:
        return out, parser.last_event_id, True
    return out, parser.last_event_id, False


def run(data: bytes) -> None:
    whole, *others = map(_read, splits(data))
    for other in others:
        assert other[2] == whole[2]
        if not whole[2]:
            assert other == whole
    for record in whole[0]:
        if isinstance(record, SseComment):
            again = encode_comment(record.text)
            assert SseParser().feed(again) == [SseComment(text=record.text)]
        elif not (record.event or "").count("\n"):
            again = encode_event(record.data.encode("utf-8", "replace"), event=record.event)
            expected = SseEvent(event=record.event, data=record.data, id=None)
            assert SseParser().feed(again) == [expected]


TARGET = Target(
    name="sse",
    opened=plain(run),
    seeds=(
        (ROOT / "tests/fixtures/push_stream_golden.sse").read_bytes()[:1500],
        b"\xef\xbb\xbfdata: a\r\rdata: b\r\ndata: c\n\n: comment\n\n",
        b"id: 1\nevent: x\ndata\n\nid: \x00\ndata: y\n\n",
        b"data: " + b"x" * 300 + b"\n\n",
    ),
    tokens=(b"data:", b"event:", b"id:", b"\n\n", b"\r\n", b"\r", b": ", b"\xef\xbb\xbf", b"\0"),
    watched=("continuum_shared.sse",),
    smoke=1200,
    max_size=2048,
)
