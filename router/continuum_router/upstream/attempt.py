"""The one loop of a request: choose, lease, send, classify, again or not (architecture section 4).

Deciding is elsewhere and pure: `routing.selector` chooses, `upstream.retry` says whether to go on.
What is here acts on it and keeps the books: every attempt is counted up by a lease and down when
its body has ended, whatever ended it, and its result is recorded exactly once.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from continuum_router.backends.exchange import UpstreamReply
from continuum_router.backends.fleet import AttemptResult, result_of_status
from continuum_router.backends.pool import Backend, Pool
from continuum_router.errors import (
    AttemptFailure,
    Cause,
    Fault,
    ModelNotFound,
    NoBackend,
    Stage,
)
from continuum_router.providers.prepare import Preparer
from continuum_router.routing.selector import Choice, Selector
from continuum_router.routing.strategies import Ask
from continuum_router.upstream.deadlines import Deadlines, Limits
from continuum_router.upstream.dispatch_state import DispatchState
from continuum_router.upstream.outcome import Call, Ended, error_for
from continuum_router.upstream.relay import ErrorEvent, Relay
from continuum_router.upstream.retry import Again, RetryPolicy, parse_retry_after
from continuum_router.upstream.usage import UsageTail
from continuum_shared.logs import fields

log = logging.getLogger("continuum_router.attempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """The rules of one configuration about sending, together with the state they act on."""

    pool: Pool
    selector: Selector
    preparer: Preparer
    retry: RetryPolicy
    connect_timeout: float
    standard: Limits
    streaming: Limits
    state: DispatchState

    async def run(self, call: Call) -> None:
        """See a request through. Returns when the answer has been sent, in whatever way it ended.

        Raises RouterError when nothing was sent yet and the caller is to answer; ClientGone when
        nobody is there to be answered. A cancellation passes through, with the lease ended and the
        upstream connection aborted.
        """
        members = self.pool.for_model(call.request.model) if call.only is None else (call.only,)
        if not members:
            routable = any(b.enabled and not b.internal for b in self.pool.backends)
            raise ModelNotFound(param="model") if routable else NoBackend()
        await _Run(self, call, members).run()


@dataclass(slots=True)
class _Run:
    """The mutable side of one request."""

    rules: Dispatcher
    call: Call
    members: tuple[Backend, ...]
    tried: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    stage: Stage = Stage.SELECTING
    sent_at: float = 0.0
    relay: Relay | None = None
    deadlines: Deadlines = field(init=False)
    usage: UsageTail = field(default_factory=UsageTail)

    def __post_init__(self) -> None:
        streams = self.call.request.stream
        self.deadlines = Deadlines(self.rules.streaming if streams else self.rules.standard)

    async def run(self) -> None:
        """Try until answered; turn the last failure into what the client gets."""
        outcome = self.call.outcome
        try:
            async with self.deadlines:
                await self._until_answered()
        except TimeoutError:
            if not self.deadlines.expired:
                raise
            outcome.ended = Ended.DEADLINE
            await self._fail(AttemptFailure(self.stage, self.deadlines.armed.cause))
        except AttemptFailure as failure:
            outcome.ended = Ended.UPSTREAM_CUT if self.call.sink.started else Ended.FAILED
            await self._fail(failure)
        else:
            outcome.ended = Ended.COMPLETE
        finally:
            outcome.usage = self.usage.read()

    async def _until_answered(self) -> None:
        while True:
            again = await self._attempt(self._choose())
            if again is None:
                return
            self.deadlines.await_nothing()
            if again.delay > 0:
                await asyncio.sleep(again.delay)

    def _choose(self) -> Choice:
        """Stop 7. A backend that could not be reached is avoided while there is another one."""
        self.stage = Stage.SELECTING
        rules, request = self.rules, self.call.request
        ask = Ask(
            model=request.model,
            prefix=request.hash_key,
            candidates=self.members,
            ring_members=self.members,
            loads=rules.state.fleet.loads,
            retry=bool(self.tried),
        )
        avoid = self.tried if rules.retry.prefer_untried_backends else self.unreachable
        choice = rules.selector.select(
            ask, holdings=self.call.holdings, now=rules.state.clock(), tried=avoid
        )
        if choice is None:
            raise NoBackend
        rules.state.routing_metrics.count(choice)
        return choice

    async def _attempt(self, choice: Choice) -> Again | None:
        """Stops 8 to 10 under one lease. None: answered. Raises AttemptFailure to give up."""
        state, outcome, name = self.rules.state, self.call.outcome, choice.backend.name
        outcome.backend, outcome.choice = name, choice
        outcome.attempts += 1
        self.tried.add(name)
        result = AttemptResult.CLIENT_GONE
        with state.fleet.lease(name, choice.rule.by_prefix):
            try:
                again, result = await self._exchange(choice)
            except AttemptFailure as failure:
                result = _result_of(failure)
                outcome.cause = failure.cause
                self._tell(failure, name)
                if failure.stage is Stage.CONNECTING:
                    self.unreachable.add(name)
                again = self._decide(failure, choice)
                if again is None:
                    raise
            finally:
                if self.deadlines.expired and self.deadlines.backend_owes:
                    result = AttemptResult.FAILED
                state.fleet.record(name, result)
                state.metrics.attempt_ended(result)
        return again

    async def _exchange(self, choice: Choice) -> tuple[Again | None, AttemptResult]:
        """Send, look at the head, try elsewhere or relay."""
        with await self._send(choice) as reply:
            result = result_of_status(reply.status)
            self.rules.state.fleet.observe_latency(choice.backend.name, self._since_sent())
            if reply.status in self.rules.retry.retryable_status_codes:
                after = parse_retry_after(reply.head.header("retry-after"), self.rules.state.wall())
                again = self._decide(_status_failure(reply.status, after), choice)
                if again is not None:
                    _keep_connection(reply)
                    return again, result
            try:
                await self._relay(reply, choice.backend)
            except ErrorEvent as event:
                return await self._error_event(event, choice)
        self._served(choice, result)
        return None, result

    async def _send(self, choice: Choice) -> UpstreamReply:
        """Stops 8 and 9, with the one uncounted retry on a fresh connection (decisions E14)."""
        rules, call = self.rules, self.call
        request = rules.preparer.prepare_request(call.request, call.inbound, choice.backend)
        self.stage = Stage.CONNECTING
        # A body that passes by only once is not risked on a kept connection.
        fresh = request.tail is not None
        while True:
            self.sent_at = rules.state.clock()
            self.deadlines.await_nothing()
            try:
                reply = await rules.state.transport.send(
                    choice.backend,
                    request,
                    connect_timeout=rules.connect_timeout,
                    fresh=fresh,
                    on_sent=self._sent,
                )
            except AttemptFailure as failure:
                again = self._decide(failure, choice, fresh_used=fresh)
                if again is None or not again.fresh:
                    raise
                fresh = True
                continue
            self.stage = Stage.STREAMING
            return reply

    async def _relay(self, reply: UpstreamReply, backend: Backend) -> None:
        """Stop 10."""
        call = self.call
        if not call.request.stream:
            self._first_frame()
        self.relay = Relay(
            reply,
            call.sink,
            wants_stream=call.request.stream,
            deadlines=self.deadlines,
            taps=(self.usage, *call.taps),
            on_first_frame=self._first_frame,
            answers_as=self.rules.preparer.answers_as(call.request, backend),
        )
        await self.relay.run()

    async def _error_event(
        self, event: ErrorEvent, choice: Choice
    ) -> tuple[Again | None, AttemptResult]:
        """A stream that opened with an error is a reply with that status (decisions E16)."""
        status = event.error.status
        result = result_of_status(status)
        again = self._decide(_status_failure(status, None), choice)
        if again is None:
            self.deadlines.await_nothing()
            await self.call.sink.send(
                status, [("Content-Type", "application/json")], event.error.body
            )
        return again, result

    def _tell(self, failure: AttemptFailure, name: str) -> None:
        log.debug(
            "Attempt failed",
            extra=fields(
                request_id=self.call.request_id,
                backend=name,
                attempt=self.call.outcome.attempts,
                stage=failure.stage,
                cause=failure.cause,
                detail=failure.detail,
            ),
        )

    def _decide(
        self, failure: AttemptFailure, choice: Choice, *, fresh_used: bool = True
    ) -> Again | None:
        if self.call.sink.started:
            return None
        return self.rules.retry.decide(
            failure,
            attempt=self.call.outcome.attempts,
            replay_allowed=choice.backend.replay_allowed and self.call.request.replayable,
            fresh_used=fresh_used,
            time_left=self.deadlines.time_left,
            rng=self.rules.state.rng,
        )

    async def _fail(self, failure: AttemptFailure) -> None:
        """The request is lost: raise what to answer, or end the answer that was started."""
        self.call.outcome.cause = failure.cause
        err = error_for(failure)
        if not self.call.sink.started or self.relay is None:
            raise err from failure
        await self.relay.break_off(err, self.call.request_id)

    def _served(self, choice: Choice, result: AttemptResult) -> None:
        prefix = self.call.request.prefix
        if result is AttemptResult.OK and prefix is not None:
            state = self.rules.state
            state.served(choice.backend.name, prefix, state.clock())

    def _sent(self) -> None:
        self.stage = Stage.AWAITING_HEAD
        self.deadlines.await_first()

    def _first_frame(self) -> None:
        self.call.outcome.ttft = self._since_sent()

    def _since_sent(self) -> float:
        return self.rules.state.clock() - self.sent_at


def _result_of(failure: AttemptFailure) -> AttemptResult:
    return AttemptResult.ROUTER_ERROR if failure.fault is Fault.ROUTER else AttemptResult.FAILED


def _status_failure(status: int, retry_after: float | None) -> AttemptFailure:
    return AttemptFailure(
        Stage.AWAITING_HEAD, Cause.STATUS, began=True, status=status, retry_after=retry_after
    )


def _keep_connection(reply: UpstreamReply) -> None:
    """Take what has arrived of an unwanted answer: if it is whole, the connection stays."""
    try:
        while reply.ready():
            pass
    except AttemptFailure:
        pass
