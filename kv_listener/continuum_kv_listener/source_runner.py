"""The tasks of one source: intake, publishing what comes due, asking for text, re-announcing.

The order of the engine's batches is kept by one task (``intake``); the slow step, asking the
engine for text, runs beside it and hands its answers to the tracker as proposals. A dead engine
delays attribution and nothing else.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from continuum_kv_listener.attribution import CalibrationState
from continuum_kv_listener.attribution_types import PathVerdict, Question
from continuum_kv_listener.chain_stats import ChainStats
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.engine_watch import EngineVitals, Start, StartTimes
from continuum_kv_listener.lane import (
    Lane,
    all_stats,
    drop_counts,
    link_facts,
    order_facts,
    sure_lanes,
)
from continuum_kv_listener.listener_metrics import IntakeMetrics, QuestionResult
from continuum_kv_listener.pipeline import Pipeline
from continuum_kv_listener.rank_merge import RankMerge
from continuum_kv_listener.reannounce import Reannouncer, in_slots
from continuum_kv_listener.sources_page import SourceFacts
from continuum_kv_listener.stream import EventStream
from continuum_shared.backoff import Backoff
from continuum_shared.kv_event import KvEvent
from continuum_shared.logs import fields
from continuum_shared.prefix_key import PrefixKey
from continuum_shared.tasks import Supervisor

log = logging.getLogger("continuum_kv_listener.source_runner")

QUESTIONS_AT_ONCE = 4
LOOK_AGAIN_SECONDS = 0.5
"""How often waiting askers look for paths whose time to be asked again has come."""
MIN_PUBLISH_SECONDS = 0.02
MAX_HEALTH_SECONDS = 10.0
BAD_PATH_SECONDS = 30.0
"""Before a path whose own text the engine refuses is asked again."""
_ABOUT_THE_PATH = (EngineFault.UNSUPPORTED, EngineFault.BAD_ANSWER, EngineFault.TOO_LARGE)


class Judge(Protocol):
    """Finds prefix keys (``attribution.Attributor``)."""

    @property
    def state(self) -> CalibrationState: ...

    @property
    def ready(self) -> bool: ...

    @property
    def next_calibration(self) -> float | None: ...

    async def calibrate(self, now: float) -> CalibrationState: ...

    async def judge(self, question: Question, now: float) -> PathVerdict: ...


class HealthProbe(Protocol):
    """Says whether the engine answers (``engine_client.EngineClient``)."""

    async def health(self) -> bool: ...


class VitalsReader(Protocol):
    """Reads the engine's metrics (``engine_watch.MetricsPage``)."""

    async def read(self) -> EngineVitals | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParts:
    """What the wiring made for one source: one lane, or one a data-parallel rank and their
    ``merge``."""

    name: str
    engine: str
    lanes: tuple[Lane, ...]
    merge: RankMerge | None = None
    stream: EventStream
    judge: Judge
    health: HealthProbe
    vitals: VitalsReader | None = None
    metrics: IntakeMetrics


