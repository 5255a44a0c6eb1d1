from continuum_shared.config.logging_section import LoggingConfig
from continuum_shared.logs import LogFormat, LogLevel


def test_defaults():
    config = LoggingConfig()
    assert (config.level, config.format) == (LogLevel.INFO, LogFormat.JSON)
    assert (config.queue_capacity, config.queue_capacity_bytes) == (8192, 16777216)
