"""The tasks of one source: intake, publishing what comes due, asking for text, re-announcing.

The order of the engine's batches is kept by one task (``intake``); the slow step, asking the
engine for text, runs beside it and hands its answers to the tracker as proposals. A dead engine
delays attribution and nothing else.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from continuum_kv_listener.attribution import CalibrationState
from continuum_kv_listener.attribution_types import PathVerdict, Question
from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.intake import Intake
from continuum_kv_listener.listener_metrics import IntakeMetrics, QuestionResult
from continuum_kv_listener.pipeline import Pipeline
from continuum_kv_listener.reannounce import Reannouncer, Vouching, in_slots
from continuum_kv_listener.sources.zmq_source import ZmqEndpointSettings
from continuum_kv_listener.sources_page import LinkFacts, OrderFacts, SourceFacts
from continuum_kv_listener.stream import EventStream
from continuum_shared.backoff import Backoff
from continuum_shared.logs import fields
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


class Link(Protocol):
    """What the socket says about itself (``zmq_source.ZmqSource``)."""

    @property
    def settings(self) -> ZmqEndpointSettings: ...

    @property
    def ever_connected(self) -> bool: ...

    @property
    def last_error(self) -> str | None: ...

    @property
    def refused(self) -> str | None: ...

    @property
    def peers(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParts:
    """What the wiring made for one source."""

    name: str
    engine: str
    replay_endpoint: str | None
    link: Link
    intake: Intake
    pipeline: Pipeline
    stream: EventStream
    judge: Judge
    health: HealthProbe
    metrics: IntakeMetrics


class SourceRunner:
    """Runs one source. ``clock`` gives monotonic seconds; times in this class are of that clock."""

    def __init__(
        self, parts: SourceParts, *, reannounce_interval: float, clock: Callable[[], float]
    ) -> None:
        self.parts = parts
        self.started_at = clock()
        self.vouching = Vouching(reannounce_interval, self.started_at)
        self.engine_fault: EngineFault | None = None
        self._clock = clock
        self._interval = reannounce_interval
        self._reannouncer = Reannouncer(reannounce_interval, self.started_at)
        self._engine_backoff = Backoff(0.2, 2.0)
        self._ask_not_before = 0.0
        self._wants_work = parts.pipeline.work_changed
        self._idle = 0
        self._settled = False

    def start(self, supervisor: Supervisor) -> None:
        """Start the tasks; stopping the supervisor ends them."""
        loops = [
            ("intake", self.parts.intake.run),
            ("publish", self._publish_due),
            ("reannounce", self._reannounce),
            ("health", self._watch_health),
            ("calibrate", self._calibrate),
            *[(f"ask-{n}", self._ask) for n in range(QUESTIONS_AT_ONCE)],
        ]
        for task, loop in loops:
            supervisor.supervise(f"{self.parts.name}:{task}", loop, Backoff(0.1, 5.0))

    @property
    def stream(self) -> EventStream:
        """The source's records."""
        return self.parts.stream

    def facts(self, wall: float) -> SourceFacts:
        """What ``GET /sources`` says; ``wall`` is the present in Unix seconds."""
        parts, now = self.parts, self._clock()
        return SourceFacts(
            backend_name=parts.name,
            engine=parts.engine,
            uptime=now - self.started_at,
            link=self._link_facts(now),
            order=self._order_facts(now, wall),
            stats=parts.pipeline.tracker.stats,
            calibration=parts.judge.state,
            engine_fault=None if self.engine_fault is None else self.engine_fault.value,
            engine_silent=self.vouching.engine_silent_for(now),
            vouches=self.vouching.holds(now),
            drops=parts.pipeline.drops,
        )

    def _link_facts(self, now: float) -> LinkFacts:
        link, intake = self.parts.link, self.parts.intake
        down_since = intake.down_since
        return LinkFacts(
            endpoint=link.settings.endpoint,
            binds=link.settings.mode is ZmqMode.BIND,
            topic=link.settings.topic,
            connected=intake.connected,
            ever_connected=link.ever_connected,
            down_for=None if down_since is None else now - down_since,
            last_error=link.last_error,
            refused=link.refused,
            peers=link.peers,
        )

    def _order_facts(self, now: float, wall: float) -> OrderFacts:
        intake = self.parts.intake
        at = intake.last_batch_at
        age = None if at is None else now - at
        moment = None if age is None else datetime.fromtimestamp(wall - age, UTC)
        return OrderFacts(
            last_seq=intake.last_seq,
            last_event_at=None if moment is None else moment.isoformat(timespec="milliseconds"),
            last_event_age=age,
            gaps=intake.gaps,
            lost=intake.lost,
            restarts=intake.restarts.total,
            restarts_suspicious=intake.restarts.suspicious(now),
            replay_endpoint=self.parts.replay_endpoint,
            replay_failing=intake.replay_failing,
            replay_foreign=intake.replay_foreign,
            confirmed=intake.vouched,
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
            self._settled = self.parts.intake.settled.is_set() and self.parts.judge.ready and idle

    async def _publish_due(self) -> None:
        pipeline = self.parts.pipeline
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
        tracker = self.parts.pipeline.tracker
        while True:
            now = self._clock()
            may_ask = self.parts.judge.ready and now >= self._ask_not_before
            questions = tracker.questions(1, now) if may_ask else []
            if questions:
                await self._answer(questions[0])
            else:
                self._wants_work.clear()
                with self._idling():
                    await _set_within(self._wants_work, LOOK_AGAIN_SECONDS)

    async def _answer(self, question: Question) -> None:
        """Bring one answer back; whatever happens, the path is answered or asked again."""
        parts = self.parts
        again_at = self._clock() + BAD_PATH_SECONDS
        answered = False
        try:
            verdict = await parts.judge.judge(question, self._clock())
            parts.pipeline.tracker.answer(question.node, verdict, self._clock())
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
                parts.pipeline.tracker.retry(question.node, again_at)
            parts.metrics.asked(QuestionResult.ANSWERED if answered else QuestionResult.FAILED)
        parts.pipeline.caught_up()

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
        parts = self.parts
        while True:
            await asyncio.sleep(self._reannouncer.wait(self._clock()))
            now = self._clock()
            slots = self._reannouncer.due(now)
            self.vouching.note(now, link=parts.intake.connected, process=parts.intake.vouched)
            if slots and self.vouching.holds(now):
                parts.stream.reannounce(in_slots(parts.pipeline.snapshot(), slots))

    async def _watch_health(self) -> None:
        pause = min(MAX_HEALTH_SECONDS, self._interval / 4)
        while True:
            if await self.parts.health.health():
                self.vouching.healthy(self._clock())
            await asyncio.sleep(pause)

    async def _calibrate(self) -> None:
        judge = self.parts.judge
        while True:
            due = judge.next_calibration
            now = self._clock()
            if due is not None and due <= now:
                self._tell_calibration(judge.state, await judge.calibrate(now))
                if judge.ready and judge.next_calibration is None:  # learnt, not merely kept
                    self.parts.pipeline.tracker.ask_again(self._clock())
                self._wants_work.set()
            else:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def _tell_calibration(self, before: CalibrationState, after: CalibrationState) -> None:
        """One line when it begins or ceases to work; ``GET /sources`` has the present state."""
        extra = fields(source=self.parts.name, warnings=list(after.warnings))
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
