"""One generating request, parsed once: what the client sent, as bytes and as facts.

The bytes are kept and go on to the backend unchanged; the parsed body is only read. What the rest
of the router needs to know is worked out here, once: the model, whether the answer streams, and the
two keys that steer routing. Everything is pure: bytes in, a value or a `BadRequest` out.

What is refused here is what no backend could make sense of, so that a client learns it in
microseconds and no backend is blamed. Fields that this router does not need are left to the engine.
No message repeats the client's text: error texts reach logs.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NoReturn

import orjson

from continuum_router.errors import BadRequest
from continuum_shared.prefix_key import (
    DEFAULT_MAX_PREFIX_LENGTH,
    KeyText,
    PrefixKey,
    chat_key_text,
    completions_key_text,
    derive,
)

MAX_MODEL_LENGTH = 256
"""Characters of a model name; it is logged, so it is bounded."""

ROUTER_SALT_MARK = "cr1."
"""Salts of this form are issued by the router alone (decisions C24): a client's is refused."""

JSON_TYPE_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


class Endpoint(StrEnum):
    """The generating endpoints; the value is a metric label and a key of the per-type tables."""

    CHAT = "chat_completions"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """The path under which clients reach it."""
        return _PATHS[self]


_PATHS: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "/v1/chat/completions",
    Endpoint.COMPLETIONS: "/v1/completions",
}

