"""The `model_aggregation` section: how the list of models is gathered and kept (S2). Restart."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from continuum_shared.config.kinds import Duration, Int, Reload, SectionModel, choice, not_yet


class Deduplication(StrEnum):
    FIRST_WINS = "first_wins"
    LAST_WINS = "last_wins"
    MERGE_BACKENDS = "merge_backends"


class BackgroundRefreshConfig(SectionModel):
    """Passes that nobody asked for, before the list is too old."""

    reload: ClassVar[Reload] = Reload.RESTART

    enabled: bool = Field(True, description="`false`: only requests and events begin a pass.")
    check_interval: Duration = Field(
        10.0, ge=0.05, le=3600.0, description="Between two looks at the age of the list."
    )


class ModelAggregationConfig(SectionModel):
    """The list of models that backends tell, and how long it is good for. Read at start."""

    reload: ClassVar[Reload] = Reload.RESTART
    later: ClassVar[Mapping[str, str]] = not_yet("max_cache_entries")

    cache_ttl: Duration = Field(
        60.0, ge=0.1, le=86400.0, description="Age at which the list is stale."
    )
    soft_ttl_ratio: float = Field(
        0.8, gt=0.0, le=1.0, description="Share of `cache_ttl` after which it is renewed."
    )
    request_timeout: Duration = Field(
        5.0, ge=0.05, le=600.0, description="For one list of one backend, each try."
    )
    max_retries: Int = Field(2, ge=0, le=20, description="Further tries in one pass.")
    retry_delay: Duration = Field(0.5, ge=0.0, le=60.0, description="Between two tries.")
    max_models_per_backend: Int = Field(
        1000, ge=1, le=100_000, description="Models read of one backend; the rest is left out."
    )
    max_total_models: Int = Field(5000, ge=1, le=1_000_000, description="Models listed altogether.")
    max_response_size: Int = Field(
        10_485_760, ge=1, le=1_073_741_824, description="Bytes of a backend's answer."
    )
    empty_response_base_ttl: Duration = Field(
        5.0, ge=0.1, le=3600.0, description="How long the first empty result is kept."
    )
    empty_response_max_ttl: Duration = Field(
        60.0, ge=0.1, le=86400.0, description="How long an empty result is kept at most."
    )
    deduplication_strategy: Annotated[Deduplication, choice(Deduplication)] = Field(
        Deduplication.MERGE_BACKENDS,
        description="Whose entry a model has that several backends list.",
    )
    allow_force_refresh: bool = Field(
        True, description="`false`: both refresh endpoints answer 403."
    )
    background_refresh: BackgroundRefreshConfig = Field(default_factory=BackgroundRefreshConfig)
