"""Follows one TensorRT-LLM engine: polls, puts its events in order, applies them.

S0 "native TensorRT-LLM events", decisions C37. One poller for an engine, since an answer drains
the engine's buffer. An answer that cannot be used leaves the place in the sequence alone: what it
held is missed at the next event's number, and a miss drops all that was known, because nothing
can bring the events back.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_events import Cleared, DropReason
from continuum_kv_listener.listener_metrics import IntakeMetrics, PollMetrics, PollResult
from continuum_kv_listener.sequence import RestartLog
from continuum_kv_listener.sources.zmq_source import ZmqEndpointSettings
from continuum_kv_listener.trtllm_chains import TrtllmChains
from continuum_kv_listener.trtllm_client import PollError, PollFault
from continuum_kv_listener.trtllm_decode import TrtllmAnswer, TrtllmItem, read_answer
from continuum_kv_listener.trtllm_order import EventOrder, Step
from continuum_kv_listener.turns import Turns
from continuum_shared.backoff import Backoff
from continuum_shared.logs import fields

log = logging.getLogger("continuum_kv_listener.trtllm_intake")

MAX_BACKOFF_SECONDS = 30.0
_ANSWERED = frozenset({PollFault.CUT_SHORT, PollFault.BAD_ANSWER, PollFault.TOO_LARGE})
"""Faults in what the engine said: its process is there."""


class Poller(Protocol):
    """Brings answers (``trtllm_client.TrtllmClient``)."""

    @property
    def url(self) -> str: ...

    async def poll(self) -> bytes: ...


class Sink(Protocol):
    """Who publishes what has changed (``pipeline.Pipeline``)."""

    def restarted(self) -> None:
        """The engine is a new process with an empty cache: drop what is known."""

    def lost(self) -> None:
        """Events are missing for good: drop what is known."""

    def dropped(self, reason: DropReason) -> None:
        """Something did not become state."""

    def caught_up(self) -> None:
        """A good moment to publish."""


class TrtllmIntake:
    """Run :meth:`run` under supervision. ``interval`` and ``clock`` are in seconds.

    Is also what the source's page asks about the connection: a poll that is answered is one.
    """

    def __init__(  # noqa: PLR0913  the parts of one source
        self,
        poller: Poller,
        *,
        name: str,
        interval: float,
        chains: TrtllmChains,
        sink: Sink,
        metrics: IntakeMetrics,
        polls: PollMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = ZmqEndpointSettings(name=name, endpoint=poller.url, mode=ZmqMode.CONNECT)
        self.connected = False
        self.connections = 0
        self.ever_connected = False
        self.down_since: float | None = clock()
        self.settled = asyncio.Event()
        self.gaps = 0
        self.lost = 0
        self.restarts = RestartLog()
        self.last_batch_at: float | None = None
        self.verified_at = clock()
        self.last_error: str | None = None
        self.refused: str | None = None
        self.replay_failing = False
        self.replay_foreign = False
        self._poller = poller
        self._interval = interval
        self._chains = chains
        self._sink = sink
        self._metrics = metrics
        self._polls = polls
        self._clock = clock
        self._order = EventOrder()
        self._window = 0
        self._told: set[int] = set()
        """Ranks that told of blocks since the last time that all was dropped."""
        self._backoff = Backoff(interval, max(interval, MAX_BACKOFF_SECONDS))
        self._failures = 0
        self._turns = Turns(clock)

    @property
    def peers(self) -> int:
        """One engine at most."""
        return int(self.connected)

    @property
    def last_seq(self) -> int | None:
        """The highest event number seen of any rank."""
        return self._order.last

    @property
    def vouched(self) -> bool:
        """A restarted engine says so in its first event."""
        return True

    async def health(self) -> bool:
        """Whether the engine answered the last poll."""
        return self.connected

    def watch(self, on_doubt: Callable[[], None]) -> None:
        """There is no doubt about the process: see :attr:`vouched`."""

    def same_process(self) -> None:
        """Known from the events."""

    def other_process(self) -> None:
        """Known from the events."""

    def close(self) -> None:
        """Nothing is kept open."""

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            pause = await self.poll_once()
            await asyncio.sleep(pause)

    async def poll_once(self) -> float:
        """Ask once and apply the answer. The seconds until the next time."""
        try:
            body = await self._poller.poll()
        except PollError as error:
            return self._failed(error.fault, str(error))
        answer = await self._read(body)
        for reason in answer.drops:  # one element may hold a million of them
            self._sink.dropped(reason)
            await self._turns.breathe()
        if DropReason.UNDECODABLE_BATCH in answer.drops:
            return self._failed(PollFault.BAD_ANSWER, PollFault.BAD_ANSWER.value)
        self._answered(bool(answer.items))
        for item in answer.items:
            self._apply(item)
            if await self._turns.breathe():
                self._sink.caught_up()
        self._sink.caught_up()
        self.settled.set()
        return self._interval

    async def _read(self, body: bytes) -> TrtllmAnswer:
        self._turns.begin()
        steps = read_answer(body)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                answer: TrtllmAnswer = done.value
                return answer
            await self._turns.breathe()

    def _failed(self, fault: PollFault, why: str) -> float:
        self._polls.polled(PollResult(fault.value))
        if fault is PollFault.TOO_LARGE:
            self._sink.dropped(DropReason.OVERSIZED)
        self._failures += 1
        self.last_error, before = why, self.last_error
        if fault not in _ANSWERED:
            self._order.unanswered()
        elif self.connected and self._failures == 1:
            return self._backoff.next()  # one bad answer is no lost connection
        if self.connected or before is None:
            log.warning(
                "Events are not answered",
                extra=fields(source=self._metrics.source, fault=fault.value),
            )
        if self.connected:
            self._metrics.connected.inc(-1)
            self.down_since = self._clock()
        self.connected = False
        return self._backoff.next()

    def _answered(self, anything: bool) -> None:
        self._polls.polled(PollResult.EVENTS if anything else PollResult.EMPTY)
        now = self._clock()
        if anything:
            self._metrics.batches.inc()
            self.last_batch_at = now
        self.verified_at = now
        self._failures = 0
        self._backoff.reset()
        if not self.connected:
            self.connections += 1
            self._metrics.connected.inc()
            log.info("Source connected", extra=fields(source=self._metrics.source))
        self.connected = self.ever_connected = True
        self.down_since = self.last_error = None

    def _apply(self, item: TrtllmItem) -> None:
        step, missing = self._order.step(item.rank, item.event_id, item.mark)
        if step is Step.DUPLICATE:
            self._sink.dropped(DropReason.DUPLICATE)
            return
        if step is Step.GAP:
            self.gaps += 1
            self.lost += missing
            self._metrics.gaps.inc()
            self._metrics.lost.inc(missing)
            self._forget()
        elif step is Step.RESTART:
            self._restart()
        if self._of_widest_window(item):
            self._take(item)

    def _take(self, item: TrtllmItem) -> None:
        now = self._clock()
        for event in item.events:
            if not isinstance(event, Cleared):
                self._told.add(item.rank)
                for reason in self._chains.apply(event, now):
                    self._sink.dropped(reason)
            elif item.rank in self._told:  # else it only begins, beside ranks that did before
                self._forget()
            self._metrics.applied(event)

    def _forget(self) -> None:
        self._told.clear()
        self._sink.lost()

    def _restart(self) -> None:
        self._window = 0
        self._told.clear()
        self.restarts.note(self._clock())
        self._metrics.restarts.inc()
        log.warning("Engine restarted", extra=fields(source=self._metrics.source))
        self._sink.restarted()

    def _of_widest_window(self, item: TrtllmItem) -> bool:
        """Only the blocks of full attention describe a whole prefix (decisions C19)."""
        if item.window < self._window:
            self._chains.ignored += len(item.events)
            return False
        if item.window > self._window:
            if self._told:
                self._forget()  # what is known is of a narrower window
            self._window = item.window
        return True
