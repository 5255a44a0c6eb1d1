"""The splicer against a parser: any JSON, any split, only the model's value differs."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_router.providers.json_scan import BodyRewrite

TEXT = st.text(alphabet=st.sampled_from('model"\\{}[]:, \n\ud800한é/data'), max_size=12)
KEYS = st.sampled_from(["model", "response", "id", "x", ""]) | TEXT
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)
STYLES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :  ")])


def _spelled(value: object, style: tuple[str, str], ascii_only: bool) -> bytes:
    text = json.dumps(value, separators=style, ensure_ascii=ascii_only)
    return text.encode("utf-8", "surrogatepass")


def _expected(body: dict[str, object], name: str) -> dict[str, object]:
    """The same object with the values replaced; key order kept."""

    def renamed(item: dict[str, object]) -> dict[str, object]:
        return {
            key: name if key == "model" and isinstance(value, str) else value
            for key, value in item.items()
        }

    changed = renamed(body)
    inner = changed.get("response")
    if isinstance(inner, dict):
        changed["response"] = renamed(inner)
    return changed


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in zip(marks, marks[1:], strict=False)]


CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=8)


@settings(max_examples=300, deadline=None)
@given(OBJECTS, STYLES, st.booleans(), CUTS)
def test_an_answer_in_any_pieces(
    body: dict[str, object], style: tuple[str, str], ascii_only: bool, cuts: list[int]
) -> None:
    rewrite = BodyRewrite("the alias", events=False)
    data = _spelled(body, style, ascii_only)
    got = b"".join(rewrite.feed(piece) for piece in _pieces(data, cuts))
    assert got == _spelled(_expected(body, "the alias"), style, ascii_only)


@settings(max_examples=200, deadline=None)
@given(st.lists(OBJECTS, min_size=1, max_size=4), CUTS, st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_in_any_pieces(bodies: list[dict[str, object]], cuts: list[int], end: str) -> None:
    def stream(values: list[dict[str, object]]) -> bytes:
        events = [
            b"data: " + _spelled(v, (",", ":"), True) + f"{end}{end}".encode() for v in values
        ]
        return b"".join(events) + f"data: [DONE]{end}{end}".encode()

    rewrite = BodyRewrite("n", events=True)
    got = b"".join(rewrite.feed(piece) for piece in _pieces(stream(bodies), cuts))
    assert got == stream([_expected(body, "n") for body in bodies])


def test_every_split_of_one_stream() -> None:
    data = (
        b'event: a\r\ndata: {"model":"re\\"al","response":{"mo\\u0064el":"x","id":"\\\\"}}\r\n\r\n'
        b'data: {"model":"y"}\n\n'
    )
    whole = BodyRewrite("z", events=True).feed(data)
    assert whole.count(b'"z"') == 3
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1, 3):
            rewrite = BodyRewrite("z", events=True)
            parts = (data[:first], data[first:second], data[second:])
            assert b"".join(map(rewrite.feed, parts)) == whole
