"""Any interleaving of sequences: the block cache agrees with a naive one, and its events suffice.

The naive model keeps each physical block as (whole token prefix, salt) with the time at which it
became free; it knows no hashes, no queues and no promises.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from continuum_router.demo.block_cache import (
    BlockCache,
    BlockRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
    RunningSequence,
)

SIZE = 2
BLOCKS = 9
Content = tuple[tuple[int, ...], str | None]


class Naive:
    """Physical blocks in a list; everything is found by looking through all of it."""

    def __init__(self) -> None:
        self.content: list[Content | None] = [None] * BLOCKS
        self.users = [0] * BLOCKS
        self.freed_at = list(range(BLOCKS))
        self.time = BLOCKS

    def hits(self, prompt: tuple[int, ...], salt: str | None) -> list[int]:
        found = []
        for end in range(SIZE, len(prompt), SIZE):
            copies = [b for b, c in enumerate(self.content) if c == (prompt[:end], salt)]
            if not copies:
                break
            found.append(min(copies))
        return found

    def take(self) -> tuple[int, Content | None]:
        free = [b for b in range(BLOCKS) if not self.users[b]]
        block = min(free, key=lambda b: self.freed_at[b])
        gone, self.content[block] = self.content[block], None
        self.users[block] = 1
        return block, gone

    def free(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.freed_at[block] = self.time
                self.time += 1


class BlockCacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(BLOCKS, SIZE)
        self.naive = Naive()
        self.running: list[tuple[RunningSequence, list[int], list[int], int]] = []
        self.told: Counter[bytes] = Counter()
        self.parent: dict[bytes, tuple[bytes | None, tuple[int, ...]]] = {}
        self.clears_due = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple),
        answer=st.integers(0, 5),
        salt=st.sampled_from([None, None, "a"]),
    )
    def begin(self, prompt: tuple[int, ...], answer: int, salt: str | None) -> None:
        if not self.cache.can_begin(prompt, answer, salt):
            return
        hits = self.naive.hits(prompt, salt)
        sequence = self.cache.begin(prompt, answer, salt)
        assert sequence.cached_tokens == len(hits) * SIZE
        # Which of several copies is shared is the cache's own choice: follow it.
        chosen = sequence.blocks[: len(hits)]
        wanted = [self.naive.content[b] for b in hits]
        assert [self.naive.content[b] for b in chosen] == wanted
        for block in chosen:
            self.naive.users[block] += 1
        gone = self._take(sequence.blocks[len(hits) :])
        self._hear(removed=gone)
        tokens = list(prompt)
        self.running.append((sequence, list(sequence.blocks), tokens, len(hits)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence, blocks, tokens, _ = data.draw(st.sampled_from(self.running))
        self.cache.commit(sequence)
        self._fill(sequence, blocks, tokens)
        self._hear()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        sequence, blocks, tokens, _ = data.draw(st.sampled_from(self.running))
        if len(tokens) == sequence.capacity_blocks * SIZE:
            return
        needs_block = len(tokens) == len(blocks) * SIZE
        self.cache.append(sequence, token)
        gone = []
        if needs_block:
            gone = self._take(sequence.blocks[-1:])
            blocks.append(sequence.blocks[-1])
        tokens.append(token)
        self._fill(sequence, blocks, tokens)
        self._hear(removed=gone)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.running))
        self.running.remove(entry)
        self.cache.end(entry[0])
        self.naive.free(entry[1])
        self._hear()

    @rule()
    def reset(self) -> None:
        done = self.cache.reset()
        assert done is not any(self.naive.users)
        if done:
            self.naive.content = [None] * BLOCKS
            self.told.clear()
            self.clears_due += 1
        assert self.cache.take_events() == []

    @invariant()
    def the_events_and_the_naive_model_give_the_resident_chains(self) -> None:
        resident = {content for content in self.naive.content if content is not None}
        copies = Counter(content for content in self.naive.content if content is not None)
        assert sorted(self.told.values()) == sorted(copies.values())
        assert self.cache.resident_copies == sum(copies.values())
        longest = {
            (prefix, salt)
            for prefix, salt in resident
            if not any(
                other != prefix and other[: len(prefix)] == prefix and salt == its
                for other, its in resident
            )
        }
        assert {(c.tokens, c.salt) for c in self.cache.resident_chains()} == longest
        assert self.cache.in_use == sum(users > 0 for users in self.naive.users)

    def _take(self, expected: list[int]) -> list[Content]:
        gone = []
        for wanted in expected:
            block, content = self.naive.take()
            assert block == wanted
            if content is not None:
                gone.append(content)
        return gone

    def _fill(self, sequence: RunningSequence, blocks: list[int], tokens: list[int]) -> None:
        for index in range(len(tokens) // SIZE):
            prefix = tuple(tokens[: (index + 1) * SIZE])
            self.naive.content[blocks[index]] = (prefix, sequence.salt)

    def _hear(self, removed: list[Content] | None = None) -> None:
        """Follow the events as a listener would: counts per hash, chains by parent."""
        events = self.cache.take_events()
        lost: list[tuple[int, ...]] = []
        for event in events:
            self._follow(event, lost)
        assert lost == [prefix for prefix, _ in removed or []]

    def _follow(self, event: CacheEvent, lost: list[tuple[int, ...]]) -> None:
        match event:
            case CacheCleared():
                assert self.clears_due > 0
                self.clears_due -= 1
            case BlockRemoved():
                assert self.told[event.hash] > 0
                self.told[event.hash] -= 1
                self.told += Counter()
                lost.append(self._path(event.hash))
            case BlocksStored():
                assert not self.clears_due
                parent = event.parent
                assert parent is None or self.told[parent] > 0
                for index, one in enumerate(event.hashes):
                    part = event.tokens[index * SIZE : (index + 1) * SIZE]
                    self.parent[one] = (parent, part)
                    self.told[one] += 1
                    parent = one

    def _path(self, hash_: bytes | None) -> tuple[int, ...]:
        if hash_ is None:
            return ()
        parent, part = self.parent[hash_]
        return (*self._path(parent), *part)


BlockCacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestBlockCache = BlockCacheMachine.TestCase
