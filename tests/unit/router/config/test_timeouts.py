from continuum_router.config.timeouts import TimeoutsConfig
from support.config_files import good_router


def test_defaults_in_seconds():
    timeouts = TimeoutsConfig()
    assert timeouts.connection == 10.0
    assert timeouts.request.standard.total == 180.0
    streaming = timeouts.request.streaming
    assert (streaming.first_byte, streaming.chunk_interval, streaming.total) == (120.0, 30.0, 600.0)
    limits = timeouts.limits
    assert (limits.max_standard_timeout, limits.max_streaming_timeout) == (540.0, 1200.0)
    assert (limits.max_first_byte_timeout, limits.max_chunk_interval) == (600.0, 300.0)


def test_the_sample_of_the_source_loads():
    timeouts = good_router(
        """
        timeouts:
          connection: "10s"
          request:
            standard: {total: "15m"}
            streaming: {first_byte: "120s", chunk_interval: 0, total: "600s"}
          limits:
            max_standard_timeout: "900s"
        """
    ).timeouts
    assert timeouts.request.standard.total == 900.0
    assert timeouts.request.streaming.chunk_interval == 0.0
