"""An engine that knows the truth: a paged cache on two tiers, its events, and what each prefix has.

It stores, shares, recomputes, copies, evicts, offloads and reloads as engines do (wire/README.md),
and keeps whole chains, so that what a reader should know can be worked out anew at any time. A
prompt is a run of small ints; its keyed text ends at the first ``END``.
"""

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from continuum_kv_listener.attribution_types import (
    Completion,
    PathVerdict,
    Question,
    UnattributedReason,
)
from continuum_kv_listener.engine_events import Medium
from continuum_shared.prefix_key import PrefixKey

END = 99
NOISE = 98
"""A prompt that begins so fits no format."""
MASKED = "(masked)"
"""As a salt: a chain whose events hold more tokens than its blocks, as masked blocks make them."""
BLOCK = 4
MODEL = "m"

Held = dict[PrefixKey, tuple[int, bool]]
"""Tokens, and whether they are on lower tiers only, by prefix."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block by everything that its hash is made of: what comes before it and its own tokens."""

    lora: str | None
    salt: str | None
    tokens: tuple[int, ...]

    @property
    def hash(self) -> bytes:
        return sha256(repr((self.lora, self.salt, self.tokens)).encode()).digest()

    @property
    def parent(self) -> "Block | None":
        above = self.tokens[:-BLOCK]
        return Block(self.lora, self.salt, above) if above else None


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks of one chain, each below the one before it."""

    blocks: tuple[Block, ...]
    medium: Medium = Medium.GPU
    bare: bool = False
    """Named without their text, as lower tiers do."""


@dataclass(frozen=True, slots=True)
class Removed:
    blocks: tuple[Block, ...]
    medium: Medium = Medium.GPU


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


Event = Stored | Removed | Cleared


def key_of(tokens: tuple[int, ...], name: str) -> tuple[int, PrefixKey] | None:
    """Where the keyed text of these tokens ends, and its key; None while it is not whole."""
    if END not in tokens or tokens[0] == NOISE:
        return None
    end = tokens.index(END) + 1
    return end, PrefixKey(sha256(repr((name, tokens[:end])).encode()).digest())


def judge(question: Question) -> PathVerdict:
    """What a perfect attributor answers."""
    tokens = tuple(question.tokens)
    if tokens[0] == NOISE:
        return PathVerdict(done=True, reason=UnattributedReason.NO_MATCH)
    found = key_of(tokens, question.lora_name or MODEL)
    if found is None:
        return PathVerdict(done=False)
    end, key = found
    block = next(i for i, each in enumerate(question.block_ends) if each >= end)
    return PathVerdict(completions=(Completion(block_index=block, keys=(key,)),), done=True)


class OracleEngine:
    """``capacity`` blocks on the GPU, ``lower`` on the CPU (0: no such tier)."""

    def __init__(self, rng: random.Random, capacity: int, lower: int) -> None:
        self.capacity = capacity
        self.pending: list[Event] = []
        self._rng = rng
        self._lower = lower
        self._gpu: OrderedDict[int, Block] = OrderedDict()
        """Physical copies, the one to be given up first in front."""
        self._cpu: OrderedDict[Block, None] = OrderedDict()
        self._copies: Counter[Block] = Counter()
        self._used: set[int] = set()
        self._next = 0

    def serve(self, prompt: list[int], answer: int, lora: str | None, salt: str | None) -> None:
        """One request: whole blocks that are there are used, but for the one that holds the
        prompt's last token; ``answer`` blocks fill one by one."""
        tokens = tuple(prompt) + tuple(1 + n % 3 for n in range(answer * BLOCK))
        whole = len(prompt) // BLOCK
        path = [Block(lora, salt, tokens[: BLOCK * (n + 1)]) for n in range(len(tokens) // BLOCK)][
            : self.capacity
        ]
        hits = 0
        while hits < min(len(path), (len(prompt) - 1) // BLOCK) and self._copies[path[hits]]:
            hits += 1
        taken = [self._touch(block) for block in path[:hits]]
        taken += self._store(path[hits:whole])
        for block in path[max(hits, whole) :]:
            taken += self._store([block])
        for copy in reversed(taken):  # freed tail first
            self._gpu.move_to_end(copy)
        self._used.clear()

    def reset(self) -> None:
        """Forget everything; the event rides in front of the next ones."""
        self._gpu.clear()
        self._cpu.clear()
        self._copies.clear()
        self.pending = [Cleared()]

    def truth(self) -> Held:
        """What a reader should know of this engine."""
        resident = {block for block, count in self._copies.items() if count} | set(self._cpu)
        hot: Held = {}
        warm: Held = {}
        for block in resident:
            if block.salt is not None or not self._whole(block, resident):
                continue
            found = key_of(block.tokens, block.lora or MODEL)
            if found is None:
                continue
            tier = hot if self._copies[block] else warm
            best = tier.get(found[1], (0, False))[0]
            tier[found[1]] = (max(best, len(block.tokens)), not self._copies[block])
        return {**warm, **hot}

    @staticmethod
    def _whole(block: Block, resident: set[Block]) -> bool:
        above = block.parent
        while above is not None:
            if above not in resident:
                return False
            above = above.parent
        return True

    def _touch(self, block: Block) -> int:
        copy = next(n for n in reversed(self._gpu) if self._gpu[n] == block)
        self._used.add(copy)
        return copy

    def _store(self, run: list[Block]) -> list[int]:
        """Compute or load these blocks of one chain into free copies."""
        made = []
        for block in run:
            while len(self._gpu) >= self.capacity:
                self._evict()
            self._gpu[self._next] = block
            self._copies[block] += 1
            self._used.add(self._next)
            made.append(self._next)
            self._next += 1
        if run:
            self.pending.append(Stored(tuple(run)))
        return made

    def _evict(self) -> None:
        copy = next((n for n in self._gpu if n not in self._used), None)
        if copy is None:  # a request of the whole cache's size: its own tail is recomputed
            copy = next(iter(self._gpu))
            self._used.discard(copy)
        block = self._gpu.pop(copy)
        self._copies[block] -= 1
        if self._lower and not self._copies[block] and self._rng.random() < 0.7:
            self._offload(block)
        self.pending.append(Removed((block,)))

    def _offload(self, block: Block) -> None:
        if block in self._cpu:
            self._cpu.move_to_end(block)
            return
        while len(self._cpu) >= self._lower:
            gone, _ = self._cpu.popitem(last=False)
            self.pending.append(Removed((gone,), Medium.CPU))
        self._cpu[block] = None
        self.pending.append(Stored((block,), Medium.CPU, bare=self._rng.random() < 0.5))
