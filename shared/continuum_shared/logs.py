"""Process logs: formatted where they arise, written by one thread, bounded in count and bytes.

S2 "Logging": a slow or blocked output never holds a request. A record that does not fit into the
queue is dropped and counted (decisions G7); one failed write ends process logging, which the gauge
``process_log_writer_failed`` tells. Lines are JSON objects with timestamp, level, target and
fields, or one line of readable text.

Loggers are the standard library's, got by name; ``fields(...)`` carries the structured part:
``log.info("Source connected", extra=fields(source=name))``. Nothing here may ever be given a
prompt, a token id, a salt or a key.
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import BinaryIO, Protocol

import orjson

from continuum_shared.metrics import Metrics

log = logging.getLogger("continuum_shared.logs")

TRACE = 5
MAX_RECORD_BYTES = 64 * 1024
TRUNCATED = "[process log truncated]"
FLUSH_SECONDS = 1.0


class LogLevel(StrEnum):
    """Levels of ``logging.level``."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class LogFormat(StrEnum):
    """Forms of a line: ``logging.format``."""

    JSON = "json"
    PRETTY = "pretty"
    COMPACT = "compact"


class LogDrop(StrEnum):
    """Why a record was lost; label values of ``process_log_records_dropped_total``."""

    QUEUE_FULL = "queue_full"
    QUEUE_BYTES = "queue_bytes"
    WRITE_ERROR = "write_error"


LEVEL_NUMBERS: Mapping[LogLevel, int] = {
    LogLevel.TRACE: TRACE,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}

