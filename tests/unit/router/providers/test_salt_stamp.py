"""Which requests carry the router's salt, and that no other byte of them changes (C24, C41)."""

import json

import orjson
import pytest

from continuum_router.backends.pool import Backend
from continuum_router.config.backends import SALTED_TYPES, BackendType
from continuum_router.providers.prepare import Preparer, sort_headers
from continuum_router.providers.salt_stamp import SaltStamp
from continuum_router.request import (
    ChatRequest,
    Endpoint,
    RequestRules,
    for_model,
    parse_generate,
    parse_opaque,
)
from continuum_shared.cache_salt import SaltIssuer, SaltScope, SaltVerifier
from continuum_shared.config.kinds import BackendUrl

SECRET = "a-secret-of-this-test"
STAMP = SaltStamp(SaltIssuer([SECRET, "older"]))


def backend(name: str, kind: BackendType, **more: object) -> Backend:
    url = BackendUrl.parse("http://127.0.0.1:9")
    return Backend(name=name, type=kind, url=url, **more)  # type: ignore[arg-type]


VLLM = backend("one", BackendType.VLLM)

BODIES: dict[Endpoint, dict[str, object]] = {
    Endpoint.CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    Endpoint.COMPLETIONS: {"model": "m", "prompt": "once upon a time"},
    Endpoint.RESPONSES: {"model": "m", "input": "hi", "instructions": "be kind"},
}


def _parsed(raw: bytes, endpoint: Endpoint = Endpoint.CHAT) -> ChatRequest:
    return parse_generate(endpoint, raw, RequestRules())


def _stamped(raw: bytes, at: Backend = VLLM, endpoint: Endpoint = Endpoint.CHAT) -> bytes:
    return STAMP.stamp(raw, _parsed(raw, endpoint), at)


def _salt_of(raw: bytes) -> object:
    return orjson.loads(raw).get("cache_salt")


@pytest.mark.parametrize("endpoint", BODIES)
@pytest.mark.parametrize("kind", list(BackendType))
def test_which_engine_takes_a_salt_with_what(kind: BackendType, endpoint: Endpoint) -> None:
    raw = orjson.dumps(BODIES[endpoint])
    at = backend("one", kind)
    takes = kind in SALTED_TYPES and (kind is not BackendType.TRTLLM or endpoint is Endpoint.CHAT)
    out = _stamped(raw, at, endpoint)
    if not takes:
        assert out is raw
        return
    request = _parsed(raw, endpoint)
    salt = _salt_of(out)
    assert isinstance(salt, str)
    assert SaltVerifier([SECRET], backend="one").verify(salt, ["m"]) == request.prefix
    assert SaltVerifier(["older"], backend="one").verify(salt, ["m"]) is None


@pytest.mark.parametrize("tail", [b"}", b"  }", b"\n}\r\n\t ", b"} "])
def test_no_other_byte_changes(tail: bytes) -> None:
    raw = (
        b'{"messages":[{"role":"user","content":"}{ \\u00e9 \xea\xb0\x80"}],  "model" : "m"' + tail
    )
    out = _stamped(raw)
    end = raw.rindex(b"}")
    salt = _salt_of(out)
    assert isinstance(salt, str)
    assert out == raw[:end] + b',"cache_salt":"' + salt.encode() + b'"' + raw[end:]


@pytest.mark.parametrize("own", ["mine", ""])
@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
def test_a_salt_of_the_clients_own_is_left_alone(name: str, own: str) -> None:
    raw = orjson.dumps({**BODIES[Endpoint.CHAT], name: own})
    if (name, own) == ("extra_key", ""):
        assert _salt_of(_stamped(raw)) is not None
    else:
        assert _stamped(raw) is raw


def test_a_null_is_replaced_where_it_stands() -> None:
    raw = b'{"model":"m","cache_salt" : null,"messages":[{"role":"user","content":"hi"}]}'
    out = _stamped(raw)
    salt = _salt_of(out)
    assert isinstance(salt, str)
    assert out == raw.replace(b"null", b'"' + salt.encode() + b'"')


