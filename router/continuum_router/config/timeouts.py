"""The `timeouts` section: deadlines of upstream calls, and their caps (S2; E10-E12, E18)."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from continuum_shared.config.kinds import Duration, Reload, SectionModel, not_yet

_SHORTEST = 0.001


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


class RequestTimeouts(SectionModel):
    """Deadlines by kind of request."""

    later: ClassVar[Mapping[str, str]] = not_yet("image_generation", "model_overrides")

    standard: StandardTimeouts = Field(default_factory=StandardTimeouts)
    streaming: StreamingTimeouts = Field(default_factory=StreamingTimeouts)


class TimeoutLimits(SectionModel):
    """Caps that protect against a slip of the keyboard; each may be raised to twice its default."""

    reload: ClassVar[Reload] = Reload.REFUSED
    later: ClassVar[Mapping[str, str]] = not_yet("max_image_timeout")

    max_standard_timeout: Duration = Field(
        540.0, ge=_SHORTEST, le=1080.0, description="Cap of request.standard.total."
    )
    max_streaming_timeout: Duration = Field(
        1200.0, ge=_SHORTEST, le=2400.0, description="Cap of request.streaming.total."
    )
    max_first_byte_timeout: Duration = Field(
        600.0, ge=_SHORTEST, le=1200.0, description="Cap of request.streaming.first_byte."
    )
    max_chunk_interval: Duration = Field(
        300.0, ge=_SHORTEST, le=600.0, description="Cap of request.streaming.chunk_interval."
    )


class TimeoutsConfig(SectionModel):
    """Deadlines of calls to backends."""

    later: ClassVar[Mapping[str, str]] = not_yet("health_check")

    connection: Duration = Field(
        10.0, ge=_SHORTEST, le=300.0, description="Connecting, TLS included."
    )
    request: RequestTimeouts = Field(default_factory=RequestTimeouts)
    limits: TimeoutLimits = Field(default_factory=TimeoutLimits)
