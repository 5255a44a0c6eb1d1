"""A whole source on virtual time between the oracle's engine and readers of its stream.

Everything from the raw batch to the bytes of the stream is the product's own; the socket, the
replay endpoint, the engine's HTTP side and the clock are the test's.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from continuum_kv_listener.attribution import AttributionMode, CalibrationState
from continuum_kv_listener.attribution_types import PathVerdict, Question
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.engine_events import RawBatch
from continuum_kv_listener.engine_watch import EngineVitals
from continuum_kv_listener.intake import Intake, IntakeSettings
from continuum_kv_listener.lane import Lane
from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.pipeline import OnGap, Pipeline
from continuum_kv_listener.rank_merge import RankMerge
from continuum_kv_listener.reannounce import Vouching
from continuum_kv_listener.replay import ReplayError, ReplayFault
from continuum_kv_listener.source_runner import SourceParts, SourceRunner
from continuum_kv_listener.sources.zmq_source import (
    LinkDown,
    LinkUp,
    SourceItem,
    ZmqEndpointSettings,
)
from continuum_kv_listener.stream import EventStream, Subscription
from continuum_shared.kv_event import KvAction, decode
from continuum_shared.metrics import Metrics
from continuum_shared.sse import SseComment, SseParser
from continuum_shared.tasks import Supervisor
from support.oracle_codecs import Encode
from support.oracle_engine import Held, OracleEngine, judge

INTERVAL = 1.0
"""Of re-announcement, in seconds; a router's entries live for three of them."""
TTL = 3 * INTERVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How much of a history can be recovered. ``buffer`` batches can be replayed (0: there is no
    replay endpoint); ``fails`` is how often a replay fails or has a hole."""

    buffer: int
    fails: float
    on_gap: OnGap = OnGap.SUSPECT
    ranks: int = 1
    capacity: int = 12
    lower: int = 0
    tells_blocks: bool = False


class Feed:
    """One rank: an engine, its numbered batches and its replay buffer; the listener's link to it
    and its replay client."""

    settings = ZmqEndpointSettings(name="s", endpoint="tcp://h:1", mode=ZmqMode.CONNECT)
    ever_connected = True
    last_error = refused = None
    peers = 1

    def __init__(self, rng: random.Random, weather: Weather, encode: Encode) -> None:
        self.engine = OracleEngine(rng, weather.capacity, weather.lower)
        self.up = False
        self.unseen = False
        """Whether batches were lost that no later one has made known as yet."""
        self._rng = rng
        self._weather = weather
        self._encode = encode
        self._items: asyncio.Queue[SourceItem] = asyncio.Queue()
        self._sent: list[RawBatch] = []
        self._session = 0
        self._lose_next = 0

    def connect(self) -> None:
        self._session += 1
        self.up = True
        self._items.put_nowait(LinkUp(session=self._session))

    def disconnect(self) -> None:
        self.up = False
        self._items.put_nowait(LinkDown())

    def restart(self) -> None:
        """Another process: an empty cache, numbers from 0."""
        self.engine = OracleEngine(self._rng, self._weather.capacity, self._weather.lower)
        self._sent = []
        self._lose_next = 0

    def lose(self, batches: int) -> None:
        """The next batches do not arrive."""
        self._lose_next = batches

    def repeat(self) -> None:
        """The newest batch arrives twice."""
        if self._sent and self.up and not self.unseen:
            self._items.put_nowait(self._sent[-1])

    def publish(self) -> bool:
        """Send what happened as one batch; whether it arrived (True when nothing happened)."""
        events, self.engine.pending = self.engine.pending, []
        if not events:
            return True
        batch = RawBatch(
            source="s", rank=0, seq=len(self._sent), payload=self._encode(events, self._rng)
        )
        self._sent.append(batch)
        if self._lose_next or not self.up:
            self._lose_next = max(0, self._lose_next - 1)
            self.unseen = True
            return False
        self._items.put_nowait(batch)
        self.unseen = False
        return True

    async def receive(self, timeout: float | None = None) -> list[SourceItem]:
        try:
            async with asyncio.timeout(timeout):
                items = [await self._items.get()]
        except TimeoutError:
            return []
        while not self._items.empty() and self._rng.random() < 0.7:
            items.append(self._items.get_nowait())
        return items

    def close(self) -> None:
        pass

    @asynccontextmanager
    async def ask(self, start: int) -> AsyncIterator[AsyncIterator[list[RawBatch]]]:
        yield self._answers(start)

    async def _answers(self, start: int) -> AsyncIterator[list[RawBatch]]:
        weather = self._weather
        answers = [batch for batch in self._sent[-weather.buffer :] if batch.seq >= start]
        bad = self._rng.random() < weather.fails
        if bad and answers and self._rng.random() < 0.4:
            answers.pop(self._rng.randrange(len(answers)))  # a ROUTER's full pipe drops one
            bad = False
        fault_after = self._rng.randrange(len(answers) + 1) if bad else None
        for sent, batch in enumerate(answers):
            if sent == fault_after:
                raise ReplayError(ReplayFault.CUT_SHORT)
            await asyncio.sleep(0.001)
            yield [batch]
        if bad:
            raise ReplayError(ReplayFault.NO_ANSWER)


class Judge:
    """Answers after a while, and at times not at all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.ready = True
        self.next_calibration: float | None = None
        self.state = CalibrationState(calibrated=True, attribution=AttributionMode.PROBE)

    async def calibrate(self, now: float) -> CalibrationState:
        return self.state

    async def judge(self, question: Question, now: float) -> PathVerdict:
        await asyncio.sleep(self._rng.choice((0.001, 0.001, 0.01, 0.1)))
        if self._rng.random() < 0.05:
            raise EngineError(EngineFault.TIMEOUT, "/detokenize")
        return judge(question)


