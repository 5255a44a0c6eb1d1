"""`selection_strategy` and the `prefix_routing` section (S0 Tier 1; decisions A9, A16)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, WithJsonSchema

from continuum_shared.config.kinds import Int, Number, SectionModel, choice, not_yet
from continuum_shared.config.salt_echo import SaltEchoConfig


class StrategyName(StrEnum):
    """How a backend is chosen without the index; the value is its name in headers (J7)."""

    ROUND_ROBIN = "round_robin"
    PREFIX_AWARE_HASH = "prefix_aware_hash"
    WEIGHTED_ROUND_ROBIN = "weighted_round_robin"
    LEAST_LATENCY = "least_latency"
    RANDOM = "random"
    CONSISTENT_HASH = "consistent_hash"
    LEAST_WORK = "least_work"


_SPELLINGS = [
    spelling
    for name in StrategyName
    for spelling in ("".join(word.title() for word in name.value.split("_")), name.value)
]

SelectionStrategy = Annotated[
    StrategyName,
    choice(StrategyName),
    WithJsonSchema({"enum": _SPELLINGS}),
]


class KeyScope(StrEnum):
    """What the prefix hash covers; the index and the listener use the system prompt's key."""

    SYSTEM = "system"
    SYSTEM_AND_FIRST_USER = "system_and_first_user"
    SESSION = "session"


class PrefixRoutingConfig(SectionModel):
    """Sends prompts that begin alike to the same backend, within a bound on load (CHWBL)."""

    later: ClassVar[Mapping[str, str]] = not_yet("anthropic_cache_control_injection")

    enabled: bool = Field(False, description="Work out prefix keys of requests.")
    max_prefix_length: Int = Field(
        1024,
        ge=1,
        le=1 << 20,
        description="Bytes of UTF-8 text that enter the key. The listener needs the same value.",
    )
    key_scope: Annotated[KeyScope, choice(KeyScope)] = Field(
        KeyScope.SYSTEM,
        description="What PrefixAwareHash hashes: the system prompt, that and the first user "
        "message, or the session that `x-continuum-session-id` or `x-session-id` names.",
    )
    load_factor_epsilon: Number = Field(
        0.25,
        ge=0.01,
        le=10.0,
        description="How far above the average load a prefix's owner may go before the next "
        "backend on the ring takes over.",
    )
    virtual_nodes: Int = Field(
        150, ge=1, le=10_000, description="Points on the ring for a backend of weight 1."
    )
    load_floor: Int = Field(
        1,
        ge=1,
        le=100_000,
        description="A backend with fewer requests in flight is never over its bound.",
    )
    salt_echo: SaltEchoConfig = Field(default_factory=SaltEchoConfig)
