"""Subscribing in both directions with real sockets: frames, links, publishers that may not."""

import asyncio

import pytest
import zmq

from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_events import DropReason, RawBatch
from continuum_kv_listener.sources.publisher_acl import AdmissionDesk, PublisherAcl, resolve_acl
from continuum_kv_listener.sources.zmq_source import (
    Admission,
    LinkDown,
    LinkUp,
    ZmqEndpointSettings,
    ZmqSource,
)
from continuum_shared.backoff import Backoff
from support.kv_publisher import KvPublisher, free_port


class Bench:
    """A source under test with everything around it, and publishers to be closed."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.desk = AdmissionDesk(self.context)
        self.desk_task = asyncio.get_running_loop().create_task(self.desk.run())
        self.drops: list[DropReason] = []
        self.sources: list[ZmqSource] = []
        self.publishers: list[KvPublisher] = []

    def source(self, endpoint: str, mode: ZmqMode, acl: PublisherAcl | None = None, **more):
        made = ZmqSource(
            ZmqEndpointSettings(name="s", endpoint=endpoint, mode=mode, **more),
            context=self.context,
            on_drop=self.drops.append,
            admission=Admission(desk=self.desk, acl=acl or PublisherAcl()),
            backoff=Backoff(0.02, 0.1),
        )
        self.sources.append(made)
        return made

    def publisher(self, **more) -> KvPublisher:
        made = KvPublisher(replay=False, **more)
        self.publishers.append(made)
        return made

    async def close(self) -> None:
        for source in self.sources:
            source.close()
        for publisher in self.publishers:
            publisher.close()
        self.desk_task.cancel()
        await asyncio.wait([self.desk_task])
        self.desk.close()
        self.context.destroy(0)


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    await made.close()


async def collect(source: ZmqSource, count: int, seconds: float = 5.0) -> list[object]:
    """The next ``count`` items."""
    items: list[object] = []
    async with asyncio.timeout(seconds):
        while len(items) < count:
            items += await source.receive(0.2)
    return items


async def joined(source: ZmqSource, publisher: KvPublisher) -> None:
    """Wait for the link, then until the publisher has learnt of the subscription."""
    assert await collect(source, 1) == [LinkUp(session=1)]
    async with asyncio.timeout(5):
        while True:
            publisher.send_frames([publisher.topic, b"probe"])
            if not await source.receive(0.02) and DropReason.BAD_FRAMES in drops_of(source):
                break
    drops_of(source).clear()


def drops_of(source: ZmqSource) -> list[DropReason]:
    return source._on_drop.__self__


async def test_connecting(bench):
    publisher = bench.publisher()
    source = bench.source(publisher.endpoint, ZmqMode.CONNECT)
    await joined(source, publisher)
    publisher.publish_payload(b"zero")
    publisher.publish_payload(b"one")
    assert await collect(source, 2) == [
        RawBatch(source="s", rank=0, seq=0, payload=b"zero"),
        RawBatch(source="s", rank=0, seq=1, payload=b"one"),
    ]
    assert source.peers == 1
    assert bench.drops == []


async def test_binding(bench):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    source = bench.source(endpoint, ZmqMode.BIND)
    assert await source.receive(0) == []
    publisher = bench.publisher(connect_to=endpoint)
    await joined(source, publisher)
    publisher.publish_payload(b"zero")
    assert await collect(source, 1) == [RawBatch(source="s", rank=0, seq=0, payload=b"zero")]
    assert source.peers == 1
    publisher.close()
    assert await collect(source, 1) == [LinkDown()]
    assert source.peers == 0


@pytest.mark.parametrize("mode", list(ZmqMode))
async def test_wrong_frames_cost_themselves(bench, mode):
    """User report K15: 1, 2, 4 frames, an empty topic, a sequence of 7 bytes or beyond reason."""
    if mode is ZmqMode.BIND:
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        source = bench.source(endpoint, mode)
        await source.receive(0)
        publisher = bench.publisher(connect_to=endpoint)
    else:
        publisher = bench.publisher()
        source = bench.source(publisher.endpoint, mode)
    await joined(source, publisher)
    seq = (5).to_bytes(8, "big")
    for frames in (
        [b"alone"],
        [b"t", seq],
        [b"t", seq, b"p", b"more"],
        [b"t", seq[:7], b"p"],
        [b"t", b"\xff" * 8, b"p"],
    ):
        publisher.send_frames(frames)
    publisher.send_frames([b"", seq, b"good"])
    assert await collect(source, 1) == [RawBatch(source="s", rank=0, seq=5, payload=b"good")]
    assert bench.drops == [DropReason.BAD_FRAMES] * 5


async def test_only_the_topic_is_subscribed(bench):
    publisher = bench.publisher(topic="kv-events")
    source = bench.source(publisher.endpoint, ZmqMode.CONNECT, topic="kv-")
    await joined(source, publisher)
    publisher.send_frames([b"other", (0).to_bytes(8, "big"), b"no"])
    publisher.send_frames([b"kv-events", (1).to_bytes(8, "big"), b"yes"])
    assert [item.payload for item in await collect(source, 1)] == [b"yes"]


async def test_a_restarted_publisher_is_a_new_session(bench):
    port = free_port()
    first = bench.publisher(port=port)
    source = bench.source(first.endpoint, ZmqMode.CONNECT)
    await joined(source, first)
    first.close()
    assert await collect(source, 1) == [LinkDown()]
    assert source.last_error == "connection lost"
    bench.publisher(port=port)
    assert await collect(source, 1) == [LinkUp(session=2)]
    assert source.last_error is None


async def test_what_was_delivered_before_the_end_is_read_before_the_link_is_down(bench):
    publisher = bench.publisher()
    source = bench.source(publisher.endpoint, ZmqMode.CONNECT)
    await joined(source, publisher)
    for n in range(300):
        publisher.publish_payload(b"%d" % n)
    await asyncio.sleep(0.2)
    publisher.close()
    items = await collect(source, 301)
    assert [item.seq for item in items[:-1]] == list(range(300))
    assert items[-1] == LinkDown()


async def test_nobody_there_is_not_an_error_that_ends(bench):
    port = free_port()
    source = bench.source(f"tcp://127.0.0.1:{port}", ZmqMode.CONNECT)
    assert await source.receive(0.3) == []
    assert source.last_error == "connection refused"
    assert not source.ever_connected
    bench.publisher(port=port)
    assert await collect(source, 1) == [LinkUp(session=1)]


async def test_both_ends_bind_is_said_and_tried_again(bench):
    publisher = bench.publisher()
    source = bench.source(publisher.endpoint, ZmqMode.BIND)
    assert await source.receive(0.1) == []
    assert source.last_error == "Address already in use"
    publisher.close()
    await source.receive(0.5)
    assert source.last_error is None


async def test_a_frame_beyond_the_limit_costs_a_reconnect(bench):
    publisher = bench.publisher()
    source = bench.source(publisher.endpoint, ZmqMode.CONNECT, max_message_bytes=1000)
    await joined(source, publisher)
    publisher.publish_payload(b"x" * 2000)
    assert await collect(source, 2) == [LinkDown(), LinkUp(session=2)]
    await asyncio.sleep(0.1)
    publisher.publish_payload(b"small")
    assert await collect(source, 1) == [RawBatch(source="s", rank=0, seq=1, payload=b"small")]


async def test_a_publisher_that_is_not_allowed_never_gets_through(bench):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    acl = await resolve_acl(("10.0.0.0/8",), local=False)
    source = bench.source(endpoint, ZmqMode.BIND, acl)
    await source.receive(0)
    publisher = bench.publisher(connect_to=endpoint)
    for _ in range(5):
        publisher.publish_payload(b"poison")
        assert await source.receive(0.05) == []
    assert set(bench.drops) == {DropReason.NOT_ALLOWED}
    assert source.refused == "127.0.0.1"
    assert source.peers == 0


async def test_only_the_newest_of_two_publishers_is_followed(bench):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    source = bench.source(endpoint, ZmqMode.BIND)
    await source.receive(0)
    old = bench.publisher(connect_to=endpoint)
    await joined(source, old)
    new = bench.publisher(connect_to=endpoint)
    assert await collect(source, 1) == [LinkUp(session=2)]
    assert source.peers == 2
    await asyncio.sleep(0.1)
    old.publish_payload(b"old")
    new.publish_payload(b"new")
    assert [item.payload for item in await collect(source, 1)] == [b"new"]
    assert await source.receive(0.1) == []
    assert bench.drops == [DropReason.DUPLICATE]


async def test_the_older_of_two_publishers_is_followed_again_when_the_newer_one_leaves(bench):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    source = bench.source(endpoint, ZmqMode.BIND)
    await source.receive(0)
    old = bench.publisher(connect_to=endpoint)
    await joined(source, old)
    new = bench.publisher(connect_to=endpoint)
    assert await collect(source, 1) == [LinkUp(session=2)]
    new.close()
    async with asyncio.timeout(5):
        while source.peers != 1:
            assert await source.receive(0.02) == []
    old.publish_payload(b"old")
    assert await collect(source, 2) == [
        LinkUp(session=1),
        RawBatch(source="s", rank=0, seq=0, payload=b"old"),
    ]
    third = bench.publisher(connect_to=endpoint)
    assert await collect(source, 1) == [LinkUp(session=3)]
    third.close()
    old.close()
    assert await collect(source, 1) == [LinkDown()]
    assert bench.drops == []


STRANGERS = {
    "nothing": b"",
    "http": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "half_a_greeting": b"\xff\0\0\0\0\0\0\0\x01\x7f",
    "greeting": b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + b"\0" * 48,
    "other_mechanism": b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0PLAIN" + b"\0" * 47,
}


@pytest.mark.parametrize("said", list(STRANGERS.values()), ids=list(STRANGERS))
async def test_strangers_at_a_bound_port_do_not_take_the_publisher_away(bench, said):
    """A port scanner's or load balancer's connection ends without a word about a handshake."""
    port = free_port()
    source = bench.source(f"tcp://127.0.0.1:{port}", ZmqMode.BIND)
    await source.receive(0)
    publisher = bench.publisher(connect_to=f"tcp://127.0.0.1:{port}")
    await joined(source, publisher)
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        await writer.drain()
        assert await source.receive(0.05) == []
        writer.close()
        assert await source.receive(0.05) == []
    assert source.peers == 1
    publisher.publish_payload(b"zero")
    assert await collect(source, 1) == [RawBatch(source="s", rank=0, seq=0, payload=b"zero")]


async def test_an_http_server_is_no_publisher(bench):
    """The commonest wrong port: its refusal passes for messages of ZMQ's first protocol."""

    async def refuse(reader, writer):
        answered.append(asyncio.current_task())
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 300\r\n\r\n" + b"x" * 300)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()

    answered = []
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    source = bench.source(f"tcp://127.0.0.1:{port}", ZmqMode.CONNECT)
    assert await source.receive(0.5) == []
    assert not source.ever_connected
    assert source.last_error == "what listens there is no ZMQ publisher"
    assert set(bench.drops) == {DropReason.BAD_FRAMES}
    source.close()
    server.close()
    await asyncio.wait(answered)


async def test_ipv6(bench):
    endpoint = f"tcp://[::1]:{free_port()}"
    source = bench.source(endpoint, ZmqMode.BIND, await resolve_acl(("::1",), local=False))
    await source.receive(0)
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.IPV6, 1)
    publisher.connect(endpoint)
    try:
        assert await collect(source, 1) == [LinkUp(session=1)]
    finally:
        context.destroy(0)


def test_binding_needs_an_admission_rule():
    context = zmq.Context()
    settings = ZmqEndpointSettings(name="s", endpoint="tcp://*:1", mode=ZmqMode.BIND)
    with pytest.raises(ValueError, match="admission rule"):
        ZmqSource(settings, context=context, on_drop=lambda _: None)
    context.term()