_KEY_TEXTS: Mapping[Endpoint, Callable[[Mapping[str, object]], KeyText | None]] = {
    Endpoint.CHAT: chat_key_text,
    Endpoint.COMPLETIONS: completions_key_text,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """What the configuration says about reading a request.

    `want_keys` is `prefix_routing.enabled`: without it nothing is hashed and requests have no keys.
    `max_prefix_length` is in bytes (S0 "Prefix key").
    """

    want_keys: bool = True
    max_prefix_length: int = DEFAULT_MAX_PREFIX_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request for a completion.

    `raw` are the client's bytes, decoded from a content coding if there was one. `body` is
    read-only by agreement. `prefix` is the key of index lookups; it is None when the request
    carries a salt of its own, because what the index knows was stored without that salt (decisions
    C41). `hash_key` is the Tier 1 key: the same, with the salt mixed in. Both are None when the
    body has no text to key or no feature asks for keys.
    """

    endpoint: Endpoint
    raw: bytes = field(repr=False)
    body: Mapping[str, object] = field(repr=False)
    model: str
    stream: bool
    prefix: PrefixKey | None
    hash_key: PrefixKey | None


def parse_generate(endpoint: Endpoint, raw: bytes, rules: RequestRules) -> ChatRequest:
    """Read a chat or completion request.

    Raises BadRequest (400, OpenAI-shaped, `param` named) for what is not valid JSON, not an object,
    lacks `model` or its input, or has one of the fields below in another type.
    """
    body = parse_object(raw)
    model = _model(body)
    if endpoint is Endpoint.CHAT:
        _check_messages(body)
    else:
        _check_prompt(body)
    stream = body.get("stream")
    if stream is not None and type(stream) is not bool:
        _wrong_type("stream", "a boolean", stream)
    salt = _salt(body)
    prefix = hash_key = None
    if rules.want_keys:
        key_text = _KEY_TEXTS[endpoint](body)
        if key_text is not None:
            hash_key = derive(model, key_text, rules.max_prefix_length, salt)
            prefix = hash_key if salt is None else None
    return ChatRequest(
        endpoint=endpoint,
        raw=raw,
        body=body,
        model=model,
        stream=stream is True,
        prefix=prefix,
        hash_key=hash_key,
    )


def for_model(request: ChatRequest, model: str, raw: bytes, rules: RequestRules) -> ChatRequest:
    """The same request to another model: `raw` names it, and the keys are that model's (J11)."""
    key_texts = _KEY_TEXTS.get(request.endpoint) if rules.want_keys else None
    key_text = key_texts(request.body) if key_texts is not None else None
    prefix = hash_key = None
    if key_text is not None:
        salt = _salt(request.body)
        hash_key = derive(model, key_text, rules.max_prefix_length, salt)
        prefix = hash_key if salt is None else None
    return replace(
        request,
        raw=raw,
        body={**request.body, "model": model},
        model=model,
        prefix=prefix,
        hash_key=hash_key,
    )


def parse_object(raw: bytes) -> dict[str, object]:
    """Parse a JSON object, strictly (no NaN, no comments, no invalid UTF-8).

    Unpaired surrogate escapes are accepted, as the engines' own parser accepts them (decisions A6).
    Raises BadRequest.
    """
    if not raw or raw.isspace():
        raise BadRequest("The request body is empty; send a JSON object.", code="empty_body")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as err:
        body = _second_opinion(raw, err)
    if type(body) is not dict:
        raise BadRequest(
            f"The request body must be a JSON object, not {_type_name(body)}.",
            code="invalid_json",
        )
    return body


def _second_opinion(raw: bytes, first: orjson.JSONDecodeError) -> object:
    """Parse again with the standard library where the fast parser refuses a surrogate escape."""
    if b"\\ud" in raw or b"\\uD" in raw:
        try:
            return json.loads(raw, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            pass
    raise BadRequest(
        f"The request body is not valid JSON (line {first.lineno}, column {first.colno}).",
        code="invalid_json",
    ) from None


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("not JSON")


def _model(body: Mapping[str, object]) -> str:
    model = body.get("model")
    if model is None:
        _missing("model")
    if type(model) is not str:
        _wrong_type("model", "a string", model)
    if not model:
        _invalid("model", "it must not be empty")
    if len(model) > MAX_MODEL_LENGTH:
        _invalid("model", f"it must not be longer than {MAX_MODEL_LENGTH} characters")
    if not model.isprintable():
        _invalid("model", "it must not contain control characters")
    return model


def _check_messages(body: Mapping[str, object]) -> None:
    messages = body.get("messages")
    if messages is None:
        _missing("messages")
    if type(messages) is not list:
        _wrong_type("messages", "an array", messages)
    if not messages:
        _invalid("messages", "it must have at least one message")
    for index, message in enumerate(messages):
        if type(message) is not dict:
            _wrong_type(f"messages[{index}]", "an object", message)


def _check_prompt(body: Mapping[str, object]) -> None:
    prompt = body.get("prompt")
    if prompt is None:
        # vLLM takes ready-made embeddings in the place of a prompt.
        if body.get("prompt_embeds") is None:
            _missing("prompt")
    elif type(prompt) is list:
        if not prompt:
            _invalid("prompt", "it must not be an empty array")
    elif type(prompt) is not str:
        _wrong_type("prompt", "a string or an array", prompt)


def _salt(body: Mapping[str, object]) -> str | None:
    """The client's own cache separation: `cache_salt`, or SGLang's `extra_key`, or both."""
    found: list[str] = []
    for name in ("cache_salt", "extra_key"):
        value = body.get(name)
        if value is None or value == "":
            continue
        if type(value) is not str:
            _wrong_type(name, "a string", value)
        if value.startswith(ROUTER_SALT_MARK):
            raise BadRequest(
                f"Invalid '{name}': values that begin with '{ROUTER_SALT_MARK}' are reserved.",
                param=name,
                code="reserved_salt",
            )
        found.append(value)
    return "\x00".join(found) if found else None


def _type_name(value: object) -> str:
    return JSON_TYPE_NAMES.get(type(value), "another type")


def _missing(param: str) -> NoReturn:
    raise BadRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def _wrong_type(param: str, want: str, value: object) -> NoReturn:
    raise BadRequest(
        f"Invalid type for '{param}': expected {want}, got {_type_name(value)}.",
        param=param,
        code="invalid_type",
    )


def _invalid(param: str, why: str) -> NoReturn:
    raise BadRequest(f"Invalid '{param}': {why}.", param=param, code="invalid_value")
