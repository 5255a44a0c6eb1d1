"""Which bodies are too heavy to be parsed; what is wrong with JSON is in test_request."""

import time

import pytest

from continuum_router.errors import BadRequest
from continuum_router.json_body import LIGHT_BYTES, MAX_VALUES, check_weight, parse_object
from continuum_router.request import Endpoint, RequestRules, read_generate

OPEN = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"x":['
HEAVY = {
    "arrays": b"[]," * MAX_VALUES,
    "objects": b"{}," * MAX_VALUES,
    "strings": b'"",' * MAX_VALUES,
    "strings with escapes": rb'"\\","\"",' * (MAX_VALUES // 2),
    "members": b'{"a":1},' * (MAX_VALUES // 2),
}
LIGHT = {
    "brackets in a string": b'"' + b"[{" * MAX_VALUES + b'",',
    "quotes in a string": b'"' + rb"\"" * (2 * MAX_VALUES) + b'",',
    "backslashes and brackets": b'"' + rb"\\[" * MAX_VALUES + b'",',
    "numbers": b"128001," * MAX_VALUES,
    "a long text": b'"' + b"hello " * MAX_VALUES + b'",',
    "many, not too many": b"[]," * (MAX_VALUES - 20),
    "small, all of it": b"[]," * (LIGHT_BYTES // 3 - 100),
}


@pytest.mark.parametrize("name", HEAVY)
def test_too_heavy(name: str) -> None:
    raw = OPEN + HEAVY[name] + b"1]}"
    begun = time.process_time()
    with pytest.raises(BadRequest) as caught:
        read_generate(Endpoint.CHAT, raw, RequestRules())
    assert (caught.value.status, caught.value.code) == (400, "too_many_values")
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize("name", LIGHT)
def test_not_too_heavy(name: str) -> None:
    raw = OPEN + LIGHT[name] + b"1]}"
    check_weight(raw)
    assert parse_object(raw)["model"] == "m"
