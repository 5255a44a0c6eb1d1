"""The `backends[]` section: the engines that requests go to (decisions P9, H12, S2)."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from continuum_shared.config.bad_value import BadValue
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
    "trtllm",
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
    GENERIC = "generic"


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


class BackendConfig(SectionModel):
    """One engine."""

    identity: ClassVar[str] = "name"
    stand_ins: ClassVar[Mapping[str, object]] = {"name": "-", "url": "http://backend.invalid"}
    later: ClassVar[Mapping[str, str]] = not_yet(
        "aliases",
        "anthropic_auto_cache_control",
        "health_check",
        "organization",
        "scrape_metrics",
        auth_scheme="api_key is sent as a bearer token",
        tls="https:// URLs are checked against the system's certificates",
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
    api_key: Secret | None = Field(
        None, description="Sent as a bearer token. Use `${VAR}`; it is never printed."
    )
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
    replay: Annotated[Replay, choice(Replay)] = Field(
        Replay.ENABLED,
        description="`disabled`: a request that may have reached it is never sent again.",
    )
