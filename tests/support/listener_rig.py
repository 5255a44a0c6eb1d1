"""A whole listener in the test's own loop, and a subscriber that reads its streams."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import yaml

from continuum_kv_listener.config import parse_config
from continuum_kv_listener.main import Daemon
from continuum_kv_listener.serve_sse import ServeTimes
from continuum_kv_listener.world import World
from continuum_shared.kv_event import KvAction, KvEvent, decode
from continuum_shared.sse import SseComment, SseParser

QUICK = ServeTimes(heartbeat=0.2, settle=2.0, write=5.0)


def listener_daemon(
    sources: list[Mapping[str, object]],
    *,
    times: ServeTimes = QUICK,
    env: Mapping[str, str] | None = None,
    **top: object,
) -> Daemon:
    """A daemon on a free port from plain data, by way of the configuration reader."""
    text = yaml.safe_dump({"listen": "127.0.0.1:0", "sources": [dict(s) for s in sources], **top})
    config, report = parse_config(text, path="listener.yaml", env=env or {})
    assert config is not None, str(report)
    return Daemon(config, World(rng=random.Random(), env=env or {}), times=times)


@asynccontextmanager
async def running_listener(
    sources: list[Mapping[str, object]],
    *,
    times: ServeTimes = QUICK,
    env: Mapping[str, str] | None = None,
    **top: object,
) -> AsyncIterator[str]:
    """Run a listener; gives its base URL."""
    daemon = listener_daemon(sources, times=times, env=env, **top)
    await daemon.start()
    try:
        yield f"http://{daemon.address}"
    finally:
        await daemon.stop()


@dataclass
class Subscriber:
    """One event stream, read in the background into plain lists."""

    events: list[KvEvent] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    last_id: str | None = None
    ended: bool = False
    broken: bool = False

    @property
    def over(self) -> bool:
        """Whether the stream has ended, properly or not."""
        return self.ended or self.broken

    def index(self) -> dict[bytes, tuple[int | None, str]]:
        """What a router would hold after these events: prefix -> (tokens, tier)."""
        held: dict[bytes, tuple[int | None, str]] = {}
        for event in self.events:
            if event.action is KvAction.PURGED:
                held.clear()
            elif event.prefix is None:
                continue
            elif event.action is KvAction.EVICTED:
                held.pop(event.prefix, None)
            else:
                warm = event.action is KvAction.OFFLOADED
                held[event.prefix] = (event.tokens, "warm" if warm else "hot")
        return held

    def actions(self) -> list[str]:
        """Names of the events so far."""
        return [event.action.value for event in self.events]


@asynccontextmanager
async def subscribed(
    base: str, backend: str, last_id: str | None = None
) -> AsyncIterator[Subscriber]:
    """Subscribe to one source until the block ends."""
    subscriber = Subscriber(last_id=last_id)
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with aiohttp.ClientSession() as session:
        response = await session.get(f"{base}/events/{backend}", headers=headers)
        assert response.status == 200
        task = asyncio.get_running_loop().create_task(_read(response, subscriber))
        try:
            yield subscriber
        finally:
            task.cancel()
            await asyncio.wait([task])
            response.close()


async def _read(response: aiohttp.ClientResponse, subscriber: Subscriber) -> None:
    parser = SseParser()
    try:
        async for data in response.content.iter_any():
            subscriber.raw += data
            for item in parser.feed(data):
                if isinstance(item, SseComment):
                    subscriber.comments.append(item.text)
                else:
                    subscriber.events.append(decode(item.event, item.data))
                    subscriber.last_id = item.id or subscriber.last_id
        subscriber.ended = True
    except aiohttp.ClientError:
        subscriber.broken = True


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until ``condition()`` holds; fails with it after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"did not come true within {seconds} s") from None


async def source_row(base: str, backend: str) -> dict[str, object]:
    """One source's row of ``GET /sources``."""
    async with aiohttp.ClientSession() as session, session.get(f"{base}/sources") as response:
        body = await response.json()
    return next(row for row in body["sources"] if row["backend_name"] == backend)


async def metric(base: str, line: str) -> float:
    """The value of one sample, named exactly as in the exposition."""
    async with aiohttp.ClientSession() as session, session.get(f"{base}/metrics") as response:
        text = await response.text()
    for sample in text.splitlines():
        name, _, value = sample.rpartition(" ")
        if name == line:
            return float(value)
    raise AssertionError(f"no sample {line}")
