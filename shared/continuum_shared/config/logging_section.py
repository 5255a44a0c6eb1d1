"""The `logging` section, which both daemons have (S2). Which level wins: `logs.levels_from_env`."""

from typing import Annotated, ClassVar

from pydantic import Field

from continuum_shared.config.kinds import ByteSize, Int, Reload, SectionModel, choice
from continuum_shared.logs import LogFormat, LogLevel


class LoggingConfig(SectionModel):
    """How a daemon writes its log. Records wait in a bounded queue; a full queue drops, counted."""

    reload: ClassVar[Reload] = Reload.RESTART

    level: Annotated[LogLevel, choice(LogLevel)] = Field(
        LogLevel.INFO,
        description="Lowest level written. RUST_LOG, then CONTINUUM_LOG_LEVEL win over it.",
    )
    format: Annotated[LogFormat, choice(LogFormat)] = Field(
        LogFormat.JSON, description="One JSON object a line, or text for people."
    )
    queue_capacity: Int = Field(
        8192, ge=1, le=1_000_000, description="Records that may wait for the writer."
    )
    queue_capacity_bytes: ByteSize = Field(
        16 << 20, ge=64 << 10, le=1 << 30, description="Bytes that may wait for the writer."
    )
