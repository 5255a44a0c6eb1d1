"""Engine events in, event stream out: a whole listener with real ZMQ and HTTP sockets."""

import asyncio
import itertools

import aiohttp
import pytest

from continuum_shared.kv_event import KvAction
from continuum_shared.prefix_key import chat_key_text, derive
from support.kv_publisher import (
    Encoding,
    KvPublisher,
    ReplayLayout,
    cleared,
    free_port,
    removed,
    stored,
)
from support.listener_rig import (
    listener_daemon,
    metric,
    running_listener,
    source_row,
    subscribed,
    until,
)
from support.tiny_engine import TinyEngine, serving

BLOCK = 16
SYSTEM = "You are the harbour master of a small port. Answer in one sentence, and name the tide."
OTHER = "You translate every sentence into Korean and say nothing else, 안녕하세요 included."


def chat(system: str, user: str = "When may the ferry leave?") -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def key(system: str, model: str = "tiny-chat") -> bytes:
    text = chat_key_text({"messages": chat(system)})
    assert text is not None
    return derive(model, text, 1024)


class FakeCache:
    """Blocks of prompts under invented hashes, the way an engine names them."""

    def __init__(self, engine: TinyEngine, encoding: Encoding = Encoding.MAP) -> None:
        self.engine = engine
        self.encoding = encoding
        self.hashes = itertools.count(2**63)

    def store(self, messages: list[dict[str, str]]) -> tuple[object, list[int]]:
        """(event, hashes) for the whole blocks of a chat."""
        tokens = self.engine.encode_chat(messages)
        blocks = len(tokens) // BLOCK
        assert blocks > 2
        hashes = [next(self.hashes) for _ in range(blocks)]
        return stored(self.encoding, hashes, None, tokens[: blocks * BLOCK]), hashes

    def remove(self, hashes: list[int]) -> list[object]:
        return [removed(self.encoding, [h]) for h in reversed(hashes)]


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


def source_for(engine: TinyEngine, publisher: KvPublisher, **more: object) -> dict[str, object]:
    return {
        "backend_name": "vllm-1",
        "engine": "vllm",
        "zmq_endpoint": publisher.endpoint,
        "zmq_replay_endpoint": publisher.replay_endpoint,
        "engine_url": engine.url,
        "model": "tiny-chat",
        **more,
    }


