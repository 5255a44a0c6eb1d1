"""The tasks of one source: asking, failing engines, publishing what comes due, settling."""

import asyncio
from array import array

import pytest

from continuum_kv_listener.attribution import CalibrationState
from continuum_kv_listener.attribution_types import (
    AttributionMode,
    Completion,
    PathVerdict,
    UnattributedReason,
)
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.chain_stats import Unattributed
from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.engine_events import RawBatch, Stored
from continuum_kv_listener.engine_watch import EngineVitals
from continuum_kv_listener.intake import Intake, IntakeSettings
from continuum_kv_listener.lane import Lane
from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.pipeline import Pipeline
from continuum_kv_listener.reannounce import Vouching
from continuum_kv_listener.source_runner import BAD_PATH_SECONDS, SourceParts, SourceRunner
from continuum_kv_listener.sources.zmq_source import LinkDown, LinkUp, ZmqEndpointSettings
from continuum_kv_listener.stream import EventStream
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from continuum_shared.tasks import Supervisor
from support.kv_publisher import Encoding, batch, stored
from support.listener_rig import until

KEYS = [PrefixKey(bytes([n]) * 32) for n in range(9)]


class Link:
    """A source that gives what the test puts in."""

    settings = ZmqEndpointSettings(name="s", endpoint="tcp://h:1", mode=ZmqMode.CONNECT)
    ever_connected = True
    last_error = refused = None
    peers = 1

    def __init__(self) -> None:
        self.items: asyncio.Queue[list[object]] = asyncio.Queue()

    async def receive(self, timeout=None):
        return await self.items.get()

    def close(self) -> None:
        pass


