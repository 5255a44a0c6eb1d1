"""Every vLLM recording, attributed as ``wire/README.md`` says, through real HTTP calls.

The oracle knows only the recorded *requests* and the model's tokenizer: after each message it
works out, from plain copies of the resident chains, which router keys the engine holds and how
many tokens of each. The listener's snapshot must equal it exactly.
"""

import base64
import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgpack
import pytest

from continuum_kv_listener.attribution import Attributor
from continuum_kv_listener.attribution_types import AttributionMode
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.decode import decode_batch
from continuum_kv_listener.engine_client import EngineClient, EngineEndpoints
from continuum_kv_listener.engine_events import DropReason, Removed
from continuum_kv_listener.teacher import Teacher
from continuum_shared.prefix_key import (
    KeyText,
    PrefixKey,
    anthropic_key_text,
    chat_key_text,
    completions_key_text,
    cut_utf8,
    derive,
    responses_key_text,
)
from support.tiny_engine import TinyEngine, read_lines, serving

LIMIT = 1024
READERS = {
    "/v1/chat/completions": chat_key_text,
    "/v1/completions": completions_key_text,
    "/v1/responses": responses_key_text,
    "/v1/messages": anthropic_key_text,
}
NO_EVENT = "14_short_no_full_block"
"""A prompt below one block: the engine stores nothing for it, so no key can be learnt."""
RECORDINGS = {
    "0.32.0 events": (["vllm-0.32.0/events"], {"tiny-chat"}, 3),
    "0.32.0 evict": (["vllm-0.32.0/evict"], {"tiny-chat"}, 0),
    "0.32.0 evict, then dup": (["vllm-0.32.0/evict", "vllm-0.32.0/dup"], {"tiny-chat"}, 0),
    "0.32.0 adapters": (["vllm-0.32.0/lora_bytes_hashes"], {"tiny-chat", "tiny-lora"}, 1),
    "0.23.0 events": (["vllm-0.23.0/events"], {"tiny-chat", "tiny-lora"}, 5),
}


@dataclass(slots=True)
class Wanted:
    """One recorded request: the text that shows it in a chain, and the router's key of it."""

    model: str
    shows: str
    key: PrefixKey


@dataclass(slots=True)
class Chain:
    """A whole chain up to one block, kept in full."""

    tokens: list[int]
    copies: int
    salted: bool
    lora: str | None


@dataclass(slots=True)
class Oracle:
    """The engine's cache as plain copies, read from the raw messages."""

    engine: TinyEngine
    wanted: list[Wanted]
    chains: dict[object, Chain] = field(default_factory=dict)
    salted_roots: int = 0

    def feed(self, payload: bytes) -> None:
        names = {
            "BlockStored": (
                "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
                "medium", "lora_name", "extra_keys",
            ),
            "BlockRemoved": ("block_hashes",),
        }  # fmt: skip
        for raw in msgpack.unpackb(payload, strict_map_key=False)[1]:
            event = raw
            if isinstance(raw, list):
                event = dict(zip(names.get(raw[0], ()), raw[1:], strict=False)) | {"type": raw[0]}
            if event["type"] == "BlockStored":
                self._store(event)
            elif event["type"] == "BlockRemoved":
                for block in event["block_hashes"]:
                    self.chains[block].copies -= 1
            else:
                self.chains.clear()

    def _store(self, event: Mapping[str, object]) -> None:
        hashes, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
        extra, lora = event.get("extra_keys"), event.get("lora_name")
        assert isinstance(hashes, list)
        assert isinstance(tokens, list)
        assert isinstance(size, int)
        assert lora is None or isinstance(lora, str)
        parent = self.chains.get(event.get("parent_block_hash"))
        if parent is None:
            first = extra[0] if isinstance(extra, list) else None
            salted = bool([value for value in first or [] if value != lora])
            self.salted_roots += salted and hashes[0] not in self.chains
            parent = Chain([], 1, salted, lora)
        for number, block in enumerate(hashes):
            piece = tokens[number * size : (number + 1) * size]
            made = Chain(parent.tokens + piece, 0, parent.salted, parent.lora)
            parent = self.chains.setdefault(block, made)
            parent.copies += 1

    def holds(self) -> dict[PrefixKey, int]:
        held: dict[PrefixKey, int] = {}
        for chain in self.chains.values():
            if chain.copies <= 0 or chain.salted:
                continue
            text = self.engine.decode(chain.tokens)
            for wanted in self.wanted:
                if (chain.lora or "tiny-chat") == wanted.model and text.startswith(wanted.shows):
                    held[wanted.key] = max(held.get(wanted.key, 0), len(chain.tokens))
        return held


