"""One generating request, parsed once: what the client sent, as bytes and as facts.

The bytes are kept and go on to the backend unchanged; the parsed body is only read. What the rest
of the router needs to know is worked out here, once: the model, whether the answer streams, and the
two keys that steer routing. Everything is pure: bytes in, a value or a `BadRequest` out.

What is refused here is what no backend could make sense of, so that a client learns it in
microseconds and no backend is blamed. Fields that this router does not need are left to the engine.
No message repeats the client's text: error texts reach logs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NoReturn, Protocol

from continuum_router.errors import BadRequest
from continuum_router.json_body import check_weight, parse_object, type_name
from continuum_shared.cache_salt import SALT_FORM, is_router_salt
from continuum_shared.prefix_key import (
    DEFAULT_MAX_PREFIX_LENGTH,
    KeyText,
    PrefixKey,
    chat_key_text,
    completions_key_text,
    derive,
    responses_key_text,
)

MAX_MODEL_LENGTH = 256
"""Characters of a model name; it is logged, so it is bounded."""


class Endpoint(StrEnum):
    """The generating endpoints; the value is a metric label and a key of the per-type tables."""

    CHAT = "chat_completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    AUDIO = "audio"
    IMAGES = "images"
    PASSTHROUGH = "passthrough"

    @property
    def path(self) -> str:
        """The path under which clients reach it; one that ends in a slash leads to several."""
        return _PATHS[self]


_PATHS: Mapping[Endpoint, str] = {
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

COMPLETING = (Endpoint.CHAT, Endpoint.COMPLETIONS)
"""Endpoints whose input is checked before it is sent on."""

_KEY_TEXTS: Mapping[Endpoint, Callable[[Mapping[str, object]], KeyText | None]] = {
    Endpoint.CHAT: chat_key_text,
    Endpoint.COMPLETIONS: completions_key_text,
    Endpoint.RESPONSES: responses_key_text,
}


def _no_key_text(_body: Mapping[str, object]) -> KeyText | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """What the configuration says about reading a request.

    `want_keys` is `prefix_routing.enabled`: without it nothing is hashed and requests have no keys.
    `max_prefix_length` is in bytes (S0 "Prefix key"). `aliases` maps a client's name for a model to
    the name that backends know: keys are made of the latter (decisions A1).
    """

    want_keys: bool = True
    max_prefix_length: int = DEFAULT_MAX_PREFIX_LENGTH
    aliases: Mapping[str, str] = field(default_factory=dict)


class Tail(Protocol):
    """The rest of a body that is still on its way from the client."""

    @property
    def started(self) -> bool:
        """True once a piece was taken: from then on the request cannot be sent again."""

    async def next(self) -> bytes:
        """The next bytes, b"" at the end. Raises RouterError when the client fails to send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A body that is not JSON. `length` is its size, None when it ends where the client says.

    `model_at` are the offsets in `ChatRequest.raw` between which a form's model stands. `tail`
    gives what follows `raw`, None when that is all.
    """

    length: int | None
    model_at: tuple[int, int] | None = None
    tail: Tail | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request for a completion, or for anything else that an engine generates.

    `raw` are the client's bytes, decoded from a content coding if there was one. `body` is
    read-only by agreement. `prefix` is the key of index lookups; it is None when the request
    carries a salt of its own, because what the index knows was stored without that salt (decisions
    C41). `hash_key` is the Tier 1 key: the same, with the salt mixed in. Both are None when the
    body has no text to key or no feature asks for keys.

    `model` is the name that the client sent, "" when it named none. `path` and `method` are set
    where the endpoint does not fix them. `upload` is set when `raw` is only the beginning of the
    body, or when it is a form.
    """

    endpoint: Endpoint
    raw: bytes = field(repr=False)
    body: Mapping[str, object] = field(repr=False)
    model: str
    stream: bool
    prefix: PrefixKey | None
    hash_key: PrefixKey | None
    path: str = ""
    method: str = "POST"
    upload: Upload | None = None

    @property
    def replayable(self) -> bool:
        """False once a part of the body has been sent that is not kept here."""
        return self.upload is None or self.upload.tail is None or not self.upload.tail.started


Reading = tuple[dict[str, object], str, bool, PrefixKey | None, PrefixKey | None]
"""Body, model, stream, prefix and hash_key of a `ChatRequest`, see there."""


def parse_generate(endpoint: Endpoint, raw: bytes, rules: RequestRules) -> ChatRequest:
    """Read a request with a JSON body. Raises BadRequest, see `read_generate`."""
    return request_of(endpoint, raw, read_generate(endpoint, raw, rules))