async def ready(base: str, publisher: KvPublisher, *, replay: bool = True) -> None:
    """Wait until the source follows its publisher and knows the template."""

    async def settled() -> bool:
        row = await source_row(base, "vllm-1")
        asked = bool(publisher.requests) or not replay
        return bool(row["connected"] and row["calibrated"] and asked)

    async with asyncio.timeout(10):
        while not await settled():
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.15)


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_the_life_of_a_prefix(engine, publisher, encoding):
    cache = FakeCache(engine, encoding)
    event, hashes = cache.store(chat(SYSTEM))
    async with (
        running_listener([source_for(engine, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await ready(base, publisher)
        publisher.publish([event])
        await until(lambda: sub.events)
        created = sub.events[0]
        assert created.action is KvAction.CREATED
        assert created.prefix == key(SYSTEM)
        assert created.tokens == len(hashes) * BLOCK
        assert sub.comments[0] == "prefix-length=1024"

        publisher.publish(cache.remove(hashes))
        await until(lambda: len(sub.events) > 1)
        assert sub.events[-1].action is KvAction.EVICTED
        assert sub.index() == {}

        again, _ = cache.store(chat(OTHER))
        publisher.publish([again])
        await until(lambda: key(OTHER) in sub.index())
        publisher.publish([cleared(encoding)])
        await until(lambda: sub.actions()[-1] == "cache_purged")

        row = await source_row(base, "vllm-1")
        assert row["attribution"] == "probe"
        assert (row["last_seq"], row["gaps"], row["restarts"]) == (3, 0, 0)
        assert (row["blocks"], row["prefixes"], row["unattributed"]) == (0, 0, {})
        assert row["warnings"] == []
        for kind, count in (("stored", 2), ("removed", len(hashes)), ("cleared", 1)):
            line = f'continuum_listener_events_total{{source="vllm-1",type="{kind}"}}'
            assert await metric(base, line) == count


@pytest.mark.parametrize("layout", list(ReplayLayout))
async def test_an_idle_engines_cache_is_known_without_traffic(engine, layout):
    """User report K6: restart the listener; what the engine holds is back before any request."""
    publisher = KvPublisher(layout=layout)
    cache = FakeCache(engine)
    try:
        event, hashes = cache.store(chat(SYSTEM))
        gone, gone_hashes = cache.store(chat(OTHER))
        publisher.lose([event, gone])
        publisher.lose(cache.remove(gone_hashes))
        for _ in range(2):
            async with (
                running_listener([source_for(engine, publisher)]) as base,
                subscribed(base, "vllm-1") as sub,
            ):
                await until(lambda: key(SYSTEM) in sub.index())
                assert sub.index() == {key(SYSTEM): (len(hashes) * BLOCK, "hot")}
        assert publisher.requests == [0, 0]
    finally:
        publisher.close()


async def test_a_subscriber_of_an_earlier_listener_gets_the_rebuilt_state_in_one_swap(
    engine, publisher
):
    cache = FakeCache(engine)
    event, _ = cache.store(chat(SYSTEM))
    publisher.lose([event])
    async with (
        running_listener([source_for(engine, publisher)]) as base,
        subscribed(base, "vllm-1", last_id="0123456789ab-7") as sub,
    ):
        await until(lambda: len(sub.events) >= 2)
        assert sub.events[0].action is KvAction.PURGED
        assert sub.events[0].snapshot == 1
        assert sub.events[1].prefix == key(SYSTEM)


async def test_a_killed_engine_comes_back_empty(engine):
    port, replay_port = free_port(), free_port()
    first = KvPublisher(port=port, replay_port=replay_port)
    second = None
    cache = FakeCache(engine)
    try:
        async with (
            running_listener([source_for(engine, first)]) as base,
            subscribed(base, "vllm-1") as sub,
        ):
            await ready(base, first)
            first.publish([cache.store(chat(SYSTEM))[0]])
            await until(lambda: key(SYSTEM) in sub.index())
            first.close()
            second = KvPublisher(port=port, replay_port=replay_port)
            second.lose([cache.store(chat(OTHER))[0]])
            # No live message at all: the reconnect alone has to tell.
            await until(lambda: set(sub.index()) == {key(OTHER)}, seconds=5)
            assert "cache_purged" in sub.actions()
            assert second.requests[0] == 0
            row = await source_row(base, "vllm-1")
            assert row["restarts"] == 1
    finally:
        first.close()
        if second is not None:
            second.close()


async def test_a_lost_connection_to_a_living_engine_purges_nothing(engine):
    """The engine binds its sockets anew on the same process state: replay tells it is the same."""
    port, replay_port = free_port(), free_port()
    first = KvPublisher(port=port, replay_port=replay_port)
    second = None
    cache = FakeCache(engine)
    try:
        async with (
            running_listener([source_for(engine, first)]) as base,
            subscribed(base, "vllm-1") as sub,
        ):
            await ready(base, first)
            first.publish([cache.store(chat(SYSTEM))[0]])
            await until(lambda: key(SYSTEM) in sub.index())
            first.close()
            second = KvPublisher(port=port, replay_port=replay_port)
            second.inherit(first)
            second.lose([cache.store(chat(OTHER))[0]])
            await until(lambda: key(OTHER) in sub.index())
            assert set(sub.index()) == {key(SYSTEM), key(OTHER)}
            assert "cache_purged" not in sub.actions()
            assert (await source_row(base, "vllm-1"))["restarts"] == 0
    finally:
        first.close()
        if second is not None:
            second.close()


async def test_a_gap_is_replayed_once(engine, publisher):
    cache = FakeCache(engine)
    async with (
        running_listener([source_for(engine, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await ready(base, publisher)
        before = len(publisher.requests)
        publisher.publish([])
        publisher.lose([cache.store(chat(SYSTEM))[0]])
        publisher.publish([])
        publisher.publish([])
        await until(lambda: key(SYSTEM) in sub.index())
        publisher.publish([cache.store(chat(OTHER))[0]])
        await until(lambda: key(OTHER) in sub.index())
        assert publisher.requests[before:] == [1]
        row = await source_row(base, "vllm-1")
        assert (row["gaps"], row["restarts"], row["last_seq"]) == (1, 0, 4)
        assert await metric(base, 'continuum_listener_lost_batches_total{source="vllm-1"}') == 0


async def test_one_undecodable_batch_costs_one(engine, publisher):
    """User report K3: the batches around it count, the socket stays, the counter goes up by one."""
    cache = FakeCache(engine)
    async with (
        running_listener([source_for(engine, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await ready(base, publisher)
        publisher.publish([cache.store(chat(SYSTEM))[0]])
        publisher.publish_payload(b"\xc1 not msgpack")
        publisher.publish([cache.store(chat(OTHER))[0]])
        await until(lambda: set(sub.index()) == {key(SYSTEM), key(OTHER)})
        line = 'continuum_listener_dropped_total{reason="undecodable_batch",source="vllm-1"}'
        assert await metric(base, line) == 1
        row = await source_row(base, "vllm-1")
        assert (row["connected"], row["gaps"], row["restarts"]) == (True, 0, 0)
        assert row["warnings"] == [
            "1 prefixes were known before a loss and not seen since: they lapse unless the engine "
            "proves them",
            "1 batches could not be decoded",
        ]


async def test_a_dead_detokenizer_delays_attribution_and_nothing_else(engine, publisher):
    cache = FakeCache(engine)
    async with (
        running_listener([source_for(engine, publisher)]) as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await ready(base, publisher)
        engine.down = True
        event, hashes = cache.store(chat(SYSTEM))
        publisher.publish([event])
        gone, gone_hashes = cache.store(chat(OTHER))
        publisher.publish([gone])
        publisher.publish(cache.remove(gone_hashes))

        async def tracked() -> bool:
            row = await source_row(base, "vllm-1")
            return row["last_seq"] == 2 and row["blocks"] == len(hashes)

        async with asyncio.timeout(5):
            while not await tracked():
                await asyncio.sleep(0.02)
        row = await source_row(base, "vllm-1")
        assert row["unattributed"] == {"pending": len(hashes)}
        assert sub.events == []
        engine.down = False
        await until(lambda: sub.index() == {key(SYSTEM): (len(hashes) * BLOCK, "hot")})


async def test_resuming_continues_right_behind_the_last_id(engine, publisher):
    cache = FakeCache(engine)
    async with running_listener([source_for(engine, publisher)]) as base:
        async with subscribed(base, "vllm-1") as sub:
            await ready(base, publisher)
            event, hashes = cache.store(chat(SYSTEM))
            publisher.publish([event])
            await until(lambda: sub.events)
        publisher.publish(cache.remove(hashes))
        publisher.publish([cache.store(chat(OTHER))[0]])
        async with subscribed(base, "vllm-1", last_id=sub.last_id) as second:
            await until(lambda: len(second.events) == 2)
            assert second.actions() == ["cache_evicted", "cache_created"]
            assert second.events[0].prefix == key(SYSTEM)
            assert second.events[1].prefix == key(OTHER)


async def test_heartbeats_and_reannouncement(engine, publisher):
    cache = FakeCache(engine)
    source = source_for(engine, publisher)
    async with (
        running_listener([source], reannounce_interval="1s") as base,
        subscribed(base, "vllm-1") as sub,
    ):
        await ready(base, publisher)
        await until(lambda: "heartbeat" in sub.comments)
        event, hashes = cache.store(chat(SYSTEM))
        publisher.publish([event])
        await until(lambda: len(sub.events) >= 3)
        assert {(e.action, e.prefix, e.tokens) for e in sub.events} == {
            (KvAction.CREATED, key(SYSTEM), len(hashes) * BLOCK)
        }
        assert sub.last_id is not None
        assert sub.last_id.endswith("-1")
        publisher.close()
        await until(lambda: sub.comments)
        row_warnings: list[str] = []

        async def lapsed() -> bool:
            row_warnings[:] = (await source_row(base, "vllm-1"))["warnings"]  # type: ignore[call-overload]
            return any("no longer re-announced" in text for text in row_warnings)

        async with asyncio.timeout(5):
            while not await lapsed():
                await asyncio.sleep(0.05)
        told = len(sub.events)
        await asyncio.sleep(1.2)
        assert len(sub.events) == told


async def test_stopping_ends_every_stream_cleanly(engine, publisher):
    daemon = listener_daemon([source_for(engine, publisher)])
    await daemon.start()
    base = f"http://{daemon.address}"
    try:
        async with subscribed(base, "vllm-1") as first, subscribed(base, "vllm-1") as second:
            await until(lambda: first.comments and second.comments)
            await daemon.stop()
            await until(lambda: first.ended and second.ended)
            assert not first.broken
            assert not second.broken
    finally:
        await daemon.stop()


async def test_unknown_things_are_json_errors(engine, publisher):
    async with (
        running_listener([source_for(engine, publisher)]) as base,
        aiohttp.ClientSession() as session,
    ):
        for method, path, status in (
            ("GET", "/events/nobody", 404),
            ("GET", "/nothing", 404),
            ("POST", "/events/vllm-1", 405),
            ("HEAD", "/events/vllm-1", 405),
        ):
            async with session.request(method, base + path) as response:
                assert response.status == status
                if method != "HEAD":
                    assert (await response.json())["error"]["code"] == status
        async with session.get(base + "/health") as response:
            assert (response.status, await response.json()) == (
                200,
                {"status": "ok", "sources": 1},
            )
