"""What a page of metrics says of the process and its blocks."""

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from continuum_kv_listener.engine_watch import (
    MAX_PAGE_BYTES,
    EngineVitals,
    MetricsPage,
    Start,
    StartTimes,
    read_page,
)

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"
CONFIG = 'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="%s",x="a\\"b"} 1.0\n'


@pytest.mark.parametrize(
    ("version", "started_at", "blocks"),
    [("vllm-0.23.0", 1.79607875135e9, 40), ("vllm-0.32.0", 1.79607646526e9, 65536)],
)
def test_recorded_pages(version, started_at, blocks):
    vitals = read_page((WIRE / version / "metrics_excerpt.txt").read_bytes())
    assert vitals.started_at == started_at
    assert vitals.gpu_blocks == {0: blocks}


@pytest.mark.parametrize(
    ("page", "started_at", "blocks"),
    [
        (b"", None, {}),
        (b'[{"iterations": 3}]', None, {}),
        (b"process_start_time_seconds NaN\n", None, {}),
        (b"process_start_time_seconds -1\n", None, {}),
        (b"process_start_time_seconds words\n", None, {}),
        (b'process_start_time_seconds{pid="7"} 17.5\n', 17.5, {}),
        (b"x_process_start_time_seconds 17.5\n", None, {}),
        ((CONFIG % (0, "None")).encode(), None, {}),
        ((CONFIG % (0, "0")).encode(), None, {}),
        ((CONFIG % (0, "40") + CONFIG % (1, "50")).encode(), None, {0: 40, 1: 50}),
        (b'vllm:cache_config_info{num_gpu_blocks="7"} 1.0\n', None, {0: 7}),
        (b'vllm:cache_config_info{num_gpu_blocks_override="7"} 1.0\n', None, {}),
        (b"\xff\x00vllm:cache_config_info{" + b"x" * 50_000, None, {}),
    ],
)
def test_other_pages(page, started_at, blocks):
    assert read_page(page) == EngineVitals(started_at=started_at, gpu_blocks=blocks)


def test_blocks_of_a_rank():
    assert EngineVitals(gpu_blocks={3: 40}).blocks_of(0, 1) == 40
    assert EngineVitals(gpu_blocks={0: 40, 1: 50}).blocks_of(1, 2) == 50
    assert EngineVitals(gpu_blocks={0: 40}).blocks_of(1, 2) is None
    assert EngineVitals().blocks_of(0, 1) is None


def test_start_times():
    starts = StartTimes()
    said = [starts.note(value) for value in (None, 10.0, 10.0, None, 10.0, 20.0, 20.0, 30.0)]
    assert said == [
        Start.UNKNOWN,
        Start.FIRST,
        Start.SAME,
        Start.UNKNOWN,
        Start.SAME,
        Start.NEW,
        Start.SAME,
        Start.NEW,
    ]
    assert not starts.unclear


def test_processes_that_answer_in_turn_say_nothing():
    starts = StartTimes()
    assert [starts.note(value) for value in (10.0, 12.0, 10.0, 12.0, 99.0)] == [
        Start.FIRST,
        Start.NEW,
        Start.UNKNOWN,
        Start.UNKNOWN,
        Start.UNKNOWN,
    ]
    assert starts.unclear


@pytest.mark.parametrize(
    ("status", "body", "read"),
    [
        (200, b"process_start_time_seconds 5\n", EngineVitals(started_at=5.0)),
        (404, b"process_start_time_seconds 5\n", None),
        (302, b"", None),
        (200, b"x" * (MAX_PAGE_BYTES + 1), None),
    ],
)
async def test_reading_a_page(status, body, read):
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Location": "/metrics"})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        assert await MetricsPage(session, f"http://127.0.0.1:{port}/metrics").read() == read
    await runner.cleanup()


async def test_nobody_to_read_from():
    async with aiohttp.ClientSession() as session:
        assert await MetricsPage(session, "http://127.0.0.1:9/metrics").read() is None
