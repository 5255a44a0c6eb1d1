"""What subscribers cost the listener: records a second to 10 of them, memory of 2,000 of them.

    python tests/bench/bench_listener_serving.py [--subscribers N] [--crowd N] [--events N]

The real HTTP side over one source's stream, in this process on one core; all subscribers in a
second process on the other. Flood: events are published as fast as the subscribers take them (the
publisher waits at half of the history), in bursts of several sizes. Crowd: resident memory after N
subscribers have come, after a flood to all of them, and with N others that read nothing. Prints
one table each; the targets are 20,000 events/s to 10 subscribers.
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import socket
import time
from multiprocessing.connection import Connection

import uvloop
from aiohttp import web

from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.serve_sse import HttpSide, ServeTimes
from continuum_kv_listener.stream import EventStream
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey

MUST = 20_000
KEYS = [PrefixKey(n.to_bytes(32, "big")) for n in range(5_000)]
REQUEST = b"GET /events/s HTTP/1.1\r\nHost: bench\r\nLast-Event-ID: bench-0\r\n\r\n"


class Source:
    """What the HTTP side needs of a source."""

    def __init__(self, families: ListenerMetrics) -> None:
        self.stream = EventStream(
            epoch="bench",
            max_prefix_length=1024,
            snapshot=lambda: [],
            metrics=families.stream("s"),
        )

    async def settled(self, timeout: float) -> None:
        """At once."""


async def served() -> tuple[web.AppRunner, EventStream, int]:
    """The HTTP side on a free port."""
    families = ListenerMetrics(Metrics())
    source = Source(families)
    side = HttpSide(
        {"s": source},
        page=dict,
        families=families,
        times=ServeTimes(heartbeat=60, write=600),
    )
    runner = web.AppRunner(side.application(), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    return runner, source.stream, runner.addresses[0][1]


class Reader(asyncio.Protocol):
    """Counts records by their end and forgets them."""

    def __init__(self, counts: list[int], number: int) -> None:
        self._counts, self._number, self._tail = counts, number, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(REQUEST)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        whole = self._tail + data
        # Each record has one data line; chunk headers cannot hold this text.
        self._counts[self._number] += whole.count(b"\ndata: ")
        self._tail = whole[-6:] if not whole.endswith(b"\ndata: ") else b""


def subscribers(pipe: Connection, port: int) -> None:
    """The second process: opens what it is told to and says how far the slowest has got."""
    pin(1)
    raise_limit()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        counts: list[int] = []
        silent: list[socket.socket] = []
        while True:
            while not pipe.poll():
                await asyncio.sleep(0.005)
            word, number = pipe.recv()
            if word == "open":
                for _ in range(number):
                    counts.append(0)
                    await loop.create_connection(
                        lambda: Reader(counts, len(counts) - 1), "127.0.0.1", port
                    )
            elif word == "silent":
                for _ in range(number):
                    made = socket.socket()
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    made.connect(("127.0.0.1", port))
                    made.sendall(REQUEST)
                    silent.append(made)
            elif word == "slowest":
                while min(counts) < number:
                    await asyncio.sleep(0.002)
            pipe.send(word)
            if word == "end":
                return

    uvloop.run(run())


def pin(core: int) -> None:
    """Stay on one core, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


def raise_limit() -> None:
    """As many files as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def rss() -> float:
    """Resident memory of this process, MB."""
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Other:
    """The second process, seen from here."""

    def __init__(self, port: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=subscribers, args=(theirs, port), daemon=True)
        self._process.start()

    async def do(self, word: str, number: int = 0) -> None:
        """Ask and wait for the answer without holding the loop."""
        self._pipe.send((word, number))
        while not self._pipe.poll():
            await asyncio.sleep(0.001)
        self._pipe.recv()

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def events(count: int, start: int) -> list[KvEvent]:
    """As a growing cache would say them."""
    return [
        KvEvent(action=KvAction.CREATED, prefix=KEYS[n % len(KEYS)], tokens=16 * (n % 900))
        for n in range(start, start + count)
    ]


async def flood(stream: EventStream, other: Other, count: int, burst: int) -> tuple[float, float]:
    """(events a second, CPU microseconds an event) until the slowest subscriber has all."""
    made = [events(burst, at) for at in range(0, count, burst)]
    goal = stream.last_seq + sum(map(len, made))
    begun, cpu = time.perf_counter(), time.process_time()
    for batch in made:
        while any(sub.lag > 5_000 for sub in stream._subscribers):
            await asyncio.sleep(0)
        stream.publish(batch)
        await asyncio.sleep(0)
    await other.do("slowest", goal)
    seconds = time.perf_counter() - begun
    return count / seconds, (time.process_time() - cpu) / count * 1e6


async def ready(stream: EventStream, count: int) -> None:
    """Until that many subscribers have everything."""
    while stream.subscribers < count or any(not s.caught_up for s in stream._subscribers):
        await asyncio.sleep(0.01)


async def run_flood(options: argparse.Namespace) -> bool:
    runner, stream, port = await served()
    other = Other(port)
    good = True
    try:
        await other.do("open", options.subscribers)
        await ready(stream, options.subscribers)
        print(f"flood to {options.subscribers} subscribers ({options.events} events each row)")
        print(f"  {'burst':>6} {'events/s':>10} {'us CPU/event':>13} {'target':>8}")
        for burst in (1, 8, 64):
            rate, cpu = await flood(stream, other, options.events, burst)
            verdict = "ok" if rate >= MUST else "MISSED"
            good &= rate >= MUST
            print(f"  {burst:>6} {rate:>10,.0f} {cpu:>13.1f} {MUST:>8,} {verdict}")
        await other.do("end")
    finally:
        other.close()
        await runner.cleanup()
    return good


async def run_crowd(options: argparse.Namespace) -> None:
    runner, stream, port = await served()
    other = Other(port)
    crowd = options.crowd
    try:
        base = rss()
        print(f"crowd of {crowd} subscribers")
        print(f"  {'state':<44} {'RSS MB':>8} {'KiB each':>9}")
        print(f"  {'nobody':<44} {base:>8.1f}")
        await other.do("open", crowd)
        await ready(stream, crowd)
        now = rss()
        print(f"  {'all there, quiet':<44} {now:>8.1f} {(now - base) * 1e3 / 1.024 / crowd:>9.1f}")
        rate, _ = await flood(stream, other, 5_000, 64)
        now = rss()
        text = f"after 5,000 events to all ({rate:,.0f} events/s)"
        print(f"  {text:<44} {now:>8.1f} {(now - base) * 1e3 / 1.024 / crowd:>9.1f}")
        await other.do("silent", crowd)
        while stream.subscribers < 2 * crowd:
            await asyncio.sleep(0.01)
        for at in range(0, 9_000, 64):
            stream.publish(events(64, at))
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)
        now = rss()
        text = f"and {crowd} more that read nothing, 9,000 events"
        each = (now - base) * 1e3 / 1.024 / (2 * crowd)
        print(f"  {text:<44} {now:>8.1f} {each:>9.1f}")
        await other.do("end")
    finally:
        other.close()
        await runner.cleanup()


def main() -> int:
    """Run and print. 1 when a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subscribers", type=int, default=10)
    parser.add_argument("--crowd", type=int, default=2_000, help="0 leaves that part out")
    parser.add_argument("--events", type=int, default=100_000)
    options = parser.parse_args()
    raise_limit()
    pin(0)
    good = uvloop.run(run_flood(options))
    if options.crowd:
        uvloop.run(run_crowd(options))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
