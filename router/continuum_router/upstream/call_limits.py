"""Which time limits a request has: by its kind, and by its model (S2 "timeouts", E18).

Worked out once per configuration; a request looks up its model and its kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from continuum_router.config.timeouts import PlainOverride, StreamingOverride, TimeoutsConfig
from continuum_router.upstream.deadlines import Limits

_IMAGES = "/v1/images/"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """The limits of one model's requests, or of all models without overrides."""

    standard: Limits
    streaming: Limits
    image_generation: Limits

    def of(self, path: str, *, stream: bool) -> Limits:
        """Limits of a request to `path`. An image is an image, streamed or not."""
        if path.startswith(_IMAGES):
            return self.image_generation
        return self.streaming if stream else self.standard


def base_limits(section: TimeoutsConfig) -> CallLimits:
    """Limits of every model without overrides. Answers in one piece have a total only (S2)."""
    streaming = section.request.streaming
    return CallLimits(
        standard=Limits(total=section.request.standard.total),
        streaming=Limits(
            total=streaming.total,
            first_byte=streaming.first_byte,
            chunk_interval=streaming.chunk_interval,
        ),
        image_generation=Limits(total=section.request.image_generation.total),
    )


def model_limits(section: TimeoutsConfig) -> Mapping[str, CallLimits]:
    """Limits of the models in `model_overrides`; what one leaves out is the base's."""
    base = base_limits(section)
    return {
        model: CallLimits(
            standard=_plain(override.standard, base.standard),
            streaming=_streaming(override.streaming, base.streaming),
            image_generation=_plain(override.image_generation, base.image_generation),
        )
        for model, override in section.request.model_overrides.items()
    }


def _plain(override: PlainOverride, base: Limits) -> Limits:
    return base if override.total is None else Limits(total=override.total)


def _streaming(override: StreamingOverride, base: Limits) -> Limits:
    def either(own: float | None, other: float | None) -> float | None:
        return other if own is None else own

    return Limits(
        total=base.total if override.total is None else override.total,
        first_byte=either(override.first_byte, base.first_byte),
        chunk_interval=either(override.chunk_interval, base.chunk_interval),
    )
