"""Reading a generating request: facts, keys. The table of messages is in test_refusals."""

import json

import pytest

from continuum_router.errors import BadRequest
from continuum_router.json_body import parse_object
from continuum_router.request import (
    COMPLETING,
    Endpoint,
    RequestRules,
    Upload,
    parse_generate,
    parse_opaque,
)
from continuum_shared.prefix_key import KeyTag, KeyText, derive

RULES = RequestRules()
MESSAGES = [{"role": "system", "content": "You help."}, {"role": "user", "content": "hi"}]


def _chat(**more: object) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **more}).encode()


def test_the_clients_bytes_are_kept() -> None:
    raw = b' {"model" : "m", "messages":[{"role":"user","content":"x"}], "model": "n"} '
    request = parse_generate(Endpoint.CHAT, raw, RULES)
    assert request.raw is raw
    assert request.model == "n"


def test_a_chat_has_the_key_of_its_system_prompt() -> None:
    request = parse_generate(Endpoint.CHAT, _chat(), RULES)
    key = derive("m", KeyText(tag=KeyTag.SYSTEM, text="You help."), 1024)
    assert (request.prefix, request.hash_key) == (key, key)


def test_a_completion_has_the_key_of_its_prompt() -> None:
    raw = b'{"model":"m","prompt":"Once upon"}'
    request = parse_generate(Endpoint.COMPLETIONS, raw, RULES)
    key = derive("m", KeyText(tag=KeyTag.FIRST_MESSAGE, text="Once upon"), 1024)
    assert (request.prefix, request.hash_key) == (key, key)


@pytest.mark.parametrize("prompt", [[1, 2, 3], ["a", "b"], [[1], [2]]])
def test_prompts_in_arrays_are_accepted(prompt: list[object]) -> None:
    raw = json.dumps({"model": "m", "prompt": prompt}).encode()
    assert parse_generate(Endpoint.COMPLETIONS, raw, RULES).model == "m"


def test_prompt_embeds_stand_for_a_prompt() -> None:
    raw = b'{"model":"m","prompt_embeds":"AAAA"}'
    assert parse_generate(Endpoint.COMPLETIONS, raw, RULES).hash_key is None


def test_without_prefix_routing_nothing_is_hashed() -> None:
    request = parse_generate(Endpoint.CHAT, _chat(), RequestRules(want_keys=False))
    assert (request.prefix, request.hash_key) == (None, None)


def test_the_length_of_the_hashed_text_follows_the_rules() -> None:
    request = parse_generate(Endpoint.CHAT, _chat(), RequestRules(max_prefix_length=3))
    assert request.prefix == derive("m", KeyText(tag=KeyTag.SYSTEM, text="You"), 3)


def test_a_salt_takes_the_index_key_and_changes_the_hash_key() -> None:
    """Decisions C41: what the index knows was stored without that salt."""
    plain = parse_generate(Endpoint.CHAT, _chat(), RULES)
    keys = {plain.hash_key}
    for salt in ({"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a", "extra_key": "b"}):
        salted = parse_generate(Endpoint.CHAT, _chat(**salt), RULES)
        assert salted.prefix is None
        assert salted.hash_key not in keys
        keys.add(salted.hash_key)
    sglang = parse_generate(Endpoint.CHAT, _chat(extra_key="z"), RULES)
    assert sglang.prefix is None
    assert sglang.hash_key not in keys


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_salt_is_none(empty: object) -> None:
    assert parse_generate(Endpoint.CHAT, _chat(cache_salt=empty), RULES).prefix is not None


@pytest.mark.parametrize(("value", "streams"), [(True, True), (False, False), (None, False)])
def test_stream(value: object, streams: bool) -> None:
    assert parse_generate(Endpoint.CHAT, _chat(stream=value), RULES).stream is streams


