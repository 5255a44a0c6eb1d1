"""Reports of other products' users about event streams (K6, K14, K18, O9), and slow subscribers.

Where a row has several sides, this file has the one between listener and router.
"""

import asyncio
import itertools
import json
import logging

import aiohttp
import pytest

from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.serve_sse import ServeTimes
from continuum_kv_listener.stream import MAX_REANNOUNCED, SHARED_BATCHES, EventStream
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from support.edge import Edge, edge_config, running
from support.kv_publisher import Encoding, KvPublisher, free_port, stored
from support.listener_rig import running_listener, subscribed, until
from support.sse_rig import Served, SlowClient, created
from support.tiny_engine import TinyEngine, serving

BLOCK = 16
SYSTEM = (
    "You keep the canary-prompt of a lighthouse. Answer in one short sentence, and name the wind."
)
UNUSED = {
    "backend_name": "b1",
    "zmq_endpoint": "tcp://127.0.0.1:9",
    "engine_url": "http://127.0.0.1:9",
    "model": "m",
}


def config(*sources: str) -> str:
    return (
        "prefix_routing: {enabled: true}\n"
        f"kv_cache_index: {{enabled: true, event_sources: [{', '.join(sources)}]}}"
    )


def losses(edge: Edge, reason: str) -> float:
    return edge.sample("continuum_kv_consumer_losses_total", backend="b1", reason=reason)


@pytest.fixture
async def engine():
    made = TinyEngine()
    async with serving(made):
        yield made


@pytest.fixture
def publisher():
    made = KvPublisher()
    yield made
    made.close()


