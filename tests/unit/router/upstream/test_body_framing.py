"""Where bodies end."""

import pytest

from continuum_router.upstream.body_framing import (
    MAX_CHUNK_LINE,
    MAX_TRAILER_BYTES,
    ChunkedFraming,
    CloseFraming,
    FramingError,
    LengthFraming,
    whole_event_chunks,
)


def feed(framing, *pieces: bytes) -> tuple[bytes, int]:
    """Payload and number of bytes taken."""
    out: list[bytes] = []
    used = sum(framing.feed(piece, out) for piece in pieces)
    assert all(out)
    return b"".join(out), used


CHUNKED = {
    "one chunk": (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
    "no chunk": (b"0\r\n\r\n", b""),
    "several": (b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", b"abc"),
    "upper and lower hex, leading zeros": (
        b"00A\r\n0123456789\r\na\r\n0123456789\r\n000\r\n\r\n",
        b"0123456789" * 2,
    ),
    "extensions": (b'5;a=b\r\nhello\r\n0 ; x="y"\r\n\r\n', b"hello"),
    "space after the size": (b"5 \r\nhello\r\n0\r\n\r\n", b"hello"),
    "trailers": (b"1\r\na\r\n0\r\nX-T: 1\r\nY: 2\r\n\r\n", b"a"),
    "payload looks like framing": (b"7\r\n0\r\n\r\n\r\n\r\n0\r\n\r\n", b"0\r\n\r\n\r\n"),
}


@pytest.mark.parametrize("name", CHUNKED)
def test_chunked_bodies_whole_and_byte_by_byte(name):
    wire, payload = CHUNKED[name]
    whole = ChunkedFraming()
    assert feed(whole, wire + b"NEXT") == (payload, len(wire))
    assert whole.done
    single = ChunkedFraming()
    assert feed(single, *[wire[i : i + 1] for i in range(len(wire))]) == (payload, len(wire))
    assert single.done


@pytest.mark.parametrize("name", CHUNKED)
def test_chunked_bodies_are_followed_without_taking_the_payload(name):
    wire, _ = CHUNKED[name]
    framing = ChunkedFraming()
    assert framing.feed(wire + b"NEXT", None) == len(wire)
    assert framing.done


@pytest.mark.parametrize("name", CHUNKED)
def test_a_chunked_body_is_not_done_early(name):
    wire, _ = CHUNKED[name]
    for size in range(len(wire)):
        framing = ChunkedFraming()
        framing.feed(wire[:size], None)
        assert not framing.done


BROKEN = {
    "sign": b"+5\r\nhello\r\n",
    "prefix": b"0x5\r\nhello\r\n",
    "underscore": b"1_0\r\n",
    "empty size": b"\r\n",
    "no hex": b"g\r\n",
    "leading space": b" 5\r\nhello\r\n",
    "bare LF": b"5\nhello\r\n",
    "bare CR in an extension": b"5;a\rb\r\nhello\r\n",
    "control byte": b"5;\x00\r\nhello\r\n",
    "sixteen digits": b"1" * 16 + b"\r\n",
    "chunk too short": b"6\r\nhello\r\n0\r\n\r\n",
    "chunk too long": b"4\r\nhello\r\n0\r\n\r\n",
    "long line": b"5;" + b"x" * MAX_CHUNK_LINE,
    "bad trailer": b"0\r\nno colon\r\n\r\n",
    "folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
    "long trailers": b"0\r\n" + b"A: b\r\n" * (MAX_TRAILER_BYTES // 6 + 1),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("step", [1, 1 << 20], ids=["byte by byte", "whole"])
def test_broken_chunks_are_refused(name, step):
    wire = BROKEN[name]
    framing = ChunkedFraming()
    with pytest.raises(FramingError):
        feed(framing, *[wire[i : i + step] for i in range(0, len(wire), step)])
    assert not framing.done


@pytest.mark.parametrize(
    ("length", "pieces", "payload", "used"),
    [
        (0, (b"x",), b"", 0),
        (3, (b"abc",), b"abc", 3),
        (3, (b"a", b"bcd"), b"abc", 3),
        (3, (b"abcdef",), b"abc", 3),
    ],
)
def test_bodies_with_a_length(length, pieces, payload, used):
    framing = LengthFraming(length)
    assert feed(framing, *pieces) == (payload, used)
    assert framing.done


def test_a_body_with_a_length_waits_for_its_rest():
    framing = LengthFraming(3)
    feed(framing, b"ab")
    assert not framing.done
    assert not framing.ends_with_connection


def test_a_body_until_close_takes_everything():
    framing = CloseFraming()
    assert feed(framing, b"ab", b"", b"c") == (b"abc", 3)
    assert not framing.done
    assert framing.ends_with_connection


def test_a_whole_piece_is_not_copied():
    data = b"x" * 1000
    out: list[bytes] = []
    LengthFraming(1000).feed(data, out)
    CloseFraming().feed(data, out)
    assert out[0] is data
    assert out[1] is data


EVENT = b"data: 1\n\n"
FRAMED = b"9\r\n" + EVENT + b"\r\n"
EVENT_CHUNKS = {
    "one event": (FRAMED, 9),
    "two events": (FRAMED * 2, 18),
    "an event in two chunks": (b"4\r\ndata\r\n5\r\n: 1\n\n\r\n", 9),
    "upper case": (b"A\r\ndata: 12\n\n\r\n".replace(b"A", b"B"), 0),
    "upper case size": (b"A\r\ndata: 12\n\n\r\n", 10),
    "the end of the body": (FRAMED + b"0\r\n\r\n", 0),
    "only the end of the body": (b"0\r\n\r\n", 0),
    "half a chunk": (FRAMED[:-3], 0),
    "a chunk without its line feed": (FRAMED[:-1], 0),
    "an extension": (b"9;a=b\r\n" + EVENT + b"\r\n", 0),
    "half an event": (b"4\r\ndata\r\n", 0),
    "an event with other line ends": (b"b\r\ndata: 1\r\n\r\n\r\n", 0),
    "a size that is wrong by one": (b"8\r\n" + EVENT + b"\r\n", 0),
    "a size beyond the end": (b"99\r\n" + EVENT + b"\r\n", 0),
    "a bare line feed": (b"9\n" + EVENT + b"\r\n", 0),
    "no size": (b"\r\n" + EVENT + b"\r\n", 0),
    "nothing": (b"", 0),
}


@pytest.mark.parametrize("name", EVENT_CHUNKS)
def test_whole_chunks_that_end_an_event(name):
    data, payload = EVENT_CHUNKS[name]
    assert whole_event_chunks(data) == payload


def test_where_a_chunked_body_stands_between_two_chunks():
    framing = ChunkedFraming()
    stands = []
    for at in range(len(b"2\r\nab\r\n0\r\n\r\n")):
        stands.append(framing.between_chunks)
        framing.feed(b"2\r\nab\r\n0\r\n\r\n"[at : at + 1], None)
    assert [at for at, between in enumerate(stands) if between] == [0, 7]
    assert not LengthFraming(3).between_chunks
    assert not CloseFraming().between_chunks
