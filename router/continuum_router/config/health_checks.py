"""The `health_checks` section. Accepted early (decisions J19); probes come in a later version."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from continuum_shared.config.kinds import SectionModel, not_yet


class HealthChecksConfig(SectionModel):
    """Active probes of backends."""

    later: ClassVar[Mapping[str, str]] = not_yet(
        "interval",
        "timeout",
        "unhealthy_threshold",
        "healthy_threshold",
        "endpoint",
        "warmup_check_interval",
        "max_warmup_duration",
        "block_startup",
        "prewarm_timeout",
        "last_resort",
    )

    enabled: bool = Field(
        True, description="Probe backends. This version judges by live traffic only."
    )
