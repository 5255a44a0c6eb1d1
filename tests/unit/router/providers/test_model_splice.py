"""Only the name changes: every other byte is the client's."""

import json

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
    "last, spaced": (b'{ "x" : [1, 2] , "model" : "a" }', b'{ "x" : [1, 2] , "model" : "new" }'),
    "long value": (b'{"model":"%b"}' % (b"y" * 9999), b'{"model":"new"}'),
    "empty value": (b'{"model":""}', b'{"model":"new"}'),
    "after an object": (b'{"a":{"b":{}},"model":"a"}', b'{"a":{"b":{}},"model":"new"}'),
    "after an array": (
        b'{"a":[[{"model":"i"}]],"model":"a"}',
        b'{"a":[[{"model":"i"}]],"model":"new"}',
    ),
    "other bytes": (
        '{"user":"한글 \\u00e9","model":"a","f":1e400}'.encode(),
        '{"user":"한글 \\u00e9","model":"new","f":1e400}'.encode(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    raw, expected = CASES[name]
    assert splice_model(raw, "new") == expected


@pytest.mark.parametrize("name", ['q"uote\\', 'q"\\é\\1', "한국", "\ud800", "a/b:c"])
def test_the_new_name_is_valid_json_whatever_it_is(name: str) -> None:
    assert json.loads(splice_model(b'{"model":"a"}', name)) == {"model": name}
    assert json.loads(splice_model(b'{"model":"a","model":"b"}', name)) == {"model": name}