def request_of(endpoint: Endpoint, raw: bytes, reading: Reading) -> ChatRequest:
    """The request that was read."""
    body, model, stream, prefix, hash_key = reading
    return ChatRequest(
        endpoint=endpoint,
        raw=raw,
        body=body,
        model=model,
        stream=stream,
        prefix=prefix,
        hash_key=hash_key,
    )


def read_generate(endpoint: Endpoint, raw: bytes, rules: RequestRules) -> Reading:
    """Read what routing needs to know of a JSON body.

    Raises BadRequest for what is no JSON object, lacks `model` or its input, or has a field of
    another type. Beside chats and completions the model may be absent ("") and the input is free.
    """
    check_weight(raw)
    body = parse_object(raw)
    model = body.get("model")
    if type(model) is not str or not 0 < len(model) <= MAX_MODEL_LENGTH or not model.isprintable():
        model = _model(body, required=endpoint in COMPLETING)
    if endpoint is Endpoint.CHAT:
        _check_messages(body)
    elif endpoint is Endpoint.COMPLETIONS:
        _check_prompt(body)
    stream = body.get("stream")
    if stream is not None and type(stream) is not bool:
        _wrong_type("stream", "a boolean", stream)
    salt = client_salt(body) if "cache_salt" in body or "extra_key" in body else None
    prefix = hash_key = None
    if rules.want_keys:
        key_text = _KEY_TEXTS.get(endpoint, _no_key_text)(body)
        if key_text is not None:
            name = rules.aliases.get(model, model)
            hash_key = derive(name, key_text, rules.max_prefix_length, salt)
            prefix = hash_key if salt is None else None
    return body, model, stream is True, prefix, hash_key


def for_model(request: ChatRequest, model: str, raw: bytes, rules: RequestRules) -> ChatRequest:
    """The same request to another model: `raw` names it, and the keys are that model's (J11)."""
    key_texts = _KEY_TEXTS.get(request.endpoint) if rules.want_keys else None
    key_text = key_texts(request.body) if key_texts is not None else None
    prefix = hash_key = None
    if key_text is not None:
        salt = client_salt(request.body)
        name = rules.aliases.get(model, model)
        hash_key = derive(name, key_text, rules.max_prefix_length, salt)
        prefix = hash_key if salt is None else None
    return replace(
        request,
        raw=raw,
        body={**request.body, "model": model},
        model=model,
        prefix=prefix,
        hash_key=hash_key,
    )


def parse_opaque(  # noqa: PLR0913  one request, field by field
    endpoint: Endpoint,
    raw: bytes,
    *,
    model: bytes | None = None,
    stream: bool = False,
    path: str = "",
    method: str = "POST",
    upload: Upload | None = None,
) -> ChatRequest:
    """A request whose body is not read: a form with its `model` field, or anything at all.

    Raises BadRequest for a model that cannot be one.
    """
    name = ""
    if model is not None:
        try:
            name = check_model(model.decode("utf-8"))
        except UnicodeDecodeError:
            _invalid("model", "it must be UTF-8 text")
    return ChatRequest(
        endpoint=endpoint,
        raw=raw,
        body={},
        model=name,
        stream=stream,
        prefix=None,
        hash_key=None,
        path=path,
        method=method,
        upload=upload,
    )


def missing_model() -> BadRequest:
    """The refusal of a request that must name a model and does not."""
    return BadRequest(
        "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
    )


def _model(body: Mapping[str, object], *, required: bool) -> str:
    model = body.get("model")
    if model is None:
        if required:
            raise missing_model()
        return ""
    if type(model) is not str:
        _wrong_type("model", "a string", model)
    return check_model(model)


def check_model(model: str) -> str:
    """Return a model's name. Raises BadRequest for one that no log line should have to carry."""
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


def client_salt(body: Mapping[str, object]) -> str | None:
    """The client's own cache separation: `cache_salt`, or SGLang's `extra_key`, or both."""
    found: list[str] = []
    for name in ("cache_salt", "extra_key"):
        value = body.get(name)
        if value is None or value == "":
            continue
        if type(value) is not str:
            _wrong_type(name, "a string", value)
        if is_router_salt(value):
            raise BadRequest(
                f"Invalid '{name}': values that begin with '{SALT_FORM}' are reserved.",
                param=name,
                code="reserved_salt",
            )
        found.append(value)
    return "\x00".join(found) if found else None


def _missing(param: str) -> NoReturn:
    raise BadRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def _wrong_type(param: str, want: str, value: object) -> NoReturn:
    raise BadRequest(
        f"Invalid type for '{param}': expected {want}, got {type_name(value)}.",
        param=param,
        code="invalid_type",
    )


def _invalid(param: str, why: str) -> NoReturn:
    raise BadRequest(f"Invalid '{param}': {why}.", param=param, code="invalid_value")