class SourceRunner:
    """Runs one source. ``clock`` gives monotonic seconds; times in this class are of that clock."""

    def __init__(
        self, parts: SourceParts, *, reannounce_interval: float, clock: Callable[[], float]
    ) -> None:
        self.parts = parts
        self.started_at = clock()
        self._starts = StartTimes()
        self._start_read_at = self.started_at
        self.engine_fault: EngineFault | None = None
        self._clock = clock
        self._interval = reannounce_interval
        self._reannouncer = Reannouncer(reannounce_interval, self.started_at)
        self._engine_backoff = Backoff(0.2, 2.0)
        self._ask_not_before = 0.0
        self._wants_work = asyncio.Event()
        self._wants_look = asyncio.Event()
        for lane in parts.lanes:
            lane.pipeline.work_changed = self._wants_work
            lane.intake.watch(self._wants_look.set)
        self._idle = 0
        self._turn = 0
        self._settled = False

    def start(self, supervisor: Supervisor) -> None:
        """Start the tasks; stopping the supervisor ends them."""
        loops: list[tuple[str, Callable[[], Coroutine[object, object, None]]]] = [
            *[(f"intake-{lane.rank}", lane.intake.run) for lane in self.parts.lanes],
            *[
                (f"publish-{lane.rank}", partial(self._publish_due, lane.pipeline))
                for lane in self.parts.lanes
            ],
            ("reannounce", self._reannounce),
            ("engine", self._watch_engine),
            ("calibrate", self._calibrate),
            *[(f"ask-{n}", self._ask) for n in range(QUESTIONS_AT_ONCE)],
        ]
        for task, loop in loops:
            supervisor.supervise(f"{self.parts.name}:{task}", loop, Backoff(0.1, 5.0))

    @property
    def stream(self) -> EventStream:
        """The source's records."""
        return self.parts.stream

    @property
    def stats(self) -> ChainStats:
        """Counts of the source's block graphs."""
        merge = self.parts.merge
        return all_stats(self.parts.lanes, None if merge is None else merge.prefixes)

    def facts(self, wall: float) -> SourceFacts:
        """What ``GET /sources`` says; ``wall`` is the present in Unix seconds."""
        parts, now = self.parts, self._clock()
        return SourceFacts(
            backend_name=parts.name,
            engine=parts.engine,
            uptime=now - self.started_at,
            link=link_facts(parts.lanes, now),
            order=order_facts(parts.lanes, now, wall),
            stats=self.stats,
            calibration=parts.judge.state,
            engine_fault=None if self.engine_fault is None else self.engine_fault.value,
            engine_silent=parts.lanes[0].vouching.engine_silent_for(now),
            vouches=all(lane.vouching.holds(now) for lane in parts.lanes),
            starts_unclear=self._starts.unclear,
            drops=drop_counts(parts.lanes),
        )

    async def settled(self, timeout: float) -> None:
        """Wait until the source's first contact and its open questions are done.

        A subscriber that comes right after a restart so gets the rebuilt state in one swap instead
        of an empty one. Nobody waits any more ``timeout`` seconds after the start. Once settled, a
        source stays so.
        """
        give_up = self.started_at + timeout
        while not (self._settled or self.parts.stream.closed) and self._clock() < give_up:
            await asyncio.sleep(0.02)
            idle = self._idle == QUESTIONS_AT_ONCE and not self._wants_work.is_set()
            contact = all(lane.intake.settled.is_set() for lane in self.parts.lanes)
            self._settled = contact and self.parts.judge.ready and idle

    async def _publish_due(self, pipeline: Pipeline) -> None:
        while True:
            pipeline.flush()
            now = self._clock()
            due = pipeline.tracker.next_due(now)
            if due is not None and due <= now:
                # Everything due was published: what is left waits for an asker.
                self._wants_work.set()
            pipeline.due_changed.clear()
            wait = None if due is None else max(MIN_PUBLISH_SECONDS, due - now)
            await _set_within(pipeline.due_changed, wait)

    async def _ask(self) -> None:
        while True:
            now = self._clock()
            may_ask = self.parts.judge.ready and now >= self._ask_not_before
            taken = self._next_question(now) if may_ask else None
            if taken is not None:
                await self._answer(*taken)
            else:
                self._wants_work.clear()
                with self._idling():
                    await _set_within(self._wants_work, LOOK_AGAIN_SECONDS)

    def _next_question(self, now: float) -> tuple[Pipeline, Question] | None:
        """Of each lane in turn, so that a busy rank does not starve the others."""
        lanes = self.parts.lanes
        for _ in lanes:
            self._turn = (self._turn + 1) % len(lanes)
            pipeline = lanes[self._turn].pipeline
            questions = pipeline.tracker.questions(1, now)
            if questions:
                return pipeline, questions[0]
        return None

    async def _answer(self, pipeline: Pipeline, question: Question) -> None:
        """Bring one answer back; whatever happens, the path is answered or asked again."""
        parts = self.parts
        again_at = self._clock() + BAD_PATH_SECONDS
        answered = False
        try:
            verdict = await parts.judge.judge(question, self._clock())
            pipeline.tracker.answer(question.node, verdict, self._clock())
            answered = True
            self._engine_answered()
        except EngineError as error:
            if self.engine_fault is None:
                log.warning(
                    "Engine gives no text",
                    extra=fields(source=parts.name, fault=error.fault.value),
                )
            self.engine_fault = error.fault
            if error.fault not in _ABOUT_THE_PATH:
                again_at = self._engine_failed()
        finally:
            if not answered:
                pipeline.tracker.retry(question.node, again_at)
            parts.metrics.asked(QuestionResult.ANSWERED if answered else QuestionResult.FAILED)
        pipeline.caught_up()

    def _engine_answered(self) -> None:
        self.engine_fault = None
        self._engine_backoff.reset()

    def _engine_failed(self) -> float:
        """One failure stops all askers for a while; several at once count as one."""
        now = self._clock()
        if now >= self._ask_not_before:
            self._ask_not_before = now + self._engine_backoff.next()
        return self._ask_not_before

    @contextmanager
    def _idling(self) -> Iterator[None]:
        self._idle += 1
        try:
            yield
        finally:
            self._idle -= 1

    async def _reannounce(self) -> None:
        while True:
            await asyncio.sleep(self._reannouncer.wait(self._clock()))
            now = self._clock()
            slots = self._reannouncer.due(now)
            sure = self._sure(now)
            if slots:
                self.parts.stream.reannounce(in_slots(sure, slots))

    def _sure(self, now: float) -> Iterable[KvEvent]:
        """Live prefixes that lanes with a live engine hold, suspects left out (C17, C29)."""
        parts = self.parts
        vouching = {lane.rank for lane in sure_lanes(parts.lanes, now)}
        doubted: list[frozenset[PrefixKey] | None] = []
        for lane in parts.lanes:
            lane.pipeline.flush()
            doubted.append(lane.pipeline.tracker.doubted() if lane.rank in vouching else None)
        if parts.merge is not None:
            return parts.merge.sure(doubted)
        doubts = doubted[0]
        if doubts is None:
            return ()
        return (each for each in parts.lanes[0].pipeline.snapshot() if each.prefix not in doubts)

    async def _watch_engine(self) -> None:
        """Is it alive, is it the same process, and how many blocks does it have?"""
        pause = min(MAX_HEALTH_SECONDS, self._interval / 4)
        parts = self.parts
        while True:
            asked_at = self._clock()
            connections = [lane.intake.connections for lane in parts.lanes]
            if await parts.health.health():
                now = self._clock()
                for lane in parts.lanes:
                    lane.vouching.healthy(now)
                self._look_at(await self._vitals(), connections, asked_at)
            await _set_within(self._wants_look, pause)
            self._wants_look.clear()

    async def _vitals(self) -> EngineVitals:
        page = self.parts.vitals
        return (await page.read() if page is not None else None) or EngineVitals()

    def _look_at(self, vitals: EngineVitals, connections: Sequence[int], asked_at: float) -> None:
        """``connections`` are those of the lanes from before the engine was asked.

        What is known is of the new process if it was verified after the old one last answered: a
        restart breaks connections, and each new one is verified.
        """
        start = self._starts.note(vitals.started_at)
        lanes = self.parts.lanes
        for lane, connection in zip(lanes, connections, strict=True):
            intake = lane.intake
            if start is not Start.NEW:
                if intake.connections == connection:
                    intake.same_process()
            elif not intake.vouched or intake.verified_at <= self._start_read_at:
                intake.other_process()
            blocks = vitals.blocks_of(lane.rank, len(lanes))
            if blocks is not None:
                lane.pipeline.fit(blocks)
        if start is not Start.UNKNOWN:
            self._start_read_at = asked_at

    async def _calibrate(self) -> None:
        judge = self.parts.judge
        while True:
            due = judge.next_calibration
            now = self._clock()
            if due is not None and due <= now:
                self._tell_calibration(judge.state, await judge.calibrate(now))
                if judge.ready and judge.next_calibration is None:  # learnt, not merely kept
                    for lane in self.parts.lanes:
                        lane.pipeline.tracker.ask_again(self._clock())
                self._wants_work.set()
            else:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def _tell_calibration(self, before: CalibrationState, after: CalibrationState) -> None:
        """One line when it begins or ceases to work; ``GET /sources`` has the present state."""
        extra = fields(source=self.parts.name, warnings=list(after.warnings))
        if after.limits and after.limits != before.limits:
            log.warning("Some prompts cannot be attributed; consider salt echo", extra=extra)
        if after.calibrated and not before.calibrated:
            log.info("Prompt format learnt", extra=extra)
        elif after.warnings != before.warnings and not after.calibrated:
            log.warning("Prompt format not learnt", extra=extra)


async def _set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for ``event``, at most ``seconds``; whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