def test_lone_surrogates_are_accepted() -> None:
    """Python clients send them, engines read them (decisions A6)."""
    raw = b'{"model":"m","messages":[{"role":"user","content":"a\\ud800b"}]}'
    request = parse_generate(Endpoint.CHAT, raw, RULES)
    key = derive("m", KeyText(tag=KeyTag.FIRST_MESSAGE, text="a\ufffdb"), 1024)
    assert request.prefix == key


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":"\\ud800","b":NaN}',
        b'{"a":"\\ud800"',
        b'{"a":"\\ud800","b":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":1}{"b":2}',
    ],
    ids=["nan", "cut", "deep", "comma", "quotes", "two"],
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_object(raw)
    assert caught.value.code == "invalid_json"


def test_odd_messages_are_the_engines_business() -> None:
    for content in (None, 5, {"a": 1}, [{"type": "image_url"}], ["x", None]):
        raw = json.dumps({"model": "m", "messages": [{"content": content}]}).encode()
        assert parse_generate(Endpoint.CHAT, raw, RULES).model == "m"


def test_paths() -> None:
    assert {endpoint: endpoint.path for endpoint in Endpoint} == {
        Endpoint.CHAT: "/v1/chat/completions",
        Endpoint.COMPLETIONS: "/v1/completions",
        Endpoint.RESPONSES: "/v1/responses",
        Endpoint.EMBEDDINGS: "/v1/embeddings",
        Endpoint.RERANK: "/v1/rerank",
        Endpoint.SCORE: "/v1/score",
        Endpoint.TOKENIZE: "/tokenize",
        Endpoint.DETOKENIZE: "/detokenize",
        Endpoint.AUDIO: "/v1/audio/",
        Endpoint.IMAGES: "/v1/images/",
        Endpoint.PASSTHROUGH: "/",
    }


def test_the_prompt_is_not_shown_by_repr() -> None:
    raw = json.dumps({"model": "m", "messages": [{"content": "canary"}]}).encode()
    assert "canary" not in repr(parse_generate(Endpoint.CHAT, raw, RULES))


@pytest.mark.parametrize("endpoint", [e for e in Endpoint if e not in COMPLETING])
def test_elsewhere_the_model_may_be_absent_but_not_odd(endpoint: Endpoint) -> None:
    assert parse_generate(endpoint, b'{"input":"x"}', RULES).model == ""
    assert parse_generate(endpoint, b'{"model":"m","stream":true}', RULES).stream is True
    with pytest.raises(BadRequest) as caught:
        parse_generate(endpoint, b'{"model":7}', RULES)
    assert (caught.value.param, caught.value.code) == ("model", "invalid_type")


def test_responses_are_keyed_and_embeddings_are_not() -> None:
    """Decisions A5: instructions are the system text; the input of embeddings is no prefix."""
    body = b'{"model":"m","instructions":"be brief","input":"hi"}'
    found = parse_generate(Endpoint.RESPONSES, body, RULES)
    assert found.prefix == derive("m", KeyText(tag=KeyTag.SYSTEM, text="be brief"), 1024)
    assert parse_generate(Endpoint.EMBEDDINGS, body, RULES).prefix is None


def test_the_key_is_made_of_the_resolved_name() -> None:
    """Decisions A1: two names of one model share their locality."""
    rules = RequestRules(aliases={"gpt": "llama"})
    body = b'{"model":"%b","messages":[{"role":"user","content":"hi"}]}'
    alias = parse_generate(Endpoint.CHAT, body % b"gpt", rules)
    real = parse_generate(Endpoint.CHAT, body % b"llama", rules)
    assert (alias.prefix, alias.model) == (real.prefix, "gpt")
    assert alias.prefix != parse_generate(Endpoint.CHAT, body % b"gpt", RequestRules()).prefix


@pytest.mark.parametrize("model", [b"\xff", b"", b"a\nb", b"x" * 257])
def test_a_form_field_that_is_no_model(model: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_opaque(Endpoint.AUDIO, b"", model=model)
    assert caught.value.param == "model"


def test_what_can_be_sent_again() -> None:
    class Half:
        started = False

        async def next(self) -> bytes:
            return b""

    tail = Half()
    request = parse_opaque(Endpoint.AUDIO, b"x", upload=Upload(length=2, tail=tail))
    assert request.replayable
    tail.started = True
    assert not request.replayable
    assert parse_opaque(Endpoint.AUDIO, b"x", upload=Upload(length=1)).replayable
