"""Microseconds a stored block costs the listener: decode, track, ask, tell (design/chains.md).

    python tests/bench/bench_chain.py [--requests N] [--block-size N] [--capacity N]

Simulates one full engine that serves conversations below a few system prompts: a prompt
event with several blocks, one event for each block that fills while decoding, removals tail first
when room is needed. Payloads are encoded beforehand, so that only the listener is timed; questions
are answered by a dictionary. Prints one line a part and the total; the target is 5 us a block.
"""

import argparse
import gc
import random
import time
from array import array
from collections import OrderedDict

import msgpack

from continuum_kv_listener.attribution_types import Completion, PathVerdict, Question
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.chain_stats import ChainLimits
from continuum_kv_listener.decode import decode_batch
from continuum_shared.prefix_key import PrefixKey

KEYED_TOKENS = 300


class Engine:
    """Enough of an engine to make its event stream: LRU blocks, tail first, map-encoded."""

    def __init__(self, block_size: int, capacity: int) -> None:
        self._capacity = capacity
        self._size = block_size
        self._resident: OrderedDict[int, int] = OrderedDict()
        self.payloads: list[bytes] = []
        self.stored = 0
        self.removed = 0
        self._ts = 0.0

    def serve(self, tokens: list[int], hashes: list[int], answer: int) -> None:
        """One request: what is resident is reused, the rest stored; the last blocks one by one."""
        start = 0
        while start < len(hashes) and hashes[start] in self._resident:
            self._resident.move_to_end(hashes[start])
            start += 1
        prompt_end = max(start, len(hashes) - answer)
        if prompt_end > start:
            self._store(tokens, hashes, start, prompt_end)
        for index in range(prompt_end, len(hashes)):
            self._store(tokens, hashes, index, index + 1)
        for each in reversed(hashes):  # freed tail first, so the tail is the first to be evicted
            self._resident.move_to_end(each)

    def _store(self, tokens: list[int], hashes: list[int], start: int, end: int) -> None:
        events: list[dict[str, object]] = []
        for each in hashes[start:end]:
            if len(self._resident) >= self._capacity:
                gone, _ = self._resident.popitem(last=False)
                self.removed += 1
                events.append(
                    {
                        "type": "BlockRemoved",
                        "block_hashes": [gone],
                        "medium": "GPU",
                        "group_idx": 0,
                    }
                )
            self._resident[each] = 1
        size = self._size
        events.append(
            {
                "type": "BlockStored",
                "block_hashes": hashes[start:end],
                "parent_block_hash": hashes[start - 1] if start else None,
                "token_ids": tokens[start * size : end * size],
                "block_size": size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None] * (end - start),
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        )
        self.stored += end - start
        self._ts += 0.01
        self.payloads.append(msgpack.packb([self._ts, events, 0]))


def workload(requests: int, block_size: int, capacity: int, seed: int) -> Engine:
    """Conversations of growing length below 20 system prompts of 300 tokens."""
    rng = random.Random(seed)
    engine = Engine(block_size, capacity)
    systems = [[rng.randrange(32_000) for _ in range(KEYED_TOKENS)] for _ in range(20)]
    talks: list[list[int]] = []
    for _ in range(requests):
        if len(talks) < 40 or rng.random() < 0.2:
            talks.append(list(rng.choice(systems)))
            talks = talks[-60:]
        talk = rng.choice(talks)
        answer = rng.randrange(2, 12)
        talk.extend(rng.randrange(32_000) for _ in range(rng.randrange(50, 400)))
        talk.extend(rng.randrange(32_000) for _ in range(answer * block_size))
        blocks = len(talk) // block_size
        hashes = []
        parent = 0
        for index in range(blocks):
            content = tuple(talk[index * block_size : (index + 1) * block_size])
            parent = hash((parent, content)) & (2**64 - 1)
            hashes.append(parent)
        engine.serve(talk, hashes, answer)
        if len(talk) > 6_000:
            talks.remove(talk)
    return engine


def verdict(question: Question) -> PathVerdict:
    """The key is the text's first 300 tokens."""
    if len(question.tokens) < KEYED_TOKENS:
        return PathVerdict(done=False)
    head = array("I", question.tokens[:KEYED_TOKENS])
    index = next(i for i, end in enumerate(question.block_ends) if end >= KEYED_TOKENS)
    key = PrefixKey(hash(head.tobytes()).to_bytes(32, "big", signed=True))
    return PathVerdict(completions=(Completion(block_index=index, keys=(key,)),), done=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=2_000, help="blocks; many = no removals")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    engine = workload(options.requests, options.block_size, options.capacity, options.seed)
    gc.collect()
    gc.freeze()  # as the daemon does: what the bench made is not the collector's business
    spent, asked, records, known = run_timed(engine)
    total = run_whole(engine)
    per_block = 1e6 / engine.stored
    print(
        f"{engine.stored} blocks stored and {engine.removed} removed in "
        f"{len(engine.payloads)} messages, {asked} questions, {records} records, {known} known"
    )
    for part, seconds in spent.items():
        print(f"  {part:<22}{seconds * per_block:6.2f} us a stored block")
    print(f"  {'total (CPU)':<22}{total * per_block:6.2f} us a stored block (target 5)")


def run_timed(engine: Engine) -> tuple[dict[str, float], int, int, int]:
    """One pass with a clock between the parts."""
    tracker = ChainTracker(ChainLimits())
    spent = dict.fromkeys(("msgpack alone", "decode with msgpack", "track", "ask", "tell"), 0.0)
    records = asked = 0
    clock = time.perf_counter
    for number, payload in enumerate(engine.payloads):
        now = number * 0.01
        times = [clock()]
        msgpack.unpackb(payload, raw=False, strict_map_key=False)
        times.append(clock())
        batch = decode_batch(payload, "vllm")
        times.append(clock())
        for event in batch.events:
            tracker.apply(event, now)
        times.append(clock())
        questions = tracker.questions(4, now)
        for question in questions:
            tracker.answer(question.node, verdict(question), now)
        times.append(clock())
        records += len(tracker.drain(now))
        times.append(clock())
        asked += len(questions)
        for part, begun, ended in zip(spent, times, times[1:], strict=False):
            spent[part] += ended - begun
    return spent, asked, records, tracker.stats.blocks


def run_whole(engine: Engine) -> float:
    """The least CPU time of three passes without clocks inside."""
    least = float("inf")
    for _ in range(3):
        tracker = ChainTracker(ChainLimits())
        begun = time.process_time()
        for number, payload in enumerate(engine.payloads):
            now = number * 0.01
            for event in decode_batch(payload, "vllm").events:
                tracker.apply(event, now)
            for question in tracker.questions(4, now):
                tracker.answer(question.node, verdict(question), now)
            tracker.drain(now)
        least = min(least, time.process_time() - begun)
    return least


if __name__ == "__main__":
    main()
