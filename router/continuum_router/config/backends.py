"""The `backends[]` section: the engines that requests go to (decisions P9, H12, S2)."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from continuum_router.config.health_checks import BackendHealthCheck
from continuum_shared.config.bad_value import BadValue, echo
from continuum_shared.config.kinds import (
    BackendUrl,
    Int,
    Name,
    Number,
    Secret,
    SectionModel,
    Text,
    choice,
    not_yet,
)

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    }
)
_LATER_TYPES = (
    "llamacpp",
    "ollama",
    "openai",
    "anthropic",
    "gemini",
    "openrouter",
)


class BackendType(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    GENERIC = "generic"


SALTED_TYPES = frozenset({BackendType.VLLM, BackendType.SGLANG, BackendType.TRTLLM})
"""Engines that take `cache_salt` and repeat it in their events (decisions C24)."""


class Replay(StrEnum):
    """May a request that perhaps reached the backend be sent again? (S2 `replay`)"""

    ENABLED = "enabled"
    DISABLED = "disabled"


def _header_names(headers: Mapping[str, Secret]) -> Mapping[str, Secret]:
    seen: set[str] = set()
    for name in headers:
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise BadValue("is not a valid header name", "letters, digits and -", at=(name,))
        if lower in _OWN_HEADERS or lower.startswith("x-continuum-"):
            raise BadValue("is a header that the router sets itself", "remove it", at=(name,))
        if lower in seen:
            raise BadValue("is written twice (case does not matter)", "remove one", at=(name,))
        seen.add(lower)
    return headers


def _aliases(aliases: Mapping[str, str]) -> Mapping[str, str]:
    for alias, real in aliases.items():
        if alias == real:
            raise BadValue("means itself", "remove it", at=(alias,))
        if real in aliases:
            raise BadValue("means another alias", "name the real model", at=(alias,))
        if not (alias.isprintable() and real.isprintable()):
            raise BadValue("has a control character", at=(alias,))
    return aliases


def _auth_scheme(value: object) -> object:
    text = value.strip() if isinstance(value, str) else ""
    word, _, name = text.partition(":")
    word = word.lower()
    if word in ("bearer", "basic") and not name:
        return word
    if word == "header" and _HEADER_NAME.fullmatch(name):
        if name.lower() in _OWN_HEADERS or name.lower().startswith("x-continuum-"):
            raise BadValue("names a header that the router sets itself", "use another one")
        return f"header:{name}"
    raise BadValue(f"{echo(value)}is not a known value", "known: bearer, basic, header:NAME")


def _header_text(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise BadValue("must be printable ASCII")
    return text


class TlsConfig(SectionModel):
    """How an `https://` backend is recognised, and how the router shows who it is."""

    ca_file: Text | None = Field(
        None, description="PEM file of the certificates to trust, instead of the system's."
    )
    server_name: Text | None = Field(
        None, description="Name the certificate must have; unset = the URL's host."
    )
    client_cert: Text | None = Field(
        None, description="PEM file with the router's own certificate (mutual TLS)."
    )
    client_key: Text | None = Field(
        None, description="PEM file with its key; unset = it is in client_cert."
    )
    insecure_skip_verify: bool = Field(
        False, description="`true` accepts any certificate. For tests only: anybody can listen in."
    )


class BackendConfig(SectionModel):
    """One engine."""

    identity: ClassVar[str] = "name"
    stand_ins: ClassVar[Mapping[str, object]] = {"name": "-", "url": "http://backend.invalid"}
    later: ClassVar[Mapping[str, str]] = not_yet(
        "anthropic_auto_cache_control",
        "scrape_metrics",
    )

    name: Name = Field(description="Unique name; it is the label of metrics and headers.")
    type: Annotated[BackendType, choice(BackendType, later=_LATER_TYPES)] = Field(
        BackendType.GENERIC, description="What kind of engine it is. `generic` speaks OpenAI."
    )
    url: BackendUrl = Field(
        description="`http://`, `https://` or `unix:///path.sock`; a final `/v1` is dropped."
    )
    models: tuple[Text, ...] = Field(
        (), description="Models it serves. Empty = asked from the backend's own model list."
    )
    weight: Number = Field(
        1.0, gt=0, le=1000, description="Share of load against the other backends."
    )
    aliases: Annotated[dict[Text, Text], AfterValidator(_aliases)] = Field(
        default_factory=dict,
        description="More names for its models, `alias: real name`. Requests carry the real name "
        "to the backend, answers the alias to the client.",
    )
    api_key: Secret | None = Field(
        None, description="Sent as `auth_scheme` says. Use `${VAR}`; it is never printed."
    )
    auth_scheme: Annotated[str, BeforeValidator(_auth_scheme)] = Field(
        "bearer",
        description="How api_key is sent: `bearer`, `basic` (the key is `user:password`) or "
        "`header:NAME`.",
    )
    organization: Annotated[Text, AfterValidator(_header_text)] | None = Field(
        None, description="Sent as `OpenAI-Organization`."
    )
    tls: TlsConfig = Field(default_factory=TlsConfig)
    headers: Annotated[dict[str, Secret], AfterValidator(_header_names)] = Field(
        default_factory=dict, description="More headers to send. Values are never printed."
    )
    max_connections: Int = Field(
        512, ge=1, le=65535, description="Most connections open to it at a time."
    )
    enabled: bool = Field(True, description="`false` takes it out without removing it.")
    internal: bool = Field(
        False, description="`true`: not offered to clients, not counted by /health/ready."
    )
    health_check: BackendHealthCheck | None = Field(
        None, description="Probe it in another way than its type is probed."
    )
    replay: Annotated[Replay, choice(Replay)] = Field(
        Replay.ENABLED,
        description="`disabled`: a request that may have reached it is never sent again.",
    )
