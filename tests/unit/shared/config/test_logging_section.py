import pytest

from continuum_shared.config.logging_section import (
    LogFormat,
    LoggingConfig,
    LogLevel,
    effective_level,
)

RUST = "RUST_LOG is ignored: it names no log level; known: trace, debug, info, warn, error"
OWN = (
    "CONTINUUM_LOG_LEVEL is ignored: it names no log level; known: trace, debug, info, warn, error"
)


@pytest.mark.parametrize(
    ("env", "level", "note"),
    [
        ({}, "warn", None),
        ({"CONTINUUM_LOG_LEVEL": "debug"}, "debug", None),
        ({"CONTINUUM_LOG_LEVEL": " DEBUG "}, "debug", None),
        ({"CONTINUUM_LOG_LEVEL": ""}, "warn", None),
        ({"RUST_LOG": "error", "CONTINUUM_LOG_LEVEL": "debug"}, "error", None),
        ({"RUST_LOG": "", "CONTINUUM_LOG_LEVEL": "debug"}, "debug", None),
        ({"RUST_LOG": "continuum_router::proxy=debug,info"}, "info", None),
        ({"RUST_LOG": "continuum_router=debug"}, "warn", None),
        ({"RUST_LOG": "warning"}, "warn", None),
        ({"RUST_LOG": "canary"}, "warn", RUST),
        ({"CONTINUUM_LOG_LEVEL": "canary"}, "warn", OWN),
        ({"RUST_LOG": "canary", "CONTINUUM_LOG_LEVEL": "trace"}, "trace", RUST),
    ],
)
def test_which_level_wins(env, level, note):
    assert effective_level(LogLevel.WARN, env) == (LogLevel(level), note)


def test_defaults():
    config = LoggingConfig()
    assert (config.level, config.format) == (LogLevel.INFO, LogFormat.JSON)
    assert (config.queue_capacity, config.queue_capacity_bytes) == (8192, 16777216)