class Reader:
    """A router's index of one backend: entries that lapse, refreshed by what is told again."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._parser = SseParser()
        self._entries: dict[bytes, tuple[int, bool, float]] = {}

    def read(self, now: float) -> Held:
        """What is known after everything that can be read now."""
        while data := self._subscription.take():
            for item in self._parser.feed(data):
                if not isinstance(item, SseComment):
                    self._apply(item.event, item.data, now)
        return {
            key: (tokens, warm)  # type: ignore[misc]
            for key, (tokens, warm, until) in self._entries.items()
            if until > now
        }

    def _apply(self, name: str, data: str, now: float) -> None:
        event = decode(name, data)
        if event.action is KvAction.PURGED:
            self._entries.clear()
        elif event.action is KvAction.EVICTED:
            self._entries.pop(event.prefix, None)
        else:
            warm = event.action is KvAction.OFFLOADED
            self._entries[event.prefix] = (event.tokens or 1, warm, now + TTL)


class OracleRig:
    """One source with its feeds; ``async with`` runs it on the running (virtual) loop."""

    def __init__(self, weather: Weather, engine: str, encode: Encode, rng: random.Random) -> None:
        clock = asyncio.get_running_loop().time
        self.weather = weather
        self.started_at = 1_000_000.0
        self.feeds = [Feed(rng, weather, encode) for _ in range(weather.ranks)]
        families = ListenerMetrics(Metrics())
        metrics = families.intake("s")
        self.pipelines = [
            Pipeline(
                engine=engine,
                tracker=ChainTracker(doubt_seconds=TTL),
                metrics=metrics,
                clock=clock,
                on_restart=lambda _: None,
                on_gap=weather.on_gap,
            )
            for _ in self.feeds
        ]
        merge = RankMerge(self.pipelines) if weather.ranks > 1 else None
        snapshot = self.pipelines[0].snapshot if merge is None else merge.snapshot
        self.stream = EventStream(
            epoch="e",
            max_prefix_length=1024,
            snapshot=snapshot,
            metrics=families.stream("s"),
            history=1_000,
        )
        (self.pipelines[0] if merge is None else merge).publish_to(self.stream)
        lanes = [
            Lane(
                rank=rank,
                link=feed,
                intake=Intake(
                    IntakeSettings(replay_pause=0.2, replay_pause_max=1.0),
                    source=feed,
                    replay=feed if weather.buffer else None,
                    sink=pipeline,
                    metrics=metrics,
                    clock=clock,
                ),
                pipeline=pipeline,
                vouching=Vouching(INTERVAL, clock()),
            )
            for rank, (feed, pipeline) in enumerate(zip(self.feeds, self.pipelines, strict=True))
        ]
        parts = SourceParts(
            name="s",
            engine=engine,
            lanes=tuple(lanes),
            merge=merge,
            stream=self.stream,
            judge=Judge(rng),
            health=self,
            vitals=self,
            metrics=metrics,
        )
        self.lanes = lanes
        self.runner = SourceRunner(parts, reannounce_interval=INTERVAL, clock=clock)
        self._supervisor = Supervisor("oracle")

    async def __aenter__(self) -> "OracleRig":
        self.runner.start(self._supervisor)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._supervisor.stop()

    async def health(self) -> bool:
        return True

    async def read(self) -> EngineVitals | None:
        blocks = dict.fromkeys(range(len(self.feeds)), self.weather.capacity)
        return EngineVitals(
            started_at=self.started_at, gpu_blocks=blocks if self.weather.tells_blocks else {}
        )

    def restart(self, feed: Feed) -> None:
        """Ranks share a process: all restart, all connections break."""
        del feed
        self.started_at += 1.0
        for each in self.feeds:
            was_up = each.up
            if was_up:
                each.disconnect()
            each.restart()
            if was_up:
                each.connect()

    def reader(self) -> Reader:
        """A fresh subscriber."""
        return Reader(self.stream.subscribe(None))

    def truth(self) -> Held:
        """What all ranks hold together."""
        held: Held = {}
        for key, (tokens, warm) in self._all():
            best = held.get(key)
            if best is None or (best[1], -best[0]) > (warm, -tokens):
                held[key] = (tokens, warm)
        return held

    def _all(self) -> Iterator[tuple]:
        for feed in self.feeds:
            yield from feed.engine.truth().items()


Step = Callable[[OracleRig, Feed, random.Random], None]


def choose(rng: random.Random, steps: Sequence[tuple[int, Step]]) -> Step:
    """One of the steps, by weight."""
    return rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
