"""Brings the batches of one source into order: live ones, replayed ones, and restarts.

Live messages wait in ZMQ's queue while a replay is read, so that everything reaches the sink in
the engine's order, exactly once, whichever way it came (design/architecture.md, section 5; anchors
5.3: live and replay take the same road). What a replay cannot bring back is counted as lost.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from continuum_kv_listener.engine_events import DropReason, RawBatch
from continuum_kv_listener.listener_metrics import IntakeMetrics, ReplayResult
from continuum_kv_listener.replay import ReplayError
from continuum_kv_listener.sequence import Anchor, RestartLog, SequenceTracker, Verdict, mark_of
from continuum_kv_listener.sources.zmq_source import LinkDown, LinkUp, SourceItem
from continuum_kv_listener.turns import Turns
from continuum_shared.backoff import Backoff
from continuum_shared.logs import fields

log = logging.getLogger("continuum_kv_listener.intake")

JOIN_SECONDS = 0.1
"""Between connecting and the first replay request: the publisher learns of us meanwhile, so that
nothing falls between the replay's end and the first live batch."""
FOREIGN_SECONDS = 60.0
"""A connection that outlives a contradicted replay by this is not that of a dying engine."""
MAX_HOLES = 32
"""Replays asked again within one recovery because an answer in the middle was missing."""


class BatchSource(Protocol):
    """Where live batches come from."""

    @property
    def ever_connected(self) -> bool: ...

    async def receive(self, timeout: float | None = None) -> list[SourceItem]: ...


class Replayer(Protocol):
    """Who can send batches again."""

    def ask(self, start: int) -> AbstractAsyncContextManager[AsyncIterator[list[RawBatch]]]: ...


class Sink(Protocol):
    """Who takes the batches, in order."""

    def batch(self, raw: RawBatch) -> Iterable[None]:
        """Take the next batch: the steps that are left to do, with turns for others in between."""

    def restarted(self) -> None:
        """The engine is a new process with an empty cache."""

    def lost(self) -> None:
        """Batches are missing for good before the next one."""

    def dropped(self, reason: DropReason) -> None:
        """A batch was not handed on."""

    def caught_up(self) -> None:
        """Everything received so far was handed over: a good moment to publish."""


class _Ended(StrEnum):
    COMPLETE = "complete"
    HOLE = "hole"
    OTHER_PROCESS = "other_process"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeSettings:
    """``max_frame_bytes`` is the largest payload that is handed on; a larger one is counted as
    ``oversized`` and its place in the sequence is kept. A replay endpoint that failed is left
    alone for ``replay_pause`` seconds, then for longer and longer.
    """

    max_frame_bytes: int = 64 * 1024 * 1024
    join_seconds: float = JOIN_SECONDS
    replay_pause: float = 5.0
    replay_pause_max: float = 300.0


