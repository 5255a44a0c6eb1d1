"""Any split of the bytes gives the same records; what was written is read back."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from continuum_shared.sse import SseEvent, SseOverflow, SseParser, encode_comment, encode_event

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=40)
name = st.text("abc_", min_size=1, max_size=8)
records = st.lists(
    st.one_of(
        st.tuples(text, st.none() | name, st.none() | name).map(
            lambda t: encode_event(t[0].encode(), event=t[1], id=t[2])
        ),
        text.map(encode_comment),
        st.sampled_from([b"\r\n", b"\r", b"\n", b"data", b"id", b"data: x\r", b"\xef\xbb\xbf"]),
    ),
    max_size=8,
).map(b"".join)


def pieces(data, cuts):
    marks = sorted({c % (len(data) + 1) for c in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(marks)]


@given(records, st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_gives_the_same(stream, cuts):
    whole, split = SseParser(), SseParser()
    expected = whole.feed(stream)
    assert [r for p in pieces(stream, cuts) for r in split.feed(p)] == expected
    assert split.last_event_id == whole.last_event_id


@given(text, st.none() | name, st.none() | name)
def test_round_trip(data, event, id):
    assert SseParser().feed(encode_event(data.encode(), event=event, id=id)) == [
        SseEvent(event=event, data=data, id=id)
    ]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_the_bound_trips_before_memory_does(stream, cuts):
    parser = SseParser(max_bytes=64)
    try:
        for piece in pieces(stream, cuts):
            parser.feed(piece)
    except SseOverflow:
        return
    assert len(parser._buffer) <= 64
    assert sum(map(len, parser._data)) <= 64
