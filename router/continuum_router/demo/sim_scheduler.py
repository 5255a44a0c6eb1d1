"""The simulated engine's time: one queue of prompts, then decoding of all answers side by side.

Prompts are computed one after another in order of arrival, `prefill_seconds_per_token` for each
token that the cache did not have. Running answers then get a token every `decode_seconds` each,
whatever their number: engines batch decoding nearly for free. A prompt waits at the head of the
queue while the cache has no room for it or `max_running` sequences run.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from continuum_router.demo.block_cache import BlockCache, CacheEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTiming:
    """Speed of the simulated engine. Times are seconds."""

    prefill_seconds_per_token: float = 0.0
    decode_seconds: float = 0.0
    max_running: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDone:
    """The prompt is computed; `cached_tokens` of it were in the cache."""

    cached_tokens: int


class SimScheduler:
    """Runs sequences on one block cache and publishes what that does to it."""

    def __init__(
        self,
        cache: BlockCache,
        timing: SimTiming,
        publish: Callable[[Sequence[CacheEvent]], None],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._timing = timing
        self._publish = publish
        self._clock = clock
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        self.running = 0
        self.waiting = 0
        self.queried_tokens = 0
        self.cached_tokens = 0

    async def run(
        self, prompt: Sequence[int], answer: Sequence[int], salt: str | None
    ) -> AsyncGenerator[PromptDone | int, None]:
        """Yield `PromptDone`, then each token of the answer when its time has come.

        The caller has checked that prompt and answer fit into the cache at all, and closes the
        generator (`contextlib.aclosing`): that is what gives the blocks back. The last token of
        an answer is never fed back into the model, so it takes no room in the cache.
        """
        kept = len(answer) - 1
        self.waiting += 1
        waits = True
        sequence = None
        try:
            async with self._turn:
                while self._full(prompt, kept, salt):
                    self._room.clear()
                    await self._room.wait()
                sequence = self._cache.begin(prompt, kept, salt)
                self.waiting, self.running, waits = self.waiting - 1, self.running + 1, False
                self._publish(self._cache.take_events())
                self.queried_tokens += len(prompt)
                self.cached_tokens += sequence.cached_tokens
                fresh = len(prompt) - sequence.cached_tokens
                await asyncio.sleep(fresh * self._timing.prefill_seconds_per_token)
                self._cache.commit(sequence)
                self._publish(self._cache.take_events())
            yield PromptDone(cached_tokens=sequence.cached_tokens)
            due = self._clock()
            for index, token in enumerate(answer):
                due += self._timing.decode_seconds
                await asyncio.sleep(max(0.0, due - self._clock()))
                if index < kept:
                    self._cache.append(sequence, token)
                    self._publish(self._cache.take_events())
                yield token
        finally:
            self.waiting -= waits
            if sequence is not None:
                self.running -= 1
                self._cache.end(sequence)
                self._room.set()

    def _full(self, prompt: Sequence[int], answer_tokens: int, salt: str | None) -> bool:
        if self.running >= self._timing.max_running:
            return True
        return not self._cache.can_begin(prompt, answer_tokens, salt)
