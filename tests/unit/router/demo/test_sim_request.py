"""What the simulated engine accepts, and the exact refusals."""

import json

import pytest

from continuum_router.demo import sim_tokenizer
from continuum_router.demo.sim_request import (
    SimLimits,
    SimRefusal,
    detokenize_body,
    parse_body,
    parse_generation,
    tokenize_body,
)

LIMITS = SimLimits(models=("demo", "other"), max_model_len=100)
HELLO = [{"role": "user", "content": "Hello"}]


def test_a_chat_becomes_its_rendered_tokens() -> None:
    body = {"model": "demo", "messages": HELLO, "max_tokens": 5, "cache_salt": "s"}
    asked = parse_generation(body, chat=True, limits=LIMITS)
    assert sim_tokenizer.decode(asked.prompt) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (asked.model, asked.salt, asked.stream, asked.include_usage) == (
        "demo",
        "s",
        False,
        False,
    )
    assert (len(asked.answer), asked.finish_reason) == (5, "length")


def test_one_prompt_always_has_one_answer_and_another_prompt_another() -> None:
    def answer(text: str, limit: int) -> tuple[int, ...]:
        body = {"model": "demo", "prompt": text, "max_tokens": limit}
        return parse_generation(body, chat=False, limits=LIMITS).answer

    assert answer("a", 48)[:10] == answer("a", 10)
    assert answer("a", 10) != answer("b", 10)


def test_an_answer_ends_by_itself_unless_it_may_not() -> None:
    body = {"model": "demo", "prompt": "a", "max_tokens": 90}
    asked = parse_generation(body, chat=False, limits=LIMITS)
    assert asked.finish_reason == "stop"
    assert 16 <= len(asked.answer) <= 48
    forced = parse_generation({**body, "ignore_eos": True}, chat=False, limits=LIMITS)
    assert (len(forced.answer), forced.finish_reason) == (90, "length")


def test_max_completion_tokens_wins_in_a_chat() -> None:
    body = {"model": "demo", "messages": HELLO, "max_tokens": 9, "max_completion_tokens": 3}
    assert len(parse_generation(body, chat=True, limits=LIMITS).answer) == 3


def test_a_prompt_of_token_ids() -> None:
    body = {"model": "other", "prompt": [1, 300, 2], "stream": True}
    asked = parse_generation(
        {**body, "stream_options": {"include_usage": True}}, chat=False, limits=LIMITS
    )
    assert asked.prompt == (1, 300, 2)
    assert (asked.stream, asked.include_usage) == (True, True)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": None}, 400, "model is required"),
        ({"model": "nope"}, 404, "The model `nope` does not exist."),
        ({"messages": None}, 400, "messages must be a list that is not empty"),
        ({"messages": []}, 400, "messages must be a list that is not empty"),
        ({"messages": ["x"]}, 400, "each message must be an object with a role"),
        ({"messages": [{"content": "x"}]}, 400, "each message must be an object with a role"),
        ({"tools": "x"}, 400, "tools must be a list"),
        ({"n": 2}, 400, "n must be 1: this engine gives one answer"),
        ({"max_tokens": "5"}, 400, "max_tokens must be an integer"),
        ({"max_tokens": True}, 400, "max_tokens must be an integer"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1 and at most 87 for this prompt"),
        ({"max_tokens": 88}, 400, "max_tokens must be at least 1 and at most 87 for this prompt"),
        ({"cache_salt": ""}, 400, "cache_salt must be a string that is not empty"),
        (
            {"cache_salt": "a/b"},
            400,
            "cache_salt is too long or holds a character that is not allowed",
        ),
        (
            {"cache_salt": "a\ud800"},
            400,
            "cache_salt is too long or holds a character that is not allowed",
        ),
        (
            {"cache_salt": "a" * 129},
            400,
            "cache_salt is too long or holds a character that is not allowed",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 300}]},
            400,
            "the prompt is longer than max_model_len=100",
        ),
    ],
)
def test_refused_chats(change: dict[str, object], status: int, message: str) -> None:
    body = {"model": "demo", "messages": HELLO, "max_tokens": 5, **change}
    with pytest.raises(SimRefusal) as refused:
        parse_generation(body, chat=True, limits=LIMITS)
    assert (refused.value.status, refused.value.message) == (status, message)


@pytest.mark.parametrize("prompt", [None, 5, ["a", "b"], [1, -1], [1, 2**32], [True]])
def test_refused_prompts(prompt: object) -> None:
    with pytest.raises(SimRefusal, match="one string or one list of token ids"):
        parse_generation({"model": "demo", "prompt": prompt}, chat=False, limits=LIMITS)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(SimRefusal, match="the prompt is empty"):
        parse_generation({"model": "demo", "prompt": ""}, chat=False, limits=LIMITS)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", "the body is not a JSON object"),
    ],
)
def test_refused_bodies(raw: bytes, message: str) -> None:
    with pytest.raises(SimRefusal, match=message):
        parse_body(raw)


def test_tokenize_and_detokenize_are_each_other_backwards() -> None:
    tokens = tokenize_body({"model": "demo", "messages": HELLO}, LIMITS)
    text = detokenize_body({"tokens": tokens}, LIMITS)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenize_body(json.loads(json.dumps({"prompt": text})), LIMITS) == tokens


@pytest.mark.parametrize("tokens", [None, "x", [1, -1], [1.5], ["a"]])
def test_refused_tokens(tokens: object) -> None:
    with pytest.raises(SimRefusal, match="tokens must be a list of ids"):
        detokenize_body({"tokens": tokens}, LIMITS)


def test_tokenize_wants_something_to_tokenize() -> None:
    with pytest.raises(SimRefusal, match="one of messages and prompt"):
        tokenize_body({"model": "demo"}, LIMITS)
