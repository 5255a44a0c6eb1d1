"""What a client asks the simulated engine for: bodies in, checked values or `SimRefusal` out. Pure.

Also the engine's "model": the answer is made of plain words that depend on nothing but the
prompt's tokens, so that two runs of one workload hold the same conversations.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from continuum_router.demo import sim_tokenizer

_WORDS: Final = (
    "the clock spring turns while a small gear waits for oil and light because every part has "
    "its place on the bench we note what moved first then check again before noon so nothing is "
    "lost keep the tray level count each screw mark its slot and write down why it was loose"
)
_SHORTEST_ANSWER: Final = 16
_LONGEST_ANSWER: Final = 48


class SimRefusal(Exception):
    """A request that the engine refuses. `status` is the HTTP status, `kind` the error's type."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class SimLimits:
    """What bounds a request: served names, tokens of prompt and answer together."""

    models: tuple[str, ...]
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A checked request: what to compute and how to answer."""

    model: str
    chat: bool
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    finish_reason: str
    salt: str | None
    stream: bool
    include_usage: bool


def parse_body(raw: bytes) -> dict[str, object]:
    """The request's JSON object. Raises SimRefusal (400)."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise SimRefusal(400, "the body is not JSON", "Bad Request") from None
    if not isinstance(body, dict):
        raise SimRefusal(400, "the body is not a JSON object", "Bad Request")
    return body


def parse_generation(body: Mapping[str, object], *, chat: bool, limits: SimLimits) -> Generation:
    """Check a chat (`chat` True) or completions body. Raises SimRefusal."""
    model = served_model(body, limits)
    prompt = _chat_tokens(body) if chat else _prompt_tokens(body)
    if not prompt:
        raise SimRefusal(400, "the prompt is empty")
    if _integer(body, "n", 1) != 1:
        raise SimRefusal(400, "n must be 1: this engine gives one answer")
    room = limits.max_model_len - len(prompt)
    if room < 1:
        raise SimRefusal(400, f"the prompt is longer than max_model_len={limits.max_model_len}")
    default = room if chat else min(16, room)
    name = "max_completion_tokens" if chat and "max_completion_tokens" in body else "max_tokens"
    wanted = _integer(body, name, default)
    if not 1 <= wanted <= room:
        raise SimRefusal(400, f"{name} must be at least 1 and at most {room} for this prompt")
    answer, finish_reason = _answer(prompt, wanted, ignore_eos=body.get("ignore_eos") is True)
    options = body.get("stream_options")
    return Generation(
        model=model,
        chat=chat,
        prompt=tuple(prompt),
        answer=answer,
        finish_reason=finish_reason,
        salt=_salt(body),
        stream=body.get("stream") is True,
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
    )


def tokenize_body(body: Mapping[str, object], limits: SimLimits) -> list[int]:
    """Tokens for a /tokenize body with `messages` or `prompt`. Raises SimRefusal."""
    served_model(body, limits, optional=True)
    if "messages" in body:
        return _chat_tokens(body)
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise SimRefusal(400, "one of messages and prompt is required", "Bad Request")
    return sim_tokenizer.encode(prompt)


def detokenize_body(body: Mapping[str, object], limits: SimLimits) -> str:
    """Text for a /detokenize body. Raises SimRefusal."""
    served_model(body, limits, optional=True)
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not _all_ids(tokens):
        raise SimRefusal(400, "tokens must be a list of ids that are not negative", "Bad Request")
    return sim_tokenizer.decode(tokens)


def served_model(body: Mapping[str, object], limits: SimLimits, *, optional: bool = False) -> str:
    """The body's model, which must be served here; the first served one if `optional`."""
    model = body.get("model")
    if model is None and optional:
        return limits.models[0]
    if not isinstance(model, str):
        raise SimRefusal(400, "model is required", "Bad Request")
    if model not in limits.models:
        raise SimRefusal(404, f"The model `{model}` does not exist.", "NotFoundError")
    return model


def _chat_tokens(body: Mapping[str, object]) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise SimRefusal(400, "messages must be a list that is not empty", "Bad Request")
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise SimRefusal(400, "each message must be an object with a role", "Bad Request")
    tools = body.get("tools") or ()
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise SimRefusal(400, "tools must be a list", "Bad Request")
    generate = body.get("add_generation_prompt", True) is not False
    text = sim_tokenizer.render_chat(messages, tools=tools, add_generation_prompt=generate)
    return sim_tokenizer.encode(text)


def _prompt_tokens(body: Mapping[str, object]) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return sim_tokenizer.encode(prompt)
    if isinstance(prompt, list) and _all_ids(prompt):
        return prompt
    raise SimRefusal(400, "prompt must be one string or one list of token ids", "Bad Request")


def _all_ids(tokens: list[object]) -> bool:
    return all(type(t) is int and 0 <= t < 2**32 for t in tokens)


def _integer(body: Mapping[str, object], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise SimRefusal(400, f"{name} must be an integer", "Bad Request")
    return value


def _salt(body: Mapping[str, object]) -> str | None:
    """The client's cache_salt, refused in the forms that engines refuse (wire notes, 6)."""
    salt = body.get("cache_salt")
    if salt is None:
        return None
    if not isinstance(salt, str) or not salt:
        raise SimRefusal(400, "cache_salt must be a string that is not empty")
    surrogates = any("\ud800" <= c <= "\udfff" for c in salt)
    if len(salt) > 128 or surrogates or any(c in salt for c in "@/\\\0"):
        raise SimRefusal(400, "cache_salt is too long or holds a character that is not allowed")
    return salt


def _answer(prompt: Sequence[int], wanted: int, *, ignore_eos: bool) -> tuple[tuple[int, ...], str]:
    """Answer tokens and finish reason: it ends by itself unless `wanted` comes first."""
    seed = hashlib.sha256(b"".join(t.to_bytes(4) for t in prompt)).digest()
    rng = random.Random(seed)
    length = wanted if ignore_eos else rng.randint(_SHORTEST_ANSWER, _LONGEST_ANSWER)
    vocabulary = _WORDS.split()
    tokens: list[int] = []
    while len(tokens) < min(length, wanted):
        words = (rng.choice(vocabulary) for _ in range(12))
        tokens.extend(sim_tokenizer.encode(" ".join(words).capitalize() + ".\n"))
    reason = "length" if wanted < length or ignore_eos else "stop"
    return tuple(tokens[: min(length, wanted)]), reason
