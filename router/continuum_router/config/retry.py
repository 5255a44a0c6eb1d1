"""The `retry` section (S2; decisions E10, E13-E15)."""

from typing import Annotated

from pydantic import AfterValidator, Field

from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.kinds import Duration, Int, Number, SectionModel


def _error_statuses(codes: tuple[int, ...]) -> tuple[int, ...]:
    for index, code in enumerate(codes):
        if not 400 <= code <= 599:
            raise BadValue(
                f"{code} is not an error status", "use statuses from 400 to 599", at=(index,)
            )
        if code in codes[:index]:
            raise BadValue(f"{code} is listed twice", "remove one", at=(index,))
    return codes


class RetryBudgetConfig(SectionModel):
    """How many retries there may be in all, so that a fleet in trouble is not hit even harder."""

    ratio: Number = Field(
        0.2, ge=0, le=100, description="Retries for each request of the window; 0.2 is 20 %."
    )
    min_retries: Int = Field(
        10, ge=0, le=1_000_000, description="Retries of a window that are always granted."
    )
    window: Duration = Field(10.0, ge=1.0, le=600.0, description="How far back is counted.")


class RetryConfig(SectionModel):
    """When a failed call is tried again, before any byte of an answer reached the client."""

    max_attempts: Int = Field(
        3, ge=1, le=20, description="Tries in total, the first included; 1 = never again."
    )
    initial_delay: Duration = Field(0.1, ge=0, le=60.0, description="Wait before the second try.")
    max_delay: Duration = Field(
        30.0, ge=0, le=600.0, description="Longest wait, also of a Retry-After that is honoured."
    )
    backoff_multiplier: Number = Field(
        2.0, ge=1, le=100, description="Factor from one wait to the next."
    )
    jitter: bool = Field(True, description="Shorten each wait by a random part, half at most.")
    retryable_status_codes: Annotated[tuple[Int, ...], AfterValidator(_error_statuses)] = Field(
        (429, 502, 503, 504), description="Statuses of a backend that are worth another try."
    )
    prefer_untried_backends: bool = Field(
        False, description="Try a backend that has not failed this request yet, if there is one."
    )
    on_timeout: bool = Field(
        False,
        description="Also try again when streaming.first_byte passed and nothing was relayed.",
    )
    budget: RetryBudgetConfig = Field(default_factory=RetryBudgetConfig)
