"""The simulated engine on real ZMQ: what a subscriber and a replay client get; life and death."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgpack
import pytest
import zmq

from continuum_router.demo import engine_sim
from continuum_router.demo.child_process import free_ports, running
from continuum_router.demo.engine_sim import SimConfig, SimEngine
from continuum_router.demo.sim_events import Encoding, EventWire, HashForm, ZmqMode
from continuum_router.demo.sim_scheduler import SimTiming

END = [b"", b"", b"\xff" * 8, b""]


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def wired(**wire: object) -> SimEngine:
    endpoints = {"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}
    return SimEngine(SimConfig(wire=EventWire(**{**endpoints, **wire})))  # type: ignore[arg-type]


async def complete(http: aiohttp.ClientSession, engine: SimEngine, prompt: str) -> int:
    body = {"model": "demo", "prompt": prompt, "max_tokens": 1}
    async with http.post(f"{engine.url}/v1/completions", json=body) as reply:
        assert reply.status == 200
        told = await reply.json()
    cached: int = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


async def received(socket: "zmq.Socket[bytes]") -> list[bytes]:
    async with asyncio.timeout(5):
        while not socket.poll(0):
            await asyncio.sleep(0.005)
    return socket.recv_multipart()


async def replayed(
    context: "zmq.Context[zmq.Socket[bytes]]", engine: SimEngine, start: int
) -> list[list[bytes]]:
    dealer = context.socket(zmq.DEALER)
    assert engine.replay_endpoint is not None
    dealer.connect(engine.replay_endpoint)
    dealer.send_multipart([b"", start.to_bytes(8)])
    answers = [await received(dealer)]
    while answers[-1][-1]:
        answers.append(await received(dealer))
    dealer.close(linger=0)
    return answers


def tags(payload: bytes) -> list[str]:
    _, events, _ = msgpack.unpackb(payload)
    return [event["type"] if isinstance(event, dict) else event[0] for event in events]


async def test_a_subscriber_gets_topic_sequence_and_payload(
    context: "zmq.Context[zmq.Socket[bytes]]", http: aiohttp.ClientSession
) -> None:
    port, replay = free_ports(2)
    engine = wired(
        endpoint=f"tcp://127.0.0.1:{port}", replay_endpoint=f"tcp://127.0.0.1:{replay}", topic="kv"
    )
    subscriber = context.socket(zmq.SUB)
    subscriber.bind(f"tcp://127.0.0.1:{port}")
    subscriber.subscribe(b"")
    await engine.start()
    asked = 0
    while not subscriber.poll(20):  # what is published before the subscription arrives is lost
        await complete(http, engine, f"{asked:03}" * 16)
        asked += 1
    for letter in "xy":
        await complete(http, engine, letter * 48)
    messages = [await received(subscriber)]
    while messages[-1][1] != (asked + 1).to_bytes(8):
        messages.append(await received(subscriber))
    numbers = [int.from_bytes(number) for _, number, _ in messages]
    assert numbers == list(range(numbers[0], asked + 2))
    assert {topic for topic, _, _ in messages} == {b"kv"}
    assert {tuple(tags(payload)) for _, _, payload in messages} == {("BlockStored",)}
    subscriber.close(linger=0)
    await engine.stop()


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("form", list(HashForm))
async def test_replay_gives_every_batch_since_the_asked_one(
    context: "zmq.Context[zmq.Socket[bytes]]",
    http: aiohttp.ClientSession,
    encoding: Encoding,
    form: HashForm,
) -> None:
    engine = wired(encoding=encoding, hash_form=form)
    await engine.start()
    for prompt in ("x" * 48, "y" * 48, "z" * 96):
        await complete(http, engine, prompt)
    everything = await replayed(context, engine, 0)
    assert everything[-1] == END
    assert [(a[0], a[1], a[2]) for a in everything[:-1]] == [
        (b"", b"kv-events", n.to_bytes(8)) for n in range(3)
    ]
    _, events, _ = msgpack.unpackb(everything[2][3])
    (event,) = events
    hashes = event["block_hashes"] if isinstance(event, dict) else event[1]
    assert [type(one) for one in hashes] == [int if form is HashForm.INT else bytes] * 2
    assert await replayed(context, engine, 2) == everything[2:]
    assert await replayed(context, engine, 1000) == [END]
    await engine.stop()


async def test_old_engines_leave_the_topic_out_of_replays(
    context: "zmq.Context[zmq.Socket[bytes]]", http: aiohttp.ClientSession
) -> None:
    engine = wired(replay_topic=False)
    await engine.start()
    await complete(http, engine, "x" * 48)
    first, end = await replayed(context, engine, 0)
    assert first[:2] == [b"", (0).to_bytes(8)]
    assert tags(first[2]) == ["BlockStored"]
    assert end == [b"", b"\xff" * 8, b""]
    await engine.stop()


async def test_a_request_without_the_empty_frame_is_dropped_and_the_next_one_served(
    context: "zmq.Context[zmq.Socket[bytes]]", caplog: pytest.LogCaptureFixture
) -> None:
    engine = wired()
    await engine.start()
    dealer = context.socket(zmq.DEALER)
    assert engine.replay_endpoint is not None
    dealer.connect(engine.replay_endpoint)
    dealer.send_multipart([(0).to_bytes(8)])
    dealer.send_multipart([b"", b"short"])
    dealer.send_multipart([b"", (0).to_bytes(8)])
    assert await received(dealer) == END
    assert [r.message for r in caplog.records if "replay" in r.message] == [
        "replay request dropped"
    ] * 2
    dealer.close(linger=0)
    await engine.stop()


async def test_the_clear_event_rides_with_the_next_request(
    context: "zmq.Context[zmq.Socket[bytes]]", http: aiohttp.ClientSession
) -> None:
    engine = wired()
    await engine.start()
    await complete(http, engine, "x" * 48)
    assert engine.reset_prefix_cache()
    assert [tags(a[3]) for a in (await replayed(context, engine, 0))[:-1]] == [["BlockStored"]]
    assert await complete(http, engine, "x" * 48) == 0
    assert [tags(a[3]) for a in (await replayed(context, engine, 0))[:-1]] == [
        ["BlockStored"],
        ["AllBlocksCleared", "BlockStored"],
    ]
    await engine.stop()


async def test_a_killed_engine_drops_its_clients_and_comes_back_empty_at_the_same_place(
    context: "zmq.Context[zmq.Socket[bytes]]", http: aiohttp.ClientSession
) -> None:
    timing = SimTiming(decode_seconds=0.05)
    wire = EventWire(endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*")
    engine = SimEngine(SimConfig(timing=timing, wire=wire))
    await engine.start()
    places = (engine.url, engine.zmq_endpoint, engine.replay_endpoint)
    body = {"model": "demo", "prompt": "x" * 480, "max_tokens": 40, "stream": True}
    reply = await http.post(f"{engine.url}/v1/completions", json=body)
    await reply.content.readline()
    await engine.kill()
    with pytest.raises(aiohttp.ClientPayloadError):
        await reply.read()
    with pytest.raises(aiohttp.ClientConnectorError):
        await http.get(f"{engine.url}/health")
    await engine.start()
    assert (engine.url, engine.zmq_endpoint, engine.replay_endpoint) == places
    assert engine.resident_chains() == []
    assert await replayed(context, engine, 0) == [END]
    await engine.stop()
    await engine.stop()


async def test_a_taken_port_is_an_oserror_and_leaves_nothing_open() -> None:
    first = wired()
    await first.start()
    second = SimEngine(SimConfig(port=first.port))
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    assert first.zmq_endpoint is not None
    third = wired(endpoint=first.zmq_endpoint, mode=ZmqMode.BIND)
    with pytest.raises(OSError, match="Address already in use"):
        await third.start()
    await first.stop()
    await second.start()
    await second.stop()


async def test_the_command_says_where_it_is_and_ends_on_sigterm(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    argv = [sys.executable, "-m", "continuum_router.demo.engine_sim"]
    options = ["--model", "m", "--zmq", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*"]
    async with running("engine", [*argv, *options], logs=tmp_path) as child:
        ready = json.loads(await child.first_line(20))
        assert ready["zmq"].startswith("tcp://127.0.0.1:")
        assert ready["replay"].startswith("tcp://127.0.0.1:")
        async with http.get(f"{ready['url']}/v1/models") as reply:
            assert [m["id"] for m in (await reply.json())["data"]] == ["m"]
        async with http.get(f"{ready['url']}/kv_event_sources") as reply:
            assert (await reply.json())["0"]["endpoint"] == ready["zmq"]
        child.signal(signal.SIGTERM)
        assert await child.ended(10) == 0
    assert (tmp_path / "engine.err").read_text() == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--blocks", "0"], "engine-sim: --blocks must be at least 1\n"),
        (["--decode-ms", "-1"], "engine-sim: times must not be negative\n"),
    ],
)
def test_numbers_that_make_no_engine(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert engine_sim.main(argv) == 2
    assert capsys.readouterr().err == message