def requests(names: list[str]) -> list[Wanted]:
    """What each recorded request must look like in a chain, once its key can be told."""
    wanted: dict[PrefixKey, Wanted] = {}
    for name in names:
        for line in read_lines(f"{name}_http.jsonl"):
            if line["name"] == NO_EVENT:
                continue
            request = line["request"]
            assert isinstance(request, dict)
            reader, body = READERS.get(request["path"]), request.get("body")
            key_text = reader(body) if reader and isinstance(body, dict) else None
            if key_text is None:
                continue
            shows = shown(key_text, request["path"])
            if shows is not None:
                key = derive(body["model"], key_text, LIMIT)
                wanted[key] = Wanted(body["model"], shows, key)
    return list(wanted.values())


def shown(key_text: KeyText, path: str) -> str | None:
    if path == "/v1/completions":
        long_enough = len(key_text.text.encode()) >= LIMIT
        return cut_utf8(key_text.text, LIMIT).decode() if long_enough else None
    if key_text.tag.value == "S":
        return f"<|im_start|>system{key_text.text}<|im_end|><|im_start|>u"
    return f"<|im_start|>user{key_text.text}<|im_end|><|im_start|>"


def payloads(names: list[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        for line in read_lines(f"{name}.jsonl"):
            frames = line["frames"]
            assert isinstance(frames, list)
            yield str(line["label"]), base64.b64decode(frames[2])


def attributor(client: EngineClient) -> Attributor:
    rng = random.Random(1)
    teacher = Teacher([(AttributionMode.PROBE, client)], rng=rng)
    return Attributor(client, teacher, models=("tiny-chat",), rng=rng)


async def settle(tracker: ChainTracker, judge: Attributor, now: float) -> None:
    while questions := tracker.questions(4, now):
        for question in questions:
            tracker.answer(question.node, await judge.judge(question, now), now)


@pytest.mark.parametrize("recording", RECORDINGS)
async def test_a_recording_is_attributed_as_its_requests_were(recording: str) -> None:
    names, models, salted = RECORDINGS[recording]
    engine = TinyEngine()
    oracle = Oracle(engine, requests(names))
    tracker = ChainTracker()
    drops: Counter[DropReason] = Counter()
    seen: set[PrefixKey] = set()
    async with serving(engine) as url, aiohttp.ClientSession() as session:
        endpoints = EngineEndpoints(detokenize=f"{url}/detokenize", tokenize=f"{url}/tokenize")
        client = EngineClient(session, endpoints, model="tiny-chat")
        judge = attributor(client)
        state = await judge.calibrate(0.0)
        assert (state.calibrated, state.attribution) == (True, AttributionMode.PROBE)
        assert state.warnings == ()
        for now, (label, payload) in enumerate(payloads(names), start=1):
            oracle.feed(payload)
            batch = decode_batch(payload, "vllm")
            drops.update(batch.drops)
            # Making room for it may remove blocks (0.23.0 ran with few), but it stores none.
            assert label != NO_EVENT or all(isinstance(each, Removed) for each in batch.events)
            for event in batch.events:
                drops.update(tracker.apply(event, float(now)))
            await settle(tracker, judge, float(now))
            tracker.drain(float(now))
            held = {key: tokens for key, tokens, _ in tracker.snapshot()}
            assert held == oracle.holds(), label
            seen |= held.keys()
    assert drops == ({DropReason.FOREIGN_SALT: salted} if salted else {})
    assert oracle.salted_roots == salted
    assert {wanted.key for wanted in oracle.wanted} == seen
    assert {wanted.model for wanted in oracle.wanted} == models


async def test_short_plain_prompts_stay_pending_and_are_never_attributed() -> None:
    """12_completions_prompt has 930 bytes and 13_completions_batch_two two shorter ones (C21)."""
    engine = TinyEngine()
    tracker = ChainTracker()
    async with serving(engine) as url, aiohttp.ClientSession() as session:
        endpoints = EngineEndpoints(detokenize=f"{url}/detokenize", tokenize=f"{url}/tokenize")
        client = EngineClient(session, endpoints, model="tiny-chat")
        judge = attributor(client)
        await judge.calibrate(0.0)
        for label, payload in payloads(["vllm-0.32.0/events"]):
            if label.startswith(("12_", "13_")):
                for event in decode_batch(payload, "vllm").events:
                    tracker.apply(event, 1.0)
                await settle(tracker, judge, 1.0)
    assert tracker.snapshot() == []
    assert tracker.stats.pending == tracker.stats.blocks == 11 + 4


@pytest.mark.parametrize(
    "text", ["def f():\n    return 1\n", "Wie heißt das Häkchen? 你好 🙂", "안녕하세요\n\n여러분"]
)
def test_the_tiny_engine_gives_back_what_it_takes(text: str) -> None:
    engine = TinyEngine()
    assert engine.decode(list(array("I", engine.encode(text)))) == text
