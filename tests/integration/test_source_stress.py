"""Sources under stress: strangers, nonsense, floods and giants at real ZMQ sockets."""

import asyncio
import contextlib
import itertools
import random
import socket
import threading
import time

import pytest

from continuum_kv_listener.config import parse_config
from continuum_kv_listener.main import Daemon
from continuum_kv_listener.world import World
from continuum_shared.cache_salt import SaltIssuer
from continuum_shared.prefix_key import chat_key_text, derive
from support.kv_publisher import Encoding, KvPublisher, batch, free_port, stored
from support.listener_process import listener_process
from support.listener_rig import metric, running_listener, source_row, subscribed, until

SECRET = "a-secret-canary-of-more-than-32-characters"
ENV = {"SALTS": SECRET}
ECHO = {"enabled": True, "secret_env": "SALTS"}
MIB = 1 << 20


def key(text: str) -> bytes:
    found = chat_key_text({"messages": [{"role": "system", "content": text}]})
    assert found is not None
    return derive("m", found, 1024)


def root(text: str, backend: str, number: int) -> object:
    """A chain of one block whose salt says whose it is."""
    salt = SaltIssuer([SECRET]).issue(key(text), backend=backend, model="m")
    return stored(Encoding.MAP, [number], None, list(range(16)), extra_keys=[[salt]])


def source(name: str, endpoint: str, **more: object) -> dict[str, object]:
    return {"backend_name": name, "zmq_endpoint": endpoint, "model": "m", **more}


def listening(*sources, **top):
    return running_listener(list(sources), salt_echo=ECHO, env=ENV, **top)


@pytest.fixture
def publishers():
    made: list[KvPublisher] = []

    def publisher(**more):
        made.append(KvPublisher(replay=False, **more))
        return made[-1]

    yield publisher
    for each in made:
        each.close()


async def up(base: str, name: str, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not (await source_row(base, name))["connected"]:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)  # the publisher learns of the subscription a moment later


async def dropped(base: str, name: str, reason: str) -> float:
    return await metric(
        base, f'continuum_listener_dropped_total{{reason="{reason}",source="{name}"}}'
    )