def chat_event(engine: TinyEngine, hashes: itertools.count) -> tuple[object, list[int]]:
    """An engine's event for the whole blocks of one chat, and the tokens in it."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Any fog?"}]
    tokens = engine.encode_chat(messages)
    blocks = len(tokens) // BLOCK
    made = [next(hashes) for _ in range(blocks)]
    return stored(Encoding.MAP, made, None, tokens[: blocks * BLOCK]), tokens


async def test_k6_a_new_router_knows_what_the_listener_knows_before_any_request(engine, publisher):
    source = {
        "backend_name": "b1",
        "zmq_endpoint": publisher.endpoint,
        "engine_url": engine.url,
        "model": "tiny-chat",
    }
    async with running_listener([source]) as base:
        async with subscribed(base, "b1") as sub:
            event, _ = chat_event(engine, itertools.count(1))

            async def told() -> None:
                while not sub.events:
                    publisher.publish([event])
                    await asyncio.sleep(0.1)

            await asyncio.wait_for(told(), 10)
        entry = f"{{backend_name: b1, endpoint: '{base}/events/b1'}}"
        for _ in range(2):
            async with running(edge_config(["http://127.0.0.1:9"], config(entry))) as edge:
                await until(lambda e=edge: e.sample("continuum_kv_index_entries") == 1)


class Wiring:
    """One way to get an event source wrong: what the listener has, what the router says."""

    def __init__(self, path: str = "/events/b1", keys: str = "", **listener: object) -> None:
        self.path, self.keys, self.listener = path, keys, listener


@pytest.mark.parametrize(
    ("wiring", "reason", "hint"),
    [
        (Wiring("/events/other"), "status 404", "endpoint must be the listener's"),
        (Wiring("/metrics"), "content_type", "something else than the listener"),
        (Wiring(auth_token_env="T"), "unauthorized 401", "auth_token must be one of"),
        (
            Wiring(keys=", auth_token: not-that-one", auth_token_env="T"),
            "unauthorized 401",
            "auth_token must be one of",
        ),
    ],
    ids=["another name", "another path", "no token", "wrong token"],
)
async def test_k14_each_wrong_wiring_is_told_with_a_reason_of_its_own(wiring, reason, hint, caplog):
    env = {"T": "0123456789abcdef0123456789abcdef"}
    async with running_listener([UNUSED], env=env, **wiring.listener) as base:
        entry = f"{{backend_name: b1, endpoint: '{base}{wiring.path}'{wiring.keys}}}"
        async with running(edge_config(["http://127.0.0.1:9"], config(entry))) as edge:
            await until(lambda: losses(edge, reason.split()[0]) >= 1)
    told = [r.fields for r in caplog.records if r.getMessage() == "Event stream lost"]
    assert [line["reason"] for line in told] == [reason]
    assert told[0]["hint"].startswith(hint)


async def test_k14_a_full_listener_and_one_that_is_away(caplog):
    async with running_listener([UNUSED], max_subscribers=1) as base:
        async with subscribed(base, "b1"):
            entry = f"{{backend_name: b1, endpoint: '{base}/events/b1', reconnect_interval_ms: 20}}"
            async with running(edge_config(["http://127.0.0.1:9"], config(entry))) as edge:
                await until(lambda: losses(edge, "refused") >= 1)
    away = f"http://127.0.0.1:{free_port()}/events/b1"
    entry = f"{{backend_name: b1, endpoint: '{away}'}}"
    async with running(edge_config(["http://127.0.0.1:9"], config(entry))) as edge:
        await until(lambda: losses(edge, "connect") >= 1)
    told = [r.fields["reason"] for r in caplog.records if r.getMessage() == "Event stream lost"]
    assert told == ["refused 503", "connect"]


def test_k18_what_a_stream_keeps_does_not_grow():
    stream = EventStream(
        epoch="e",
        max_prefix_length=1,
        snapshot=lambda: [],
        metrics=ListenerMetrics(Metrics()).stream("s"),
        history=1000,
    )
    reader = stream.subscribe("e-0")

    def kept() -> int:
        full = sum(len(batch.data) for batch in stream._full.values())
        return sum(map(len, stream._ring)) + full

    sizes = []
    for start in range(0, 60_000, 500):
        events = [
            KvEvent(action=KvAction.CREATED, prefix=PrefixKey(n.to_bytes(32, "big")), tokens=n)
            for n in range(start, start + 500)
        ]
        stream.publish(events)
        stream.reannounce(events[:100])
        while reader.take():
            pass
        sizes.append(kept())
    assert max(sizes[20:]) < 1.1 * max(sizes[:20])
    assert len(stream._full) <= SHARED_BATCHES
    assert len(stream._extras) == MAX_REANNOUNCED
    assert len(stream._fresh) <= SHARED_BATCHES


async def test_o9_a_stream_holds_hashes_and_counts_only(engine, publisher, caplog):
    source = {
        "backend_name": "b1",
        "zmq_endpoint": publisher.endpoint,
        "engine_url": engine.url,
        "model": "tiny-chat",
    }
    with caplog.at_level(1):
        async with running_listener([source]) as base, subscribed(base, "b1") as sub:
            event, tokens = chat_event(engine, itertools.count(1))

            async def told() -> None:
                while not sub.events:
                    publisher.publish([event])
                    await asyncio.sleep(0.1)

            await asyncio.wait_for(told(), 10)
            async with aiohttp.ClientSession() as session:
                pages = []
                for path in ("/sources", "/metrics"):
                    async with session.get(base + path) as answer:
                        pages.append(await answer.text())
    data = [line[6:] for line in sub.raw.decode().splitlines() if line.startswith("data: ")]
    assert data
    assert all(set(json.loads(line)) == {"event", "prefix_hash", "token_count"} for line in data)
    everything = sub.raw.decode() + "".join(pages) + repr([vars(r) for r in caplog.records])
    assert "canary" not in everything
    # Three ids in a row are a piece of the prompt, however they are written.
    for piece in (", ".join(map(str, tokens[4:7])), ",".join(map(str, tokens[4:7]))):
        assert piece not in everything


async def test_a_subscriber_that_stalls_is_closed_and_goes_on_without_a_hole(caplog):
    """Issue 4, point 7: closed with a reason after its bound; its place is still in the history."""
    served = Served(times=ServeTimes(heartbeat=5, settle=0.5, write=0.3))
    await served.start(send_buffer=4096)
    slow = SlowClient()
    stream = served.source.stream
    try:
        with caplog.at_level(logging.WARNING):
            await slow.subscribe(served.base, "e-0")
            await until(lambda: stream.subscribers == 1)
            for start in range(0, 9000, 500):
                stream.publish([created(n) for n in range(start, start + 500)])
                await asyncio.sleep(0)
            await until(lambda: stream.subscribers == 0)
        assert served.count('stream_ends_total{end="stalled",source="s"}') == 1
        assert [r.fields["reason"] for r in caplog.records] == ["stalled"]
        had = [event.id for event in await slow.read_to_the_end()]
        assert 0 < len(had) < 9000
        numbers, last_id = list(range(len(had))), had[-1]
        while len(numbers) < 9000:  # on a busy machine the next one may be too slow as well
            async with subscribed(served.base, "s", last_id=last_id) as again:
                have = len(numbers)
                await until(lambda h=have, a=again: h + len(a.events) == 9000 or a.over, 20)
            assert set(again.actions()) == {"cache_created"}, "nothing had to be purged"
            numbers += [event.tokens for event in again.events]
            last_id = again.last_id
        assert numbers == list(range(9000))
        assert last_id == "e-9000"
    finally:
        slow.socket.close()
        await served.runner.cleanup()
