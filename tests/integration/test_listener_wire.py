"""Recorded frames of real engines through a real ZMQ socket into a whole listener.

What a subscriber then holds must equal, after every recorded request, what tracker and attributor
give without any socket in between (``test_wire_attribution`` holds that path against an oracle),
and every request with a system text must have been announced under the router's key of it.
"""

import asyncio
import base64
import json
import random
from itertools import groupby

import aiohttp
import pytest

from continuum_kv_listener.attribution import Attributor
from continuum_kv_listener.attribution_types import AttributionMode
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.decode import decode_batch
from continuum_kv_listener.engine_client import EngineClient, EngineEndpoints
from continuum_kv_listener.engine_events import DropReason
from continuum_kv_listener.teacher import Teacher
from continuum_shared.prefix_key import (
    KeyTag,
    PrefixKey,
    anthropic_key_text,
    chat_key_text,
    derive,
    responses_key_text,
)
from support.kv_publisher import KvPublisher, free_port
from support.listener_rig import metric, running_listener, source_row, subscribed, until
from support.tiny_engine import TinyEngine, read_lines, serving

READERS = {
    "/v1/chat/completions": chat_key_text,
    "/v1/responses": responses_key_text,
    "/v1/messages": anthropic_key_text,
}
RECORDINGS = {
    "0.32.0 events": (["vllm-0.32.0/events"], 3),
    "0.32.0 evict, then dup": (["vllm-0.32.0/evict", "vllm-0.32.0/dup"], 0),
    "0.32.0 adapters, empty topic": (["vllm-0.32.0/lora_bytes_hashes"], 1),
    "0.23.0 events, array form": (["vllm-0.23.0/events"], 5),
}
PLAIN = {
    "vllm-0.16.0/events": "vllm",
    "sglang-0.5.23/page16": "sglang",
    "sglang-0.5.23/page1": "sglang",
    "sglang-0.5.23/dynamo16": "sglang",
    "sglang-0.5.16/page16": "sglang",
}


def messages(names: list[str]) -> list[tuple[str, list[bytes]]]:
    """(label, frames) of every published message."""
    out = []
    for name in names:
        for line in read_lines(f"{name}.jsonl"):
            if "frames" in line and "dir" not in line:
                frames = [base64.b64decode(f) for f in line["frames"]]  # type: ignore[attr-defined]
                out.append((str(line.get("label")), frames))
    return out


def system_keys(names: list[str]) -> set[PrefixKey]:
    """Router keys of the recorded requests that have a system text and no salt of their own."""
    keys = set()
    for name in names:
        for line in read_lines(f"{name}_http.jsonl"):
            request = json.loads(json.dumps(line["request"]))
            body, reader = request.get("body"), READERS.get(request["path"])
            if reader is None or not isinstance(body, dict) or "cache_salt" in body:
                continue
            text = reader(body)
            if text is not None and text.tag is KeyTag.SYSTEM and line.get("status") != 400:
                keys.add(derive(body["model"], text, 1024))
    return keys


class Direct:
    """The same path without sockets."""

    def __init__(self, judge: Attributor) -> None:
        self.judge = judge
        self.tracker = ChainTracker()
        self.now = 0.0

    async def feed(self, payloads: list[bytes]) -> dict[bytes, tuple[int, str]]:
        self.now += 10
        for payload in payloads:
            for event in decode_batch(payload, "vllm").events:
                self.tracker.apply(event, self.now)
        while questions := self.tracker.questions(4, self.now):
            for question in questions:
                verdict = await self.judge.judge(question, self.now)
                self.tracker.answer(question.node, verdict, self.now)
        self.tracker.drain(self.now)
        return {
            key: (tokens, "warm" if warm else "hot")
            for key, tokens, warm in self.tracker.snapshot()
        }


@pytest.mark.parametrize("recording", RECORDINGS)
async def test_a_recording_through_the_whole_listener(recording):
    names, salted = RECORDINGS[recording]
    engine = TinyEngine()
    port = free_port()
    async with serving(engine) as url, aiohttp.ClientSession() as session:
        endpoints = EngineEndpoints(detokenize=f"{url}/detokenize", tokenize=f"{url}/tokenize")
        client, rng = EngineClient(session, endpoints, model="tiny-chat"), random.Random(1)
        teacher = Teacher([(AttributionMode.PROBE, client)], rng=rng)
        judge = Attributor(client, teacher, models=("tiny-chat",), rng=rng)
        await judge.calibrate(0.0)
        direct = Direct(judge)
        source = {
            "backend_name": "vllm-1",
            "zmq_endpoint": f"tcp://127.0.0.1:{port}",
            "zmq_mode": "bind",
            "engine_url": url,
            "model": "tiny-chat",
        }
        async with (
            running_listener([source]) as base,
            subscribed(base, "vllm-1") as sub,
        ):
            publisher = KvPublisher(connect_to=f"tcp://127.0.0.1:{port}", replay=False)
            try:
                await in_touch(base, publisher)
                seen: set[bytes] = set()
                for label, group in groupby(messages(names), key=lambda item: item[0]):
                    batch = [frames for _, frames in group]
                    for frames in batch:
                        publisher.send_frames(frames)
                    expected = await direct.feed([frames[2] for frames in batch])
                    try:
                        await until(lambda want=expected: sub.index() == want)
                    except AssertionError:
                        assert sub.index() == expected, label
                    seen |= expected.keys()
                assert system_keys(names) <= seen
                row = await source_row(base, "vllm-1")
                assert (row["gaps"], row["restarts"]) == (0, 0)
                for reason in DropReason:
                    line = f'continuum_listener_dropped_total{{reason="{reason}",source="vllm-1"}}'
                    want = salted if reason is DropReason.FOREIGN_SALT else 0
                    assert await metric(base, line) == want, reason
            finally:
                publisher.close()


@pytest.mark.parametrize("name", PLAIN)
async def test_recordings_without_text_decode_and_chain(name):
    engine = TinyEngine(dialect="sglang" if PLAIN[name] == "sglang" else "vllm")
    publisher = KvPublisher(replay=False)
    try:
        async with serving(engine) as url:
            source = {
                "backend_name": "vllm-1",
                "engine": PLAIN[name],
                "zmq_endpoint": publisher.endpoint,
                "engine_url": url,
                "model": "tiny-chat",
            }
            async with running_listener([source]) as base:
                await in_touch(base, publisher)
                sent = messages([name])
                for _, frames in sent:
                    publisher.send_frames(frames)
                last = int.from_bytes(sent[-1][1][1], "big")
                await until_row(base, last)
                for reason in DropReason:
                    if reason is not DropReason.FOREIGN_SALT:
                        line = (
                            f'continuum_listener_dropped_total{{reason="{reason}",source="vllm-1"}}'
                        )
                        assert await metric(base, line) == 0, reason
                line = 'continuum_listener_events_total{source="vllm-1",type="stored"}'
                assert await metric(base, line) > 0
    finally:
        publisher.close()


async def in_touch(base: str, publisher: KvPublisher) -> None:
    """Wait until the template is learnt and the publisher knows of the subscription."""
    async with asyncio.timeout(10):
        while True:
            row = await source_row(base, "vllm-1")
            if row["connected"] and row["calibrated"]:
                break
            await asyncio.sleep(0.02)
    # The subscription travels behind the handshake; a publisher drops what comes before it.
    await asyncio.sleep(0.2)


async def until_row(base: str, last_seq: int) -> None:
    """Wait until the source has read this message."""
    async with asyncio.timeout(5):
        while (await source_row(base, "vllm-1"))["last_seq"] != last_seq:
            await asyncio.sleep(0.01)
