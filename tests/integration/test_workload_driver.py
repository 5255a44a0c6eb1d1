"""The driver against a real simulated engine: turns build on each other, failures are told."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from continuum_router.demo.engine_sim import SimConfig, SimEngine
from continuum_router.demo.sim_scheduler import SimTiming
from continuum_router.demo.workload import WorkloadShape, conversations
from continuum_router.demo.workload_driver import Client, TurnFailed, TurnResult, play

SHAPE = WorkloadShape(
    tenants=2, conversations=2, turns=3, system_words=40, think_seconds=(0.0, 0.001)
)
WORKLOAD = conversations(1, SHAPE)


def client(url: str, *, users: int, model: str = "demo") -> Client:
    clock: Callable[[], float] = asyncio.get_running_loop().time
    return Client(url=url, model=model, users=users, answer_tokens=20, clock=clock)


async def test_every_turn_is_measured() -> None:
    engine = SimEngine(SimConfig(timing=SimTiming(prefill_seconds_per_token=0.0001)))
    await engine.start()
    results: list[TurnResult] = []
    await play(client(engine.url, users=1), WORKLOAD, results.append)
    assert len(results) == 12
    assert results[0].cached_tokens == 0
    # Tenant and conversation repeat, so each later turn finds all whole blocks of the one before.
    assert all(r.cached_tokens > 0.6 * r.prompt_tokens for r in results[1:3])
    assert all(r.ttft >= (r.prompt_tokens - r.cached_tokens) * 0.0001 for r in results)
    assert {(r.backend, r.route) for r in results} == {("", "")}
    await engine.stop()


async def test_users_play_side_by_side() -> None:
    engine = SimEngine(SimConfig())
    await engine.start()
    results: list[TurnResult] = []
    await play(client(engine.url, users=3), WORKLOAD, results.append)
    assert len(results) == 12
    assert engine.record.finished == 12
    await engine.stop()


async def test_a_refusal_is_told() -> None:
    engine = SimEngine(SimConfig())
    await engine.start()
    with pytest.raises(TurnFailed, match="status 404"):
        await play(client(engine.url, users=2, model="nope"), WORKLOAD, lambda _: None)
    await engine.stop()


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            [b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'],
            "the stream ended without text, usage or its end marker",
        ),
        (
            [
                b'data: {"choices": [{"delta": {"content": "x"}}], "usage": {"a": 1}}\n\n',
                b"data: [DONE]\n\n",
            ],
            "usage has no prompt_tokens",
        ),
    ],
)
async def test_a_stream_that_is_not_whole_is_told(events: list[bytes], message: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(event)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    with pytest.raises(TurnFailed, match=message):
        await play(client(url, users=1), WORKLOAD, lambda _: None)
    await runner.cleanup()


async def test_nobody_there_is_told() -> None:
    engine = SimEngine(SimConfig())
    await engine.start()
    url = engine.url
    await engine.stop()
    with pytest.raises(TurnFailed, match="ClientConnectorError"):
        await play(client(url, users=2), WORKLOAD, lambda _: None)
