"""The time model: one queue of prompts, room in the cache, what a cancellation leaves behind."""

import asyncio
import contextlib
from collections.abc import Sequence

from continuum_router.demo.block_cache import (
    BlockCache,
    BlockRemoved,
    BlocksStored,
    CacheEvent,
)
from continuum_router.demo.sim_scheduler import PromptDone, SimScheduler, SimTiming
from continuum_shared.tasks import Supervisor


class Engine:
    def __init__(self, blocks: int = 8, **timing: float) -> None:
        self.cache = BlockCache(blocks, 4)
        self.batches: list[list[CacheEvent]] = []
        loop = asyncio.get_running_loop()
        self.scheduler = SimScheduler(
            self.cache,
            SimTiming(**timing),
            self._publish,
            loop.time,  # type: ignore[arg-type]
        )

    def _publish(self, events: Sequence[CacheEvent]) -> None:
        if events:
            self.batches.append(list(events))

    async def run(self, prompt: Sequence[int], answer: Sequence[int]) -> list[PromptDone | int]:
        return [step async for step in self.scheduler.run(prompt, answer, None)]


async def test_the_prompt_comes_first_then_every_token() -> None:
    engine = Engine()
    assert await engine.run((1, 2, 3, 4, 5), (6, 7)) == [PromptDone(cached_tokens=0), 6, 7]
    assert await engine.run((1, 2, 3, 4, 5), (6,)) == [PromptDone(cached_tokens=4), 6]
    assert (engine.scheduler.queried_tokens, engine.scheduler.cached_tokens) == (10, 4)
    assert (engine.scheduler.running, engine.scheduler.waiting, engine.cache.in_use) == (0, 0, 0)


async def test_the_last_token_of_an_answer_is_not_kept() -> None:
    engine = Engine()
    await engine.run((1, 2, 3, 4), (5, 6, 7, 8))
    assert [len(chain.tokens) for chain in engine.cache.resident_chains()] == [4]
    await engine.run((1, 2, 3, 4), (5, 6, 7, 8, 9))
    assert [len(chain.tokens) for chain in engine.cache.resident_chains()] == [8]


async def test_evictions_are_told_at_once_and_stores_when_they_are_computed() -> None:
    engine = Engine(blocks=2)
    await engine.run((1, 2, 3, 4, 5), (6,))
    await engine.run((11, 12, 13, 14, 15), (16,))
    kinds = [[type(event) for event in batch] for batch in engine.batches]
    assert kinds == [[BlocksStored], [BlockRemoved], [BlocksStored]]


async def test_a_prompt_waits_until_the_cache_has_room() -> None:
    engine = Engine(blocks=2)
    supervisor = Supervisor("test")
    first = engine.scheduler.run((1, 2, 3, 4, 5), (6, 7), None)
    assert await anext(first) == PromptDone(cached_tokens=0)
    second = supervisor.spawn("second", engine.run((11, 12, 13, 14, 15), (16,)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (engine.scheduler.running, engine.scheduler.waiting) == (1, 1)
    await first.aclose()
    assert await second == [PromptDone(cached_tokens=0), 16]


async def test_no_more_than_max_running_at_a_time() -> None:
    engine = Engine(max_running=1)
    supervisor = Supervisor("test")
    first = engine.scheduler.run((1, 2), (3, 4), None)
    await anext(first)
    second = supervisor.spawn("second", engine.run((5, 6), (7,)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (engine.scheduler.running, engine.scheduler.waiting) == (1, 1)
    await first.aclose()
    await second


async def test_prompts_are_computed_one_after_another_in_order() -> None:
    engine = Engine(prefill_seconds_per_token=0.001)
    order: list[int] = []

    async def ask(first: int) -> None:
        steps = engine.scheduler.run((first, 2, 3, 4, 5), (6,), None)
        async with contextlib.aclosing(steps):
            await anext(steps)
            order.append(first)

    before = asyncio.get_running_loop().time()
    await asyncio.gather(*(ask(n) for n in (30, 10, 20)))
    assert order == [30, 10, 20]
    assert asyncio.get_running_loop().time() - before >= 0.015


async def test_a_cancelled_prompt_gives_everything_back_and_lets_the_next_one_in() -> None:
    engine = Engine(blocks=2, prefill_seconds_per_token=30.0)
    supervisor = Supervisor("test")
    prefilling = supervisor.spawn("prefilling", engine.run((1, 2, 3, 4, 5), (6,)))
    queued = supervisor.spawn("queued", engine.run((7, 8), (9,)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (engine.scheduler.running, engine.scheduler.waiting) == (1, 1)
    queued.cancel()
    prefilling.cancel()
    await asyncio.gather(queued, prefilling, return_exceptions=True)
    assert (engine.scheduler.running, engine.scheduler.waiting) == (0, 0)
    assert (engine.cache.in_use, engine.cache.resident_copies) == (0, 0)
    assert engine.batches == []
