"""The `kv_cache_index` section: what engines hold, and how that is scored (S0 Tier 4; C1-C6)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from continuum_router.config.backends import TlsConfig
from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.kinds import (
    Int,
    Name,
    Number,
    Reload,
    Secret,
    SectionModel,
    StreamEndpoint,
    choice,
    not_yet,
)


class IndexBackend(StrEnum):
    MEMORY = "memory"


class EventTransport(StrEnum):
    SSE = "sse"


class ScoringMode(StrEnum):
    COMPOSITE = "composite"
    COST = "cost"


class TenantScope(StrEnum):
    SHARED = "shared"
    PER_TENANT = "per_tenant"


class ScoringConfig(SectionModel):
    """Weights of the composite score. The three main weights add up to exactly 1.0."""

    reload: ClassVar[Reload] = Reload.RESTART
    later: ClassVar[Mapping[str, str]] = not_yet("hold")

    mode: Annotated[ScoringMode, choice(ScoringMode)] = Field(
        ScoringMode.COMPOSITE,
        description="`composite`: the holder with the best score. `cost`: whoever answers soonest, "
        "see docs/routing.md.",
    )
    overlap_weight: Number = Field(
        0.6, ge=0, le=1, description="Weight of how much of the prefix a backend holds."
    )
    load_weight: Number = Field(0.3, ge=0, le=1, description="Weight of having few in flight.")
    health_weight: Number = Field(0.1, ge=0, le=1, description="Weight of the success rate.")
    min_overlap_threshold: Number = Field(
        0.3, ge=0, le=1, description="Overlap (times tier weight) that a holder needs to count."
    )
    gpu_tier_weight: Number = Field(
        1.0, ge=0, le=10, description="Factor on the overlap of blocks in GPU memory."
    )
    storage_tier_weight: Number = Field(
        0.6, ge=0, le=10, description="Factor on the overlap of blocks moved to slower storage."
    )
    holder_load_bound: Number | None = Field(
        0.25,
        ge=0,
        le=100,
        description="A holder whose in-flight would pass (1 + bound) x mean is passed over. "
        "`null` switches the guard off.",
    )
    holder_load_floor: Int = Field(
        4, ge=0, le=100_000, description="A holder with fewer in flight is never over the bound."
    )
    load_snapshot_ms: Int = Field(
        0, ge=0, le=60_000, description="Age in-flight counts may have when scoring; 0 = live."
    )
    tenant_scope: Annotated[TenantScope, choice(TenantScope)] = Field(
        TenantScope.SHARED,
        description="Cost mode: whether equal prompts of different callers count as one.",
    )
    media_tokens: Int = Field(
        1024, ge=0, le=1_000_000, description="Cost mode: tokens that an image or the like counts."
    )


class StorageOffloadingConfig(SectionModel):
    """Whether blocks that left the GPU may live on in slower storage."""

    reload: ClassVar[Reload] = Reload.RESTART

    enabled: bool = Field(False, description="Track a second, warm tier.")
    treat_eviction_as_offload: bool = Field(
        True, description="An eviction moves a prefix to the warm tier (only when enabled)."
    )


class EventSourceConfig(SectionModel):
    """One stream of events: the listener's `/events/{backend}`."""

    identity: ClassVar[str] = "backend_name"
    stand_ins: ClassVar[Mapping[str, object]] = {
        "backend_name": "-",
        "endpoint": "http://listener.invalid/events/-",
    }

    backend_name: Name = Field(description="The backend whose cache the stream describes.")
    endpoint: StreamEndpoint = Field(
        description="The listener's stream, `http://HOST:7817/events/NAME` (http, https, ws, wss)."
    )
    reconnect_interval_ms: Int | None = Field(
        None,
        ge=1,
        le=3_600_000,
        description="First wait after a lost stream; doubles up to 60 s. Unset = 1000.",
    )
    auth_token: Secret | None = Field(
        None, description="Bearer token of the listener (its auth_token_env). Use `${VAR}`."
    )
    tls: TlsConfig = Field(default_factory=TlsConfig)
    transport: Annotated[EventTransport, choice(EventTransport, later=("event_bus",))] = Field(
        EventTransport.SSE, description="How events arrive."
    )

    @field_validator("auth_token", mode="after")
    @classmethod
    def _fits_a_header(cls, value: Secret | None) -> Secret | None:
        text = "" if value is None else value.reveal()
        if not (text.isascii() and text.isprintable()) or " " in text:
            raise BadValue("must be printable ASCII without blanks")
        return value


class KvCacheIndexConfig(SectionModel):
    """Which backend holds which prefix, learnt from the engines' own events."""

    reload: ClassVar[Reload] = Reload.RESTART

    enabled: bool = Field(False, description="Listen to events and score backends by them.")
    backend: Annotated[IndexBackend, choice(IndexBackend, later=("redis",))] = Field(
        IndexBackend.MEMORY, description="Where the index lives."
    )
    max_entries: Int = Field(
        100_000, ge=100, le=10_000_000, description="Prefixes kept; the oldest tenth goes first."
    )
    entry_ttl_seconds: Int = Field(
        600, ge=1, le=86_400, description="An entry nobody confirmed for so long is dropped."
    )
    min_tokens: Int = Field(
        0, ge=0, le=10_000_000, description="A holder of fewer tokens does not count."
    )
    scoring: ScoringConfig = Field(default_factory=ScoringConfig)
    storage_offloading: StorageOffloadingConfig = Field(default_factory=StorageOffloadingConfig)
    event_sources: tuple[EventSourceConfig, ...] = Field((), json_schema_extra={"reload": "hot"})
