"""The `timeouts` section: deadlines of upstream calls, and their caps (S2; E10-E12, E18)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.kinds import Duration, Kind, Reload, SectionModel

_SHORTEST = 0.001
_MAX_MODEL_NAME = 256

MaybeDuration = Annotated[Duration | None, Kind.DURATION]


class StandardTimeouts(SectionModel):
    """Deadlines of answers that arrive in one piece."""

    first_byte: Duration = Field(
        30.0,
        ge=_SHORTEST,
        description="Deprecated, no effect: an answer in one piece begins when it is finished.",
    )
    total: Duration = Field(
        180.0,
        ge=_SHORTEST,
        description="The whole request, retries included. Cap: limits.max_standard_timeout.",
    )


class StreamingTimeouts(SectionModel):
    """Deadlines of streamed answers."""

    first_byte: Duration = Field(
        120.0, ge=_SHORTEST, description="From the end of sending to the first data event."
    )
    chunk_interval: Duration = Field(
        30.0, ge=0, description="Longest silence between bytes after that; 0 switches it off."
    )
    total: Duration = Field(
        600.0, ge=_SHORTEST, description="The whole stream. Cap: limits.max_streaming_timeout."
    )


class ImageTimeouts(SectionModel):
    """Deadlines of image requests (`/v1/images/*`)."""

    first_byte: Duration = Field(
        60.0,
        ge=_SHORTEST,
        description="Deprecated, no effect: an image arrives when it is finished.",
    )
    total: Duration = Field(
        180.0,
        ge=_SHORTEST,
        description="The whole request, retries included. Cap: limits.max_image_timeout.",
    )


class PlainOverride(SectionModel):
    """What one model has instead; a key that is left out keeps the value from above."""

    first_byte: MaybeDuration = Field(
        None, ge=_SHORTEST, description="Deprecated, no effect, as above."
    )
    total: MaybeDuration = Field(None, ge=_SHORTEST, description="Instead of the total from above.")


class StreamingOverride(SectionModel):
    """What one model has instead; a key that is left out keeps the value from above."""

    first_byte: MaybeDuration = Field(
        None, ge=_SHORTEST, description="Instead of streaming.first_byte."
    )
    chunk_interval: MaybeDuration = Field(
        None, ge=0, description="Instead of streaming.chunk_interval; 0 switches it off."
    )
    total: MaybeDuration = Field(None, ge=_SHORTEST, description="Instead of streaming.total.")


class ModelTimeouts(SectionModel):
    """Deadlines of requests for one model, by the name that clients ask for."""

    standard: PlainOverride = Field(default_factory=PlainOverride)
    streaming: StreamingOverride = Field(default_factory=StreamingOverride)
    image_generation: PlainOverride = Field(default_factory=PlainOverride)


def _model_names(overrides: Mapping[str, ModelTimeouts]) -> Mapping[str, ModelTimeouts]:
    for name in overrides:
        if not name or len(name) > _MAX_MODEL_NAME:
            raise BadValue("is not the name of a model", "1 to 256 characters", at=(name,))
    return overrides


class RequestTimeouts(SectionModel):
    """Deadlines by kind of request."""

    standard: StandardTimeouts = Field(default_factory=StandardTimeouts)
    streaming: StreamingTimeouts = Field(default_factory=StreamingTimeouts)
    image_generation: ImageTimeouts = Field(default_factory=ImageTimeouts)
    model_overrides: Annotated[dict[str, ModelTimeouts], AfterValidator(_model_names)] = Field(
        default_factory=dict
    )


class TimeoutLimits(SectionModel):
    """Caps that protect against a slip of the keyboard; each may be raised to twice its default.

    Read once at start: a reload that would change one is refused (S2).
    """

    reload: ClassVar[Reload] = Reload.REFUSED

    max_standard_timeout: Duration = Field(
        540.0, ge=_SHORTEST, le=1080.0, description="Cap of request.standard.total."
    )
    max_streaming_timeout: Duration = Field(
        1200.0, ge=_SHORTEST, le=2400.0, description="Cap of request.streaming.total."
    )
    max_image_timeout: Duration = Field(
        540.0, ge=_SHORTEST, le=1080.0, description="Cap of request.image_generation.total."
    )
    max_first_byte_timeout: Duration = Field(
        600.0, ge=_SHORTEST, le=1200.0, description="Cap of request.streaming.first_byte."
    )
    max_chunk_interval: Duration = Field(
        300.0, ge=_SHORTEST, le=600.0, description="Cap of request.streaming.chunk_interval."
    )


class LegacyHealthCheck(SectionModel):
    """Where health checks were configured once. Read and ignored: see `health_checks`."""

    interval: MaybeDuration = Field(None, description="Ignored; use health_checks.interval.")
    timeout: MaybeDuration = Field(None, description="Ignored; use health_checks.timeout.")


class TimeoutsConfig(SectionModel):
    """Deadlines of calls to backends."""

    connection: Duration = Field(
        10.0, ge=_SHORTEST, le=300.0, description="Connecting, TLS included."
    )
    request: RequestTimeouts = Field(default_factory=RequestTimeouts)
    limits: TimeoutLimits = Field(default_factory=TimeoutLimits)
    health_check: LegacyHealthCheck = Field(default_factory=LegacyHealthCheck)