_NAMES = {TRACE: "TRACE", 10: "DEBUG", 20: "INFO", 30: "WARN", 40: "ERROR", 50: "ERROR"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the ``logging`` section says, after the environment had its word."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.JSON
    queue_capacity: int = 8192
    queue_capacity_bytes: int = 16 * 1024 * 1024
    targets: Mapping[str, LogLevel] = field(default_factory=dict)


class LogSection(Protocol):
    """The `logging` section of a configuration, see ``config.logging_section``."""

    @property
    def level(self) -> LogLevel: ...
    @property
    def format(self) -> LogFormat: ...
    @property
    def queue_capacity(self) -> int: ...
    @property
    def queue_capacity_bytes(self) -> int: ...


def fields(**values: object) -> dict[str, object]:
    """The ``extra`` of a log call: structured fields that become keys of the JSON line."""
    return {"fields": values}


def levels_from_env(
    configured: LogLevel, env: Mapping[str, str]
) -> tuple[LogLevel, dict[str, LogLevel], str | None]:
    """Level, per-target levels and a complaint, by precedence RUST_LOG, CONTINUUM_LOG_LEVEL, file.

    ``RUST_LOG`` takes directives ``target=level,level`` (S2 "Logging": precedence). An empty value
    is unset; one that cannot be read is ignored with the returned complaint.
    """
    directives = env.get("RUST_LOG", "").strip()
    level, complaint = configured, None
    plain = env.get("CONTINUUM_LOG_LEVEL", "").strip().lower()
    if plain:
        try:
            level = LogLevel(plain)
        except ValueError:
            complaint = "CONTINUUM_LOG_LEVEL is not one of trace, debug, info, warn, error: ignored"
    if not directives:
        return level, {}, complaint
    base, targets = level, {}
    try:
        for directive in filter(None, (part.strip() for part in directives.split(","))):
            target, eq, name = directive.rpartition("=")
            if eq:
                targets[target.replace("::", ".")] = LogLevel(name.lower())
            else:
                base = LogLevel(directive.lower())
    except ValueError:
        return level, {}, "RUST_LOG cannot be read (want target=level,level): ignored"
    return base, targets, complaint


class LineFormatter(logging.Formatter):
    """Turns a record into one line (without its line break) in one of the three forms."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """One line; never raises for odd field values, which print as their type's name."""
        values: Mapping[str, object] = getattr(record, "fields", None) or {}
        level = _NAMES.get(record.levelno, "INFO")
        when = datetime.fromtimestamp(record.created, UTC)
        message = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            # The text of a foreign exception may quote a request; its type never does.
            values = {**values, "exception": record.exc_info[0].__name__}
        if self._form is LogFormat.JSON:
            line = {
                "timestamp": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "level": level,
                "target": record.name,
                "fields": {"message": message, **values},
            }
            return orjson.dumps(line, default=_odd_value).decode()
        tail = "".join(f" {key}={_plain(value)}" for key, value in values.items())
        message = message.replace("\n", "\\n")
        if self._form is LogFormat.PRETTY:
            stamp = when.strftime("%Y-%m-%d %H:%M:%S.") + f"{when.microsecond // 1000:03d}"
            return f"{stamp} {level:5} {record.name}: {message}{tail}"
        return f"{level[0]} {message}{tail}"


class LogQueue(logging.Handler):
    """The bounded queue in front of the writer thread. ``stop()`` flushes for up to a second."""

    def __init__(self, settings: LogSettings, stream: BinaryIO) -> None:
        super().__init__()
        self.setFormatter(LineFormatter(settings.format))
        self.dropped = dict.fromkeys(LogDrop, 0)
        self.truncated = 0
        self.writer_failed = False
        self._capacity = settings.queue_capacity
        self._capacity_bytes = settings.queue_capacity_bytes
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._stopping = False
        self._undo: Callable[[], None] | None = None
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Format and enqueue; never waits for the output."""
        line = self._bounded(self.format(record).encode("utf-8", "replace")) + b"\n"
        with self._wake:
            if self.writer_failed:
                self.dropped[LogDrop.WRITE_ERROR] += 1
            elif len(self._lines) >= self._capacity:
                self.dropped[LogDrop.QUEUE_FULL] += 1
            elif self._bytes + len(line) > self._capacity_bytes:
                self.dropped[LogDrop.QUEUE_BYTES] += 1
            else:
                self._lines.append(line)
                self._bytes += len(line)
                self._wake.notify()

    def stop(self) -> None:
        """Write what is queued, within one second, end the thread, and give the loggers back."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(FLUSH_SECONDS)
        if self._undo is not None:
            self._undo()
            self._undo = None

    def register_metrics(self, metrics: Metrics) -> None:
        """Declare the loss metrics of decisions G7."""
        metrics.counter_fn(
            "process_log_records_dropped_total",
            "Log records that were lost, by reason.",
            ["reason"],
            lambda: [((reason.value,), count) for reason, count in self.dropped.items()],
        )
        metrics.counter_fn(
            "process_log_truncated_total",
            "Log records cut at 64 KiB.",
            [],
            lambda: [((), self.truncated)],
        )
        metrics.gauge_fn(
            "process_log_writer_failed",
            "1 after a write failed: the process logs nothing any more.",
            [],
            lambda: [((), float(self.writer_failed))],
        )

    def _bounded(self, line: bytes) -> bytes:
        if len(line) <= MAX_RECORD_BYTES:
            return line
        self.truncated += 1
        cut = line[: MAX_RECORD_BYTES - len(TRUNCATED)].decode("utf-8", "ignore")
        return (cut + TRUNCATED).encode()

    def _write(self) -> None:
        while True:
            with self._wake:
                while not self._lines and not self._stopping:
                    self._wake.wait()
                if not self._lines:
                    return
                batch = b"".join(self._lines)
                count = len(self._lines)
                self._lines.clear()
                self._bytes = 0
            try:
                self._stream.write(batch)
                self._stream.flush()
            except (OSError, ValueError):
                with self._wake:
                    self.writer_failed = True
                    self.dropped[LogDrop.WRITE_ERROR] += count
                return


def setup_logging(settings: LogSettings, stream: BinaryIO | None = None) -> LogQueue:
    """Route all loggers of the process into one queue; returns it so that the caller stops it.

    ``stream`` is a binary file, standard output by default. Called once by each daemon's main.
    """
    logging.addLevelName(TRACE, "TRACE")
    queue = LogQueue(settings, stream or sys.stdout.buffer)
    root = logging.getLogger()
    before, level_before, raising = list(root.handlers), root.level, logging.raiseExceptions

    def undo() -> None:
        root.handlers[:] = before
        root.setLevel(level_before)
        logging.raiseExceptions = raising

    queue._undo = undo
    root.handlers[:] = [queue]
    root.setLevel(LEVEL_NUMBERS[settings.level])
    for target, level in settings.targets.items():
        logging.getLogger(target).setLevel(LEVEL_NUMBERS[level])
    logging.raiseExceptions = False
    return queue


def start_logging(section: LogSection, env: Mapping[str, str]) -> LogQueue:
    """Begin logging as a configuration and the environment say; the caller stops the queue.

    A variable that cannot be read is complained about in the log itself.
    """
    level, targets, complaint = levels_from_env(section.level, env)
    queue = setup_logging(
        LogSettings(
            level=level,
            format=section.format,
            queue_capacity=section.queue_capacity,
            queue_capacity_bytes=section.queue_capacity_bytes,
            targets=targets,
        )
    )
    if complaint is not None:
        log.warning(complaint)
    return queue


def wait_until_written(queue: LogQueue, seconds: float) -> bool:
    """Wait until everything queued so far has been taken by the writer (for tests and shutdown)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with queue._wake:
            if not queue._lines:
                return True
        time.sleep(0.005)
    return False


def _odd_value(value: object) -> str:
    return f"<{type(value).__name__}>"


def _plain(value: object) -> str:
    text = str(value).replace("\n", "\\n")
    return f'"{text}"' if " " in text else text