class Intake:
    """Follows one source; run :meth:`run` under supervision. ``clock`` gives seconds."""

    def __init__(
        self,
        settings: IntakeSettings,
        *,
        source: BatchSource,
        replay: Replayer | None,
        sink: Sink,
        metrics: IntakeMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connected = False
        self.connections = 0
        self.down_since: float | None = clock()
        self.settled = asyncio.Event()
        self.gaps = 0
        self.lost = 0
        self.restarts = RestartLog()
        self.last_batch_at: float | None = None
        self.verified_at = clock()
        """When what is known was last shown to be of the process that is connected."""
        self.replay_failing = False
        self._foreign_since: float | None = None
        self._source = source
        self._replay = replay
        self._sink = sink
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._on_doubt: Callable[[], None] | None = None
        self._backoff = Backoff(settings.replay_pause, settings.replay_pause_max)
        self._replay_blocked_until = 0.0
        self._unsettled = False
        self._applying = False
        self._replaced = False
        self._turns = Turns(clock)
        self._sequence = SequenceTracker()

    @property
    def last_seq(self) -> int | None:
        """Number of the newest batch that was handed on."""
        return self._sequence.last

    @property
    def vouched(self) -> bool:
        """False while a reconnected engine has not been shown to be the same process."""
        return self._sequence.anchor is None

    def watch(self, on_doubt: Callable[[], None]) -> None:
        """``on_doubt`` is called when only the engine's other endpoints can tell whether a process
        that was reconnected to is the same; :meth:`same_process` or :meth:`other_process` is the
        answer. Unwatched, a source without a replay endpoint believes that it is."""
        self._on_doubt = on_doubt

    @property
    def replay_foreign(self) -> bool:
        """The replay endpoint contradicts the engine that we follow; it is not asked."""
        return self._foreign_since is not None

    async def run(self) -> None:
        """Follow the source until cancelled."""
        while True:
            items = await self._source.receive(self._patience())
            self._turns.begin()
            if self._retry_due():
                await self._settle()
            for item in items:
                match item:
                    case LinkUp():
                        await self._link_up()
                    case LinkDown():
                        self._link_down()
                    case RawBatch():
                        await self._live(item)
                        await self._turns.breathe()
            self._sink.caught_up()
            await asyncio.sleep(0)

    def _patience(self) -> float | None:
        """How long to wait for the next item before a failed replay is tried again."""
        if not (self._unsettled and self.connected):
            return None
        return max(0.0, self._replay_blocked_until - self._clock())

    def _retry_due(self) -> bool:
        patience = self._patience()
        return patience is not None and patience <= 0

    async def _link_up(self) -> None:
        self.connections += 1
        if self._replay is not None:
            self._foreign_since = None
        if not self.connected:
            self._metrics.connected.inc()
        self.connected = True
        self.down_since = None
        self._sequence.connected()
        log.info("Source connected", extra=fields(source=self._metrics.source))
        if self._replay is None:
            if self._on_doubt is not None and self._sequence.anchor is not None:
                self._on_doubt()
            else:  # a number that goes backwards will tell
                self._confirmed()
        else:
            await asyncio.sleep(self._settings.join_seconds)
            await self._settle()
        self.settled.set()

    def _link_down(self) -> None:
        if self.connected:
            self._metrics.connected.inc(-1)
        self.connected = False
        self.down_since = self._clock()
        log.warning("Source disconnected", extra=fields(source=self._metrics.source))

    def same_process(self) -> None:
        """The engine's process is the one from before this connection. A replay endpoint says so
        itself."""
        if self._replay is None and self._sequence.anchor is not None:
            self._confirmed()

    def other_process(self) -> None:
        """The engine's process is a new one. A batch that is being applied is done with first."""
        if self._applying:
            self._replaced = True
        elif self._sequence.last is not None:
            self._restart()

    async def _live(self, raw: RawBatch) -> None:
        self._judge_replay()
        mark = mark_of(raw.payload)
        verdict = self._sequence.live(raw.seq, mark)
        if verdict is Verdict.BACKWARDS:
            self._restart()
            verdict = self._sequence.live(raw.seq, mark)
        if verdict is Verdict.GAP:
            if self._sequence.last is not None:
                self.gaps += 1
                self._metrics.gaps.inc()
            await self._recover()
            verdict = self._sequence.live(raw.seq, mark)
            if verdict is Verdict.BACKWARDS:
                self._contradicted()
            if verdict in (Verdict.GAP, Verdict.BACKWARDS):
                # What an engine published before our first contact is not known to be missed.
                known = self._sequence.last is not None
                missing = self._sequence.skip_to_live(raw.seq, mark)
                self._count_lost(missing if known else 0)
                verdict = Verdict.NEXT
        if steps := self._hand_on(raw, verdict):
            await self._finish(steps)

    def _hand_on(self, raw: RawBatch, verdict: Verdict) -> Iterable[None]:
        """What is left to do of it, for :meth:`_finish`; mostly nothing."""
        self.last_batch_at = self._clock()
        if verdict is Verdict.DUPLICATE:
            self._sink.dropped(DropReason.DUPLICATE)
        elif len(raw.payload) > self._settings.max_frame_bytes:
            self._sink.dropped(DropReason.OVERSIZED)
            self._sink.lost()
        else:
            self._metrics.batches.inc()
            return self._sink.batch(raw)
        return ()

    async def _finish(self, steps: Iterable[None]) -> None:
        """One batch in slices. Its number is taken: what a cancellation leaves out is lost."""
        self._applying, done = True, False
        try:
            for _ in steps:
                await self._turns.breathe()
            done = True
        finally:
            self._applying, replaced, self._replaced = False, self._replaced, False
            if replaced:
                self._restart()
            elif not done:
                self._sink.lost()

    def _count_lost(self, missing: int) -> None:
        if missing:
            self.lost += missing
            self._metrics.lost.inc(missing)
            self._sink.lost()

    def _restart(self) -> None:
        now = self._clock()
        before = self.restarts.suspicious(now)
        self._sequence.restarted()
        self.verified_at = now
        self.restarts.note(now)
        self._metrics.restarts.inc()
        if not self.restarts.suspicious(now):
            log.warning("Engine restarted", extra=fields(source=self._metrics.source))
        elif not before:
            log.warning(
                "Restarts come too fast to be restarts: are there two publishers on one endpoint?",
                extra=fields(source=self._metrics.source),
            )
        self._sink.restarted()

    def _confirmed(self) -> None:
        self._sequence.confirmed()
        self.verified_at = self._clock()

    def _contradicted(self) -> None:
        """A fresh replay says otherwise than the engine that we follow: forget what it said.

        Either the engine has been replaced while its last words waited to be read, and then its
        connection is about to end; or the endpoint is another engine's. It is not asked until that
        is clear.
        """
        if self._foreign_since is None:
            self._foreign_since = self._clock()
            self._unsettled = False
        self._restart()

    def _judge_replay(self) -> None:
        """Still contradicted, still connected: the endpoint is another engine's for good."""
        since = self._foreign_since
        if self._replay is None or since is None or self._clock() - since < FOREIGN_SECONDS:
            return
        self._replay = None
        log.error(
            "Replay endpoint belongs to another engine; it is not asked any more",
            extra=fields(source=self._metrics.source),
        )

    async def _settle(self) -> None:
        """After connecting: is it the same process, and what have we missed (C17, J6)?"""
        anchor = self._sequence.anchor
        if anchor is None:
            if self._sequence.last is None:
                self._confirmed()
            ended = await self._recover()
        else:
            ended = await self._replay_from(anchor.seq, anchor)
            if ended is _Ended.OTHER_PROCESS:
                self._restart()
                ended = await self._recover()
            elif ended is not _Ended.FAILED:
                self._confirmed()
                if ended is _Ended.HOLE:
                    ended = await self._recover()
        self._unsettled = ended is _Ended.FAILED

    async def _recover(self) -> _Ended:
        """Read what is missing before the present, asking again behind each hole."""
        ended = _Ended.FAILED
        for _ in range(MAX_HOLES):
            ended = await self._replay_from(self._sequence.next_wanted, None)
            if ended is not _Ended.HOLE:
                break
        return ended

    async def _replay_from(self, start: int, anchor: Anchor | None) -> _Ended:
        """One request. With an ``anchor`` the first answer has to be that very batch."""
        if self._replay is None or self._foreign_since is not None:
            return _Ended.FAILED
        if self._clock() < self._replay_blocked_until:
            return _Ended.FAILED
        try:
            async with self._replay.ask(start) as answers:
                ended = await self._read_answers(answers, anchor)
        except ReplayError as error:
            self._metrics.replayed(ReplayResult(error.fault.value))
            self._replay_blocked_until = self._clock() + self._backoff.next()
            if not self.replay_failing:
                self.replay_failing = True
                log.warning(
                    "Replay endpoint does not answer",
                    extra=fields(source=self._metrics.source, fault=error.fault.value),
                )
            return _Ended.FAILED
        self._metrics.replayed(ReplayResult.COMPLETE)
        self._backoff.reset()
        self._replay_blocked_until = 0.0
        self.replay_failing = False
        return ended

    async def _read_answers(
        self, answers: AsyncIterator[list[RawBatch]], anchor: Anchor | None
    ) -> _Ended:
        first = True
        async for chunk in answers:
            for raw in chunk:
                mark = mark_of(raw.payload)
                if first and anchor is not None and not anchor.matches(raw.seq, mark):
                    return _Ended.OTHER_PROCESS
                verdict = self._sequence.replayed(raw.seq, mark)
                if verdict is Verdict.GAP:
                    if not first:
                        return _Ended.HOLE
                    # The engine's buffer begins here: older batches are gone for good.
                    known = self._sequence.last is not None
                    missing = self._sequence.skip_to_replayed(raw.seq, mark)
                    self._count_lost(missing if known else 0)
                    verdict = Verdict.NEXT
                if verdict is not Verdict.DUPLICATE or anchor is None:
                    steps = self._hand_on(raw, verdict)
                    if steps:
                        await self._finish(steps)
                first = False
                await self._turns.breathe()
            self._sink.caught_up()
        return _Ended.OTHER_PROCESS if first and anchor is not None else _Ended.COMPLETE