class Judge:
    """Answers every question with the key of its first token, unless told to fail."""

    def __init__(self) -> None:
        self.ready = True
        self.next_calibration: float | None = None
        self.calibrations = 0
        self.asked: list[float] = []
        self.faults: list[Exception | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.together = self.most_together = 0

    @property
    def state(self) -> CalibrationState:
        return CalibrationState(calibrated=self.ready, attribution=AttributionMode.PROBE)

    def engine_restarted(self, now: float) -> None:
        self.next_calibration = now

    async def calibrate(self, now: float) -> CalibrationState:
        self.calibrations += 1
        self.ready, self.next_calibration = True, None
        return self.state

    async def judge(self, question, now):
        self.asked.append(now)
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        await self.gate.wait()
        self.together -= 1
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        key = KEYS[question.tokens[0]]
        return PathVerdict(completions=(Completion(block_index=0, keys=(key,)),), done=True)


class Health:
    def __init__(self) -> None:
        self.good = True
        self.calls = 0

    async def health(self) -> bool:
        self.calls += 1
        return self.good


class Vitals:
    """What the engine's metrics say."""

    def __init__(self) -> None:
        self.page: EngineVitals | None = None

    async def read(self) -> EngineVitals | None:
        return self.page


class Rig:
    def __init__(self, *, interval: float = 1000.0) -> None:
        self.skew = 0.0
        loop = asyncio.get_running_loop()
        self.clock = lambda: loop.time() + self.skew
        self.metrics = Metrics()
        families = ListenerMetrics(self.metrics)
        metrics = families.intake("s")
        self.link, self.judge, self.health = Link(), Judge(), Health()
        self.vitals = Vitals()
        self.pipeline = Pipeline(
            engine="vllm",
            tracker=ChainTracker(),
            metrics=metrics,
            clock=self.clock,
            on_restart=self.judge.engine_restarted,
        )
        self.stream = EventStream(
            epoch="e",
            max_prefix_length=1024,
            snapshot=self.pipeline.snapshot,
            metrics=families.stream("s"),
        )
        self.pipeline.publish_to(self.stream)
        intake = Intake(
            IntakeSettings(join_seconds=0),
            source=self.link,
            replay=None,
            sink=self.pipeline,
            metrics=metrics,
            clock=self.clock,
        )
        lane = Lane(
            link=self.link,
            intake=intake,
            pipeline=self.pipeline,
            vouching=Vouching(interval, self.clock()),
        )
        parts = SourceParts(
            name="s",
            engine="vllm",
            lanes=(lane,),
            stream=self.stream,
            judge=self.judge,
            health=self.health,
            vitals=self.vitals,
            metrics=metrics,
        )
        self.lane = lane
        self.runner = SourceRunner(parts, reannounce_interval=interval, clock=self.clock)
        self.supervisor = Supervisor("test")
        self.seq = 0

    def start(self) -> None:
        self.runner.start(self.supervisor)

    def store(self, n: int, blocks: int = 1) -> None:
        """A chain of its own whose key is KEYS[n]."""
        hashes = [n * 100 + block for block in range(blocks)]
        payload = batch([stored(Encoding.MAP, hashes, None, [n] * 16 * blocks)])
        self.link.items.put_nowait([RawBatch(source="s", rank=0, seq=self.seq, payload=payload)])
        self.seq += 1

    def live(self) -> list[PrefixKey]:
        return sorted(key for key, _, _ in self.pipeline.tracker.snapshot())

    async def close(self) -> None:
        await self.supervisor.stop()


@pytest.fixture
async def rig():
    made = Rig()
    yield made
    await made.close()


async def test_chains_are_attributed_and_published(rig):
    rig.start()
    rig.link.items.put_nowait([LinkUp(session=1)])
    rig.store(1)
    rig.store(2)
    await until(lambda: rig.live() == KEYS[1:3])
    assert rig.stream.last_seq == 2
    facts = rig.runner.facts(wall=1_800_000_000.0)
    assert facts.link.connected
    assert facts.order.last_seq == 1
    assert facts.order.last_event_at is not None
    assert facts.order.last_event_at.startswith("2027-01-15T0")
    assert facts.stats.prefixes == 2


async def test_a_slow_engine_does_not_hold_up_tracking_and_questions_are_bounded(rig):
    rig.judge.gate.clear()
    rig.start()
    for n in range(1, 9):
        rig.store(n)
    await until(lambda: rig.pipeline.tracker.stats.blocks == 8)
    await until(lambda: rig.judge.together == 4)
    assert rig.stream.last_seq == 0
    rig.judge.gate.set()
    await until(lambda: rig.live() == KEYS[1:9])
    assert rig.judge.most_together == 4


async def test_an_engine_that_is_down_is_asked_again_soon(rig):
    rig.judge.faults = [EngineError(EngineFault.UNREACHABLE, "/detokenize")]
    rig.start()
    rig.store(1)
    await until(lambda: rig.runner.engine_fault is EngineFault.UNREACHABLE)
    await until(lambda: rig.live() == [KEYS[1]])
    assert rig.runner.engine_fault is None
    assert len(rig.judge.asked) == 2
    assert 0.1 <= rig.judge.asked[1] - rig.judge.asked[0] < 2.0


async def test_a_path_that_the_engine_refuses_does_not_hold_up_the_others(rig):
    rig.judge.faults = [EngineError(EngineFault.UNSUPPORTED, "/detokenize", 400)]
    rig.start()
    rig.store(1)
    await until(lambda: rig.judge.asked)
    rig.store(2)
    await until(lambda: rig.live() == [KEYS[2]])
    assert len(rig.judge.asked) == 2
    rig.skew += BAD_PATH_SECONDS + 1
    rig.store(3)
    await until(lambda: rig.live() == KEYS[1:4])


async def test_a_crash_while_judging_is_counted_and_the_path_asked_again(rig):
    rig.judge.faults = [RuntimeError("a bug")]
    rig.start()
    rig.store(1)
    await until(lambda: rig.supervisor.crashes == 1)
    assert rig.pipeline.tracker.stats.questions_open == 0
    rig.skew += BAD_PATH_SECONDS + 1
    rig.store(2)
    await until(lambda: rig.live() == KEYS[1:3])


async def test_nothing_is_asked_before_the_template_is_known(rig):
    rig.judge.ready = False
    rig.start()
    rig.store(1)
    await until(lambda: rig.pipeline.tracker.stats.blocks == 1)
    await asyncio.sleep(0.1)
    assert rig.judge.asked == []
    rig.judge.next_calibration = rig.clock()
    await until(lambda: rig.live() == [KEYS[1]])
    assert rig.judge.calibrations == 1


async def test_growth_is_coalesced_and_then_published_without_another_event(rig):
    rig.start()
    rig.store(1)
    await until(lambda: rig.stream.last_seq == 1)
    for depth in range(1, 6):
        event = Stored(
            hashes=(100 + depth,),
            parent=99 + depth,
            tokens=array("I", [1] * 16),
            block_size=16,
        )
        rig.pipeline.tracker.apply(event, rig.clock())
    rig.pipeline.caught_up()
    await until(lambda: rig.pipeline.tracker.snapshot() == [(KEYS[1], 96, False)], seconds=2)
    assert rig.stream.last_seq == 2


async def test_settled_waits_for_the_first_contact_and_its_questions(rig):
    rig.judge.gate.clear()
    rig.start()
    settled = asyncio.get_running_loop().create_task(rig.runner.settled(5.0))
    rig.link.items.put_nowait([LinkUp(session=1)])
    rig.store(1)
    await until(lambda: rig.judge.together == 1)
    await asyncio.sleep(0.1)
    assert not settled.done()
    rig.judge.gate.set()
    await settled
    assert rig.live() == [KEYS[1]]


async def test_settled_gives_up_in_time(rig):
    rig.start()
    async with asyncio.timeout(2):
        await rig.runner.settled(0.1)


async def test_live_prefixes_are_told_again_while_the_source_can_vouch():
    rig = Rig(interval=0.4)
    try:
        rig.start()
        rig.link.items.put_nowait([LinkUp(session=1)])
        rig.store(1)
        subscription = rig.stream.subscribe(None)
        await until(lambda: b"cache_created" in subscription.take())
        await until(lambda: b"cache_created" in subscription.take(), seconds=2)
        assert rig.stream.last_seq == 1
        assert rig.health.calls > 0
        rig.health.good = False
        await until(lambda: not rig.lane.vouching.holds(rig.clock()), seconds=3)
        subscription.take()
        await asyncio.sleep(0.6)
        assert subscription.take() == b""
    finally:
        await rig.close()


async def test_a_new_calibration_asks_again_what_fitted_nothing(rig):
    right = rig.judge.judge

    async def lost(question, now):
        return PathVerdict(done=True, reason=UnattributedReason.NO_MATCH)

    rig.judge.judge = lost
    rig.start()
    rig.store(1)
    stats = rig.pipeline.tracker
    await until(lambda: stats.stats.unattributed == {Unattributed.NO_MATCH: 1})
    rig.judge.judge = right
    rig.judge.next_calibration = 0.0
    await until(lambda: rig.live() == [KEYS[1]])
    assert rig.judge.calibrations == 1


async def test_a_new_start_time_purges_once(rig):
    """Without a replay endpoint, and although the connection never broke."""
    rig.vitals.page = EngineVitals(started_at=100.0)
    rig.start()
    rig.link.items.put_nowait([LinkUp(session=1)])
    rig.store(1)
    await until(lambda: rig.live() == [KEYS[1]])
    rig.vitals.page = EngineVitals(started_at=200.0)
    rig.runner._wants_look.set()
    await until(lambda: rig.live() == [])
    assert rig.lane.intake.restarts.total == 1
    calls = rig.health.calls
    rig.runner._wants_look.set()
    await until(lambda: rig.health.calls > calls)
    assert rig.lane.intake.restarts.total == 1


async def test_a_restart_that_the_sequence_told_is_not_told_again_by_the_start_time(rig):
    rig.vitals.page = EngineVitals(started_at=100.0)
    rig.start()
    rig.link.items.put_nowait([LinkUp(session=1)])
    rig.store(1)
    rig.store(2)
    await until(lambda: rig.live() == KEYS[1:3])
    rig.seq = 0
    rig.store(3)  # backwards: the new process is known by its number
    await until(lambda: rig.live() == [KEYS[3]])
    rig.vitals.page = EngineVitals(started_at=200.0)
    calls = rig.health.calls
    rig.runner._wants_look.set()
    await until(lambda: rig.health.calls > calls)
    await asyncio.sleep(0)
    assert rig.live() == [KEYS[3]]
    assert rig.lane.intake.restarts.total == 1


async def test_a_reconnect_is_confirmed_by_the_same_start_time(rig):
    rig.vitals.page = EngineVitals(started_at=100.0)
    rig.start()
    rig.link.items.put_nowait([LinkUp(session=1)])
    rig.store(1)
    await until(lambda: rig.live() == [KEYS[1]])
    rig.health.good = False
    rig.link.items.put_nowait([LinkDown(), LinkUp(session=2)])
    await until(lambda: not rig.lane.intake.vouched)
    rig.health.good = True
    rig.runner._wants_look.set()
    await until(lambda: rig.lane.intake.vouched)
    assert rig.live() == [KEYS[1]]


async def test_copies_beyond_the_engines_blocks_are_dropped(rig):
    rig.start()
    rig.link.items.put_nowait([LinkUp(session=1)])
    for _ in range(4):
        rig.store(1)  # reported again and again, as kv_cache_report_mode full does
    await until(lambda: rig.lane.intake.last_seq == 3)
    rig.vitals.page = EngineVitals(gpu_blocks={0: 2})
    rig.runner._wants_look.set()
    await until(lambda: rig.runner.stats.drifted_copies_total == 2)
    await until(lambda: rig.live() == [KEYS[1]])