async def test_k15_other_frames_are_counted_and_skipped(publishers):
    """User report K15: only [topic, 8-byte sequence, payload] is a message."""
    publisher = publishers(topic="")
    async with listening(source("a", publisher.endpoint)) as base, subscribed(base, "a") as sub:
        await up(base, "a")
        publisher.publish([root("one", "a", 1)])
        good = (1).to_bytes(8, "big")
        payload = batch([root("two", "a", 2)])
        for frames in (
            [b""],
            [payload],
            [good, payload],
            [b"", good, payload, b""],
            [b"", good, payload, payload, b""],
            [b"", good[1:], payload],
            [b"", good + b"\0", payload],
            [b"", b"", payload],
            [b"", b"\xff" * 8, payload],
        ):
            publisher.send_frames(frames)
        publisher.publish([root("three", "a", 3)])
        await until(lambda: set(sub.index()) == {key("one"), key("three")})
        assert await dropped(base, "a", "bad_frames") == 9
        row = await source_row(base, "a")
        assert (row["gaps"], row["restarts"], row["last_seq"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("host", "allowed", "admitted"),
    [
        ("127.0.0.1", [], True),
        ("127.0.0.1", ["127.0.0.0/8"], True),
        ("127.0.0.1", ["localhost"], True),
        ("127.0.0.1", ["10.0.0.0/8", "fd00::/8"], False),
        ("127.0.0.1", ["::1"], False),
        ("[::1]", [], True),
        ("[::1]", ["::/64"], True),
        ("[::1]", ["fd00::/8", "127.0.0.1"], False),
    ],
)
async def test_who_may_publish(publishers, host, allowed, admitted):
    endpoint = f"tcp://{host}:{free_port()}"
    here = source("a", endpoint, zmq_mode="bind", allowed_publishers=allowed)
    async with listening(here) as base, subscribed(base, "a") as sub:
        publisher = publishers(connect_to=endpoint)
        if admitted:
            await up(base, "a")
        for number in range(5):
            publisher.publish([root("poison", "a", number)])
            await asyncio.sleep(0.05)
        if admitted:
            await until(lambda: key("poison") in sub.index())
            assert await dropped(base, "a", "not_allowed") == 0
            return
        row = await source_row(base, "a")
        assert (sub.events, row["last_seq"], row["blocks"]) == ([], None, 0)
        assert await dropped(base, "a", "not_allowed") >= 1
        assert "was refused: it is not in allowed_publishers" in " ".join(row["warnings"])
        assert row["connected"] is False


@pytest.mark.parametrize(
    ("mode", "said", "hint"),
    [
        ("bind", "cannot listen on", "zmq_mode: connect"),
        ("connect", "nothing answers at", "zmq_mode: bind"),
    ],
)
async def test_k14_both_ends_bind_or_both_connect_is_said(publishers, caplog, mode, said, hint):
    """User report K14: on the page and in one log line within a minute (of the daemon's clock)."""
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    publishers(**({"port": port} if mode == "bind" else {"connect_to": endpoint}))
    text = (
        f"listen: '127.0.0.1:0'\nsalt_echo: {{enabled: true, secret_env: SALTS}}\nsources:\n"
        f"- {{backend_name: a, zmq_endpoint: '{endpoint}', zmq_mode: {mode}, model: m}}\n"
    )
    config, _ = parse_config(text, path="l", env=ENV)
    assert config is not None
    started = time.monotonic()
    hurried = World(
        rng=random.Random(1), clock=lambda: started + 40 * (time.monotonic() - started), env=ENV
    )
    daemon = Daemon(config, hurried)
    await daemon.start()
    try:
        async with asyncio.timeout(10):
            while True:
                row = await source_row(f"http://{daemon.address}", "a")
                told = [each for each in caplog.records if "No engine has" in each.message]
                if told and said in " ".join(row["warnings"]):
                    break
                await asyncio.sleep(0.05)
        assert hint in " ".join(row["warnings"])
        await asyncio.sleep(0.5)
        told = [each for each in caplog.records if "No engine has" in each.message]
        assert len(told) == 1
        assert hint in str(told[0].__dict__)
    finally:
        await daemon.stop()


async def test_a_batch_of_100_mb_costs_itself_and_no_memory(publishers, tmp_path):
    """Read where the hard limit allows it, hung up on where not; the source lives on."""
    wide, narrow = publishers(), publishers()
    sources = [
        source("wide", wide.endpoint, max_frame_bytes="64MiB"),
        source("narrow", narrow.endpoint, max_frame_bytes="1MiB"),
    ]
    async with listener_process(tmp_path, sources, env=ENV, salt_echo=ECHO) as listener:
        base = listener.base
        await up(base, "wide", 30)
        await up(base, "narrow", 30)
        for name, publisher in (("wide", wide), ("narrow", narrow)):
            publisher.publish([root("before", name, 1)])
        before = listener.size()
        giant = bytes(100 * MIB)
        narrow.publish_payload(giant)
        await reconnected(base, narrow)
        assert listener.size("VmHWM") - before < 40 * MIB
        wide.publish_payload(giant)
        async with asyncio.timeout(30):
            while not await dropped(base, "wide", "oversized"):
                await asyncio.sleep(0.05)
        assert listener.size("VmHWM") - before < 240 * MIB  # the frame and our copy
        async with subscribed(base, "wide") as one, subscribed(base, "narrow") as two:
            wide.publish([root("after", "wide", 2)])
            narrow.publish([root("after", "narrow", 2)])
            await until(lambda: key("after") in one.index() and key("after") in two.index())
        row = await source_row(base, "wide")
        assert (row["gaps"], row["last_seq"], row["connected"]) == (0, 2, True)
        assert (await source_row(base, "narrow"))["gaps"] == 1
        assert listener.size() - before < 40 * MIB


async def reconnected(base: str, publisher: KvPublisher) -> None:
    """The publisher's giant made the source hang up; wait until it is back."""
    async with asyncio.timeout(30):
        while "connection lost" not in str(await source_row(base, "narrow")):
            if (await source_row(base, "narrow"))["connected"] is False:
                break
            await asyncio.sleep(0.005)
    await up(base, "narrow", 30)


async def test_fifty_sources_at_once(publishers, tmp_path):
    made = {f"s{n}": publishers() for n in range(50)}
    sources = [source(name, each.endpoint) for name, each in made.items()]
    async with listener_process(tmp_path, sources, env=ENV, salt_echo=ECHO) as listener:
        for name in made:
            await up(listener.base, name, 30)
        async with contextlib.AsyncExitStack() as stack:
            subs = {
                name: await stack.enter_async_context(subscribed(listener.base, name))
                for name in made
            }
            for name, publisher in made.items():
                publisher.publish([root(f"only {name}", name, n) for n in range(20)])
            await until(lambda: all(sub.index() for sub in subs.values()), seconds=20)
            for name, sub in subs.items():
                assert sub.index() == {key(f"only {name}"): (16, "hot")}
        assert listener.size() < 400 * MIB


class Flood:
    """Publishes as fast as the socket takes it, from a thread, until closed."""

    def __init__(self, publisher: KvPublisher, events: int) -> None:
        self.sent = 0
        self._stop = threading.Event()
        self._payloads = [
            batch(
                [
                    stored(Encoding.MAP, [1 + n * events + at], None, list(range(16)))
                    for at in range(events)
                ]
            )
            for n in range(64)
        ]
        self._publisher = publisher
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Flood":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        for payload in itertools.cycle(self._payloads):
            if self._stop.is_set():
                return
            self._publisher.publish_payload(payload)
            self.sent += 1
            if not self.sent % 50:
                time.sleep(0.001)


@pytest.mark.parametrize("events", [1, 2000])
async def test_k18_a_flooding_source_leaves_the_others_live(publishers, tmp_path, events):
    """K18 for one source: its chains stay at their limit, and a quiet source is heard in time."""
    loud, quiet = publishers(), publishers()
    sources = [source("loud", loud.endpoint), source("quiet", quiet.endpoint)]
    top = {"salt_echo": ECHO, "max_tracked_blocks": 1000, "max_retained_tokens": 20_000}
    async with listener_process(tmp_path, sources, env=ENV, **top) as listener:
        await up(listener.base, "loud", 30)
        await up(listener.base, "quiet", 30)
        async with subscribed(listener.base, "quiet") as sub:
            waits = []
            with Flood(loud, events) as flood:
                await asyncio.sleep(0.5)
                for number in range(10):
                    began = time.monotonic()
                    quiet.publish([root(f"quiet {number}", "quiet", number)])
                    wanted = key(f"quiet {number}")
                    await until(lambda wanted=wanted: wanted in sub.index(), seconds=10)
                    waits.append(time.monotonic() - began)
            assert flood.sent > 100
        row = await source_row(listener.base, "loud")
        assert 0 < row["blocks"] <= 1000
        assert row["tokens"] <= 20_000
        print("waits of the quiet source:", [round(wait, 3) for wait in sorted(waits)])
        assert sorted(waits)[5] < 2.0
        assert listener.size() < 400 * MIB


@pytest.mark.parametrize("said", [b"", b"\xff\0\0\0\0\0\0\0\x01\x7f\x03"], ids=["silent", "half"])
async def test_peers_that_say_nothing_do_not_keep_a_publisher_out(publishers, said):
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    here = source("a", endpoint, zmq_mode="bind")
    async with listening(here) as base, subscribed(base, "a") as sub:
        strangers = []
        try:
            for _ in range(200):
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                strangers[-1].sendall(said)
            publisher = publishers(connect_to=endpoint)
            await up(base, "a")
            publisher.publish([root("one", "a", 1)])
            await until(lambda: key("one") in sub.index())
            assert (await source_row(base, "a"))["warnings"] == []
        finally:
            for each in strangers:
                each.close()
        publisher.publish([root("two", "a", 2)])
        await until(lambda: key("two") in sub.index())


async def test_an_endpoint_that_accepts_and_says_nothing_holds_up_no_other_source(publishers):
    publisher = publishers()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        sources = [
            source("mute", f"tcp://127.0.0.1:{mute.getsockname()[1]}"),
            source("a", publisher.endpoint),
        ]
        async with listening(*sources) as base, subscribed(base, "a") as sub:
            await up(base, "a")
            publisher.publish([root("one", "a", 1)])
            await until(lambda: key("one") in sub.index())
            assert (await source_row(base, "mute"))["connected"] is False
