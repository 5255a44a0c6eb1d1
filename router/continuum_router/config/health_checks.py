"""The `health_checks` section, and `backends[].health_check` (S2, decisions E1-E9)."""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.kinds import Duration, Int, SectionModel, Text, choice

_PATH = re.compile(r"/[!-~]*")


class ProbeMethod(StrEnum):
    GET = "GET"
    POST = "POST"
    HEAD = "HEAD"


def _path(text: str) -> str:
    if not _PATH.fullmatch(text) or text.startswith("//") or "#" in text:
        raise BadValue("is not a path", "begin with one /, no spaces, no host")
    return text


def _statuses(codes: tuple[int, ...]) -> tuple[int, ...]:
    for index, code in enumerate(codes):
        if not 100 <= code <= 599:
            raise BadValue(f"{code} is not a status", "use statuses from 100 to 599", at=(index,))
        if code in codes[:index]:
            raise BadValue(f"{code} is listed twice", "remove one", at=(index,))
    return codes


def _some(codes: tuple[int, ...]) -> tuple[int, ...]:
    if not codes:
        raise BadValue("is empty, so nothing would ever be healthy", "list at least one status")
    return _statuses(codes)


Path = Annotated[Text, AfterValidator(_path)]
Method = Annotated[ProbeMethod, choice(ProbeMethod)]


class BreakerConfig(SectionModel):
    """Takes a backend out of rotation when requests to it fail, sooner than probes would."""

    enabled: bool = Field(True, description="Judge backends by the requests they fail, too.")
    failures: Int = Field(
        5, ge=1, le=1000, description="Failures in a row, all by the backend's doing, that open it."
    )
    cooldown: Duration = Field(
        10.0, ge=0.1, le=3600.0, description="How long it stays open before one request tries."
    )


class HealthChecksConfig(SectionModel):
    """Active probes of backends, and what is made of their failures."""

    enabled: bool = Field(True, description="`false`: no backend is probed; traffic alone judges.")
    interval: Duration = Field(
        30.0, ge=0.1, le=86400.0, description="Between two probes of a backend."
    )
    timeout: Duration = Field(10.0, ge=0.05, le=600.0, description="For one whole probe.")
    unhealthy_threshold: Int = Field(
        3, ge=1, le=1000, description="Failed probes in a row that take a backend out."
    )
    healthy_threshold: Int = Field(
        2, ge=1, le=1000, description="Good probes in a row that bring it back."
    )
    endpoint: Path = Field(
        "/health", description="What is asked of engines that have no `health_check` of their own."
    )
    warmup_check_interval: Duration = Field(
        1.0, ge=0.05, le=600.0, description="Between two probes while a backend warms up."
    )
    max_warmup_duration: Duration = Field(
        300.0, ge=1.0, le=86400.0, description="Longest warm-up; then the backend is unhealthy."
    )
    block_startup: bool = Field(
        True, description="Listen only when the first rounds of probes are over. Read at start."
    )
    prewarm_timeout: Duration = Field(
        10.0,
        ge=0.05,
        le=600.0,
        description="For the connection opened to each backend before the start. Read at start.",
    )
    last_resort: bool = Field(
        True, description="With every backend unhealthy, try them anyway, the last good one first."
    )
    breaker: BreakerConfig = Field(default_factory=BreakerConfig)


class BackendHealthCheck(SectionModel):
    """How one backend is probed, instead of its type's way. Sent at every interval."""

    endpoint: Path | None = Field(None, description="Path to ask; unset = the type's own.")
    fallback_endpoints: Annotated[tuple[Path, ...], Field(max_length=8)] | None = Field(
        None, description="Asked in turn when the one before answers 404 or 405."
    )
    method: Method = Field(ProbeMethod.GET, description="`GET`, `POST` or `HEAD`.")
    body: dict[str, object] | None = Field(None, description="JSON to send with POST.")
    timeout: Duration | None = Field(
        None, ge=0.05, le=600.0, description="For one whole probe; unset = health_checks.timeout."
    )
    accept_status: Annotated[tuple[Int, ...], AfterValidator(_some)] | None = Field(
        None, description="Statuses that mean healthy; unset = 200 to 299."
    )
    warmup_status: Annotated[tuple[Int, ...], AfterValidator(_statuses)] = Field(
        (503,), description="Statuses that mean it is still loading."
    )
