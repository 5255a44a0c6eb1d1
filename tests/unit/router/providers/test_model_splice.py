"""Only the name changes: every other byte is the client's."""

import orjson
import pytest

from continuum_router.providers.model_splice import splice_model

CASES = {
    "first": (b'{"model":"a","n":1}', b'{"model":"new","n":1}'),
    "spaces": (b' {\n "n" : 1.0 ,\t"model" :  "a" }', b' {\n "n" : 1.0 ,\t"model" :  "new" }'),
    "nested before": (
        b'{"x":{"model":"deep","y":[{"model":"z"}]},"model":"a"}',
        b'{"x":{"model":"deep","y":[{"model":"z"}]},"model":"new"}',
    ),
    "as a value": (
        b'{"messages":[{"content":"\\"model\\":\\"q\\""}],"k":"model","model":"a"}',
        b'{"messages":[{"content":"\\"model\\":\\"q\\""}],"k":"model","model":"new"}',
    ),
    "escaped key": (
        b'{"m":{"model":"deep"},"mod\\u0065l":"a"}',
        b'{"m":{"model":"deep"},"mod\\u0065l":"new"}',
    ),
    "escapes in the old name": (b'{"model":"a\\"}b","z":"{"}', b'{"model":"new","z":"{"}'),
    "twice": (b'{"model":"b","model":"a"}', b'{"model":"new","model":"new"}'),
    "twice, once no text": (
        b'{"model":5,"k":"v","model":"a"}',
        b'{"model":5,"k":"v","model":"new"}',
    ),
    "other bytes": (
        '{"user":"한글 \\u00e9","model":"a","f":1e400}'.encode(),
        '{"user":"한글 \\u00e9","model":"new","f":1e400}'.encode(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    raw, expected = CASES[name]
    assert splice_model(raw, {"model": "a"}, "new") == expected


def test_a_name_that_needs_escapes() -> None:
    spliced = splice_model(b'{"model":"a"}', {"model": "a"}, 'q"\\é\\1')
    assert orjson.loads(spliced) == {"model": 'q"\\é\\1'}


def test_a_body_without_a_model() -> None:
    with pytest.raises(ValueError, match="names no model"):
        splice_model(b'{"model":1}', {"model": 1}, "b")