TWISTED = {
    "escaped name": b'{"model":"m","cache\\u005fsalt":null,"messages":[{"content":"hi"}]}',
    "twice": b'{"cache_salt":null,"model":"m","cache_salt":null,"messages":[{"content":"hi"}]}',
    "own, then null": b'{"cache_salt":"x","model":"m","cache_salt":null,'
    b'"messages":[{"content":"hi"}]}',
    "inner one first": b'{"x":{"cache_salt":null},"cache\\u005fsalt":null,"model":"m",'
    b'"messages":[{"content":"hi"}]}',
    "in a text": b'{"model":"m","cache_salt":null,'
    b'"messages":[{"content":"\\"cache_salt\\": null }"}]}',
    "inner one only": b'{"x":{"cache_salt":null},"model":"m","messages":[{"content":"hi"}]}',
}


@pytest.mark.parametrize("raw", TWISTED.values(), ids=TWISTED.keys())
@pytest.mark.parametrize("loads", [orjson.loads, json.loads])
def test_every_reader_sees_the_salt(raw: bytes, loads: "object") -> None:
    assert callable(loads)
    seen, before = loads(_stamped(raw)), loads(raw)
    assert isinstance(seen["cache_salt"], str)
    assert seen["cache_salt"].startswith("cr1.")
    del seen["cache_salt"]
    before.pop("cache_salt", None)
    assert seen == before


def test_no_key_no_salt() -> None:
    raw = b'{"model":"m","messages":[{"role":"user","content":""}]}'
    assert _stamped(raw) is raw
    form = parse_opaque(Endpoint.CHAT, b"--x", model=b"m")
    assert STAMP.stamp(form.raw, form, VLLM) is form.raw
    other = parse_generate(Endpoint.EMBEDDINGS, b'{"model":"m","input":"x"}', RequestRules())
    assert STAMP.stamp(other.raw, other, VLLM) is other.raw


def _sent(request: ChatRequest, at: Backend) -> bytes:
    sent = Preparer([at], salts=STAMP).prepare_request(request, sort_headers([]), at)
    assert b"Content-Length: %d\r\n" % len(sent.body) in sent.head
    return sent.body


def test_each_backend_gets_its_own_and_each_attempt_starts_from_the_clients_bytes() -> None:
    request = _parsed(orjson.dumps(BODIES[Endpoint.CHAT]))
    two = backend("two", BackendType.SGLANG)
    first, second, again = _sent(request, VLLM), _sent(request, two), _sent(request, VLLM)
    assert first == again != second
    assert all(sent.count(b"cache_salt") == 1 for sent in (first, second))
    for sent, name in ((first, "one"), (second, "two")):
        salt = _salt_of(sent)
        assert isinstance(salt, str)
        assert SaltVerifier([SECRET], backend=name).verify(salt, ["m"]) == request.prefix
    generic = backend("three", BackendType.GENERIC)
    assert _sent(request, generic) == request.raw


def test_under_an_alias_the_salt_is_for_the_name_that_the_engine_knows() -> None:
    at = backend("one", BackendType.VLLM, aliases={"short": "real"})
    raw = b'{"model":"short","messages":[{"role":"user","content":"hi"}]}'
    request = parse_generate(Endpoint.CHAT, raw, RequestRules(aliases={"short": "real"}))
    body = orjson.loads(_sent(request, at))
    assert body["model"] == "real"
    verifier = SaltVerifier([SECRET], backend="one")
    assert verifier.verify(body["cache_salt"], ["real"]) == request.prefix
    assert verifier.verify(body["cache_salt"], ["short"]) is None


def test_a_fallback_model_has_a_salt_of_its_own() -> None:
    request = _parsed(orjson.dumps(BODIES[Endpoint.CHAT]))
    raw = request.raw.replace(b'"m"', b'"n"')
    other = for_model(request, "n", raw, RequestRules())
    salt = _salt_of(_sent(other, VLLM))
    assert isinstance(salt, str)
    assert SaltVerifier([SECRET], backend="one").verify(salt, ["n"]) == other.prefix
    assert other.prefix != request.prefix


def test_fleet_salts_are_equal_on_all_backends() -> None:
    stamp = SaltStamp(SaltIssuer([SECRET], SaltScope.FLEET))
    request = _parsed(orjson.dumps(BODIES[Endpoint.CHAT]))
    two = backend("two", BackendType.SGLANG)
    assert stamp.stamp(request.raw, request, VLLM) == stamp.stamp(request.raw, request, two)
