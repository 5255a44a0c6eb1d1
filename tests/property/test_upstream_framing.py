"""Any split of an answer's bytes gives the same head, the same payload and the same end."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from continuum_router.upstream.body_framing import ChunkedFraming
from continuum_router.upstream.response_head import HeadReader

EXTENSIONS = st.sampled_from([b"", b";a", b' ; q="x y"', b" "])
CHUNKS = st.lists(st.tuples(st.binary(min_size=1, max_size=40), EXTENSIONS), max_size=8)
TRAILERS = st.lists(st.sampled_from([b"A: b\r\n", b"X-Sum:\r\n"]), max_size=3)
NAMES = st.sampled_from(["A", "content-type", "X-Request-Id", "Date"])
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)


def encode(chunks: list[tuple[bytes, bytes]], trailers: list[bytes]) -> bytes:
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(data), ext, data) for data, ext in chunks)
    return body + b"0\r\n" + b"".join(trailers) + b"\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(CHUNKS, TRAILERS, st.lists(st.integers(0, 400), max_size=12), st.binary(max_size=8))
def test_chunks(chunks, trailers, places, beyond):
    wire = encode(chunks, trailers)
    framing = ChunkedFraming()
    out: list[bytes] = []
    used = 0
    for piece in cut(wire + beyond, places):
        if framing.done:
            break
        used += framing.feed(piece, out)
    assert framing.done
    assert used == len(wire)
    assert b"".join(out) == b"".join(data for data, _ in chunks)


@given(
    st.lists(st.tuples(NAMES, VALUES), max_size=6),
    st.one_of(st.none(), st.integers(0, 10**18 - 1)),
    st.lists(st.integers(0, 300), max_size=6),
    st.binary(max_size=20),
)
def test_heads(fields, length, places, body):
    lines = [f"{name}: {value}" for name, value in fields]
    if length is not None:
        lines.insert(len(lines) // 2, f"Content-Length: {length}")
    wire = "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode()
    reader = HeadReader()
    seen = b""
    for piece in cut(wire + body, places):
        seen += piece
        read = reader.read(seen)
        if read is not None:
            break
        assert len(seen) < len(wire)
    assert read is not None
    facts, announced, used = read
    assert facts.headers == tuple((name, value.strip()) for name, value in fields)
    assert (announced, used) == (length, len(wire))
    again = reader.read(wire)
    assert again is not None
    assert again[0] is facts
