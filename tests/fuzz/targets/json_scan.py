"""The exchange of a model's name in JSON text, against a parser and over any split."""

import json

from continuum_router.providers.json_scan import (
    MAX_KEPT,
    BodyRewrite,
    EventScan,
    JsonScan,
    ResponseIdTap,
)
from continuum_router.providers.model_splice import splice_model
from fuzz.target import Target, plain, splits

NAME = 'is "it"'

Pairs = list[tuple[str, object]]


class Object(list[tuple[str, object]]):
    """A JSON object with every pair of it."""


def _parsed(data: bytes) -> object:
    """The value with duplicate keys, None when the text is no JSON."""
    try:
        return json.loads(data, object_pairs_hook=Object)
    except (ValueError, RecursionError):
        return None


def _renamed(value: object) -> object:
    if not isinstance(value, Object):
        return value
    return Object(
        (key, NAME if key == "model" and isinstance(item, str) else item) for key, item in value
    )


def run(data: bytes) -> None:
    value = _parsed(data)
    if isinstance(value, Object) and isinstance(dict(value).get("model"), str):
        assert repr(_parsed(splice_model(data, NAME))) == repr(_renamed(value))
    results = set()
    for pieces in splits(data):
        scan = JsonScan("model", replacement=json.dumps(NAME).encode(), inner=frozenset({"r"}))
        results.add(b"".join(map(scan.feed, pieces)))
        assert len(scan._kept) <= MAX_KEPT + len(data)
    assert len(results) == 1


def run_events(data: bytes) -> None:
    results = set()
    for pieces in splits(data):
        rewrite, tap = BodyRewrite(NAME, events=True), ResponseIdTap()
        scan = EventScan(JsonScan("none such", replacement=b'"x"'))
        out = b""
        for piece in pieces:
            out += rewrite.feed(piece)
            assert scan.feed(piece) == piece
        for piece in pieces:
            tap.feed(piece)
        results.add(out)
    assert len(results) == 1


_TOKENS = (
    b'"model"',
    b'"response"',
    b'"r"',
    b'"id"',
    b'"mo\\u0064el"',
    b'"',
    b"\\",
    b'\\"',
    b"\\\\",
    b"\\u",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"data:",
    b"data: ",
    b"\n\n",
    b"\r\n",
    b"\xed\xa0\x80",
    b"x" * 600,
)
_OBJECTS = (
    b'{"model":"was","messages":[{"role":"user","content":"model"}]}',
    b'{"a":{"model":"no"},"model" : "yes","model":"again"}',
    b'{"response":{"id":"1","model":"x"},"r":{"model":"y"},"mo\\u0064el":"z"}',
    b'{"x":"\\"model\\":\\\\","model":1}',
)

TARGET = Target(
    name="json_scan",
    opened=plain(run),
    seeds=_OBJECTS,
    tokens=_TOKENS,
    watched=("continuum_router.providers.json_scan", "continuum_router.providers.model_splice"),
    smoke=1200,
    max_size=2048,
)

EVENTS = Target(
    name="event_scan",
    opened=plain(run_events),
    seeds=(
        b"".join(b"data: " + each + b"\n\n" for each in _OBJECTS),
        b"event: a\r\ndata:" + _OBJECTS[2] + b"\r\n\r\ndata: [DONE]\r\n\r\n",
        b': ping\n\ndata: {\ndata: "model":"x"}\n\n',
    ),
    tokens=_TOKENS,
    watched=("continuum_router.providers.json_scan",),
    smoke=500,
    max_size=2048,
)
