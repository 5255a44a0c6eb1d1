"""The `logging` section, which both daemons have, and which level wins (S2, decisions J13)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from continuum_shared.config.kinds import ByteSize, Int, Reload, SectionModel, choice


class LogLevel(StrEnum):
    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class LogFormat(StrEnum):
    JSON = "json"
    PRETTY = "pretty"
    COMPACT = "compact"


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


def effective_level(written: LogLevel, env: Mapping[str, str]) -> tuple[LogLevel, str | None]:
    """The level to use and, when a variable cannot be read, a note about it (S2 "level order").

    RUST_LOG wins over CONTINUUM_LOG_LEVEL, which wins over `logging.level`. Of a RUST_LOG with
    filter directives (`target=level,level`) the part without a target counts. An empty variable
    or one without such a part is as good as unset. The note never repeats the variable's text.
    """
    note: str | None = None
    for name in ("RUST_LOG", "CONTINUUM_LOG_LEVEL"):
        words = [part.strip().lower() for part in env.get(name, "").split(",")]
        plain = [word for word in words if word and "=" not in word]
        if not plain:
            continue
        word = "warn" if plain[-1] == "warning" else plain[-1]
        if word in {level.value for level in LogLevel}:
            return LogLevel(word), note
        levels = ", ".join(LogLevel)
        note = f"{name} is ignored: it names no log level; known: {levels}"
    return written, note
