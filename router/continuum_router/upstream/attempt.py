"""The one loop of a request: choose, lease, send, classify, again or not (architecture section 4).

Deciding is elsewhere and pure: `routing.selector` chooses, `upstream.retry` says whether to go on.
What is here acts on it and keeps the books: every attempt is counted up by a lease and down when
its body has ended, whatever ended it, and its result is recorded exactly once.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from continuum_router.backends.exchange import UpstreamReply
from continuum_router.backends.fleet import AttemptResult, Ticket, result_of_status
from continuum_router.backends.pool import Backend, Pool
from continuum_router.error_bodies import error_form
from continuum_router.errors import (
    AttemptFailure,
    Cause,
    ModelNotFound,
    NoBackend,
    Stage,
    forget_frames,
)
from continuum_router.providers.piecer import Piecer
from continuum_router.providers.prepare import Preparer
from continuum_router.request import ChatRequest, RequestRules
from continuum_router.routing.selector import Choice, Selector
from continuum_router.routing.strategies import Ask
from continuum_router.upstream.begun import Begun
from continuum_router.upstream.call_limits import CallLimits
from continuum_router.upstream.deadlines import Deadlines, Limit, Limits
from continuum_router.upstream.dispatch_state import DispatchState
from continuum_router.upstream.model_chain import ModelChain
from continuum_router.upstream.outcome import (
    Call,
    Ended,
    ended_by,
    error_for,
    result_of_failure,
    status_failure,
    tell_failure,
)
from continuum_router.upstream.relay import ErrorEvent, Relay
from continuum_router.upstream.reply import keep_connection
from continuum_router.upstream.retry import Again, RetryPolicy, parse_retry_after, wants_fresh
from continuum_router.upstream.usage import UsageTail

NOBODY_FOR = 1.0
"""Seconds after which a client may ask again when no backend could be tried (decisions E4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """The rules of one configuration about sending, together with the state they act on.

    `standard`, `streaming` and `image_generation` are the limits of models without overrides,
    `model_limits` those of the others. `fallbacks` are the chains, `request_rules` how the keys of
    a request to a chain's model are made. `sse_keepalive` is in seconds, 0 for none.
    """

    pool: Pool
    selector: Selector
    preparer: Preparer
    retry: RetryPolicy
    connect_timeout: float
    standard: Limits
    streaming: Limits
    state: DispatchState
    image_generation: Limits = field(default_factory=lambda: Limits(total=180.0))
    model_limits: Mapping[str, CallLimits] = field(default_factory=dict)
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    request_rules: RequestRules = field(default_factory=RequestRules)
    sse_keepalive: float = 0.0
    piecer: Piecer | None = None

    def limits_for(self, path: str, model: str, *, stream: bool) -> Limits:
        """The time limits of a request to `model`."""
        limits = self.model_limits.get(model) or CallLimits(
            standard=self.standard,
            streaming=self.streaming,
            image_generation=self.image_generation,
        )
        return limits.of(path, stream=stream)

    async def run(self, call: Call, begun: Begun | None = None) -> None:
        """See a request through. Returns when the answer has been sent, in whatever way it ended.

        `begun` is a first attempt to go on with.
        Raises RouterError when nothing was sent yet and the caller is to answer; ClientGone when
        nobody is there to be answered. A cancellation passes through, with the lease ended and the
        upstream connection aborted.
        """
        if begun is None:
            self.state.budget.request(self.state.clock())
        chain = self.fallbacks.get(call.request.model, ())
        models = ModelChain(call, self.pool, chain, self.request_rules, self.piecer)
        run = _Run(self, call, models, begun)
        if not models.members and not run.fall_back():
            routable = any(b.enabled and not b.internal for b in self.pool.backends)
            raise ModelNotFound(param="model") if routable else NoBackend()
        await run.run()


@dataclass(slots=True)
class _Run:
    """The mutable side of one request. `tries` counts those on the present model."""

    rules: Dispatcher
    call: Call
    models: ModelChain
    begun: Begun | None = None
    tries: int = 0
    tried: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    stage: Stage = Stage.SELECTING
    sent_at: float = 0.0
    relay: Relay | None = None
    ticket: Ticket | None = None
    deadlines: Deadlines = field(init=False)
    usage: UsageTail = field(default_factory=UsageTail)

    def __post_init__(self) -> None:
        request, begun = self.call.request, self.begun
        spent = 0.0 if begun is None else self.rules.state.clock() - begun.started
        self.deadlines = Deadlines(self._limits(request), spent=spent)

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
            outcome.ended = ended_by(failure, started=self.call.sink.started)
            await self._fail(failure)
            forget_frames(failure)
        else:
            outcome.ended = Ended.COMPLETE
        finally:
            outcome.usage = self.usage.read()
            # It refers back to us: nothing of a request may wait for the cycle collector.
            self.relay = None

    async def _until_answered(self) -> None:
        while True:
            again = await self._attempt(self._choose())
            if again is None:
                return
            self.deadlines.await_nothing()
            if again.fallback:
                self.fall_back()
            elif again.delay > 0:
                await asyncio.sleep(again.delay)

    def fall_back(self) -> bool:
        """Go on with the next model, under its limits; False when the chain has ended (J11)."""
        state = self.rules.state
        if not self.models.advance(lambda prefix: state.holdings(prefix, state.clock())):
            return False
        self.tries = 0
        self.deadlines.change(self._limits(self.models.request))
        return True

    def _limits(self, request: ChatRequest) -> Limits:
        path = request.endpoint.path
        return self.rules.limits_for(path, request.model, stream=request.stream)

    def _choose(self) -> Choice:
        """Stop 7. A backend that could not be reached is avoided while there is another one."""
        if self.begun is not None:
            return self.begun.choice
        self.stage = Stage.SELECTING
        rules, models, request = self.rules, self.models, self.models.request
        ask = Ask(
            model=request.model,
            prefix=request.hash_key,
            candidates=rules.state.fleet.conditions.usable(models.members, self.tried),
            ring_members=models.members,
            loads=rules.state.fleet.loads,
            retry=bool(self.tried),
            client=self.call.client,
            pieces=models.pieces,
            size=len(request.raw),
        )
        avoid = self.tried if rules.retry.prefer_untried_backends else self.unreachable
        choice = rules.selector.select(
            ask, holdings=models.holdings, now=rules.state.clock(), tried=avoid
        )
        if choice is None:
            raise NoBackend(retry_after=NOBODY_FOR)
        rules.state.routing_metrics.count(choice)
        return choice

    async def _attempt(self, choice: Choice) -> Again | None:
        """Stops 8 to 10 under one lease. None: answered. Raises AttemptFailure to give up."""
        state, outcome, name = self.rules.state, self.call.outcome, choice.backend.name
        outcome.backend, outcome.choice = name, choice
        outcome.attempts += 1
        self.tries += 1
        self.tried.add(name)
        result = AttemptResult.CLIENT_GONE
        held = self.begun.lease if self.begun is not None else None
        self.ticket = choice.ticket
        with held or state.fleet.lease(name, choice.rule.by_prefix, choice.ticket):
            try:
                again, result = await self._under_deadlines(choice)
            except AttemptFailure as failure:
                result = result_of_failure(failure)
                outcome.cause = failure.cause
                tell_failure(failure, self.call.request_id, outcome)
                if failure.stage is Stage.CONNECTING:
                    self.unreachable.add(name)
                again = self._decide(failure, choice)
                if again is None:
                    raise
                forget_frames(failure)
            finally:
                if self.deadlines.expired and self.deadlines.backend_owes:
                    result = AttemptResult.FAILED
                state.fleet.record(name, result)
                state.metrics.attempt_ended(result)
        return again

    async def _under_deadlines(self, choice: Choice) -> tuple[Again | None, AttemptResult]:
        """`_exchange`, where first_byte may pass without ending the request (E10)."""
        try:
            return await self._exchange(choice)
        except asyncio.CancelledError:
            late = self.deadlines.armed is Limit.FIRST_BYTE and not self.call.sink.started
            if late and self.rules.retry.on_timeout and self.deadlines.forgive():
                raise AttemptFailure(self.stage, Cause.FIRST_BYTE_TIMEOUT) from None
            raise

    async def _exchange(self, choice: Choice) -> tuple[Again | None, AttemptResult]:
        """Send, look at the head, try elsewhere or relay."""
        with await self._send(choice) as reply:
            result = result_of_status(reply.status)
            unwanted = reply.status in self.rules.retry.retryable_status_codes
            if unwanted or (self.models.more and result is AttemptResult.FAILED):
                after = parse_retry_after(reply.head.header("retry-after"), self.rules.state.wall())
                again = self._decide(status_failure(reply.status, after), choice)
                if again is not None:
                    keep_connection(reply)
                    return again, result
            try:
                await self._relay(reply, choice.backend)
            except ErrorEvent as event:
                return await self._error_event(event, choice)
        self._served(choice, result)
        if choice.ticket is not None and (usage := self.usage.read()) is not None:
            choice.ticket.usage(usage.prompt_tokens, usage.cached_tokens)
        return None, result

    async def _send(self, choice: Choice) -> UpstreamReply:
        """Stops 8 and 9, with the one uncounted retry on a fresh connection (decisions E14)."""
        rules, call = self.rules, self.call
        begun, self.begun = self.begun, None
        taken_up = begun is not None and begun.sent_at is not None
        if begun is not None and begun.sent_at is not None:
            self.sent_at = begun.sent_at
            reply = self._take_up(begun, choice)
            if reply is not None:
                return reply
        request = rules.preparer.prepare_request(self.models.request, call.inbound, choice.backend)
        self.stage = Stage.CONNECTING
        # A body that passes by only once is not risked on a kept connection.
        fresh = taken_up or request.tail is not None
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
                replay = choice.backend.replay_allowed
                if not wants_fresh(failure, replay_allowed=replay, fresh_used=fresh):
                    raise
                fresh = True
                continue
            self.stage = Stage.STREAMING
            rules.state.fleet.observe_latency(choice.backend.name, self._since_sent())
            return reply

    def _take_up(self, begun: Begun, choice: Choice) -> UpstreamReply | None:
        """What the attempt that was begun has come to; None: send again, on a fresh connection."""
        self.stage = Stage.STREAMING
        self.deadlines.await_first(spent=self._since_sent())
        failure = begun.failure
        if failure is None:
            return begun.reply
        self.stage = failure.stage
        replay = choice.backend.replay_allowed
        if not wants_fresh(failure, replay_allowed=replay, fresh_used=False):
            raise failure
        return None

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
            keepalive=self.rules.sse_keepalive or None,
            answers_as=self.rules.preparer.answers_as(call.request, backend),
            error_form=error_form(call.request.path),
        )
        await self.relay.run()

    async def _error_event(
        self, event: ErrorEvent, choice: Choice
    ) -> tuple[Again | None, AttemptResult]:
        """A stream that opened with an error is a reply with that status (decisions E16)."""
        status = event.error.status
        result = result_of_status(status)
        again = self._decide(status_failure(status, None), choice)
        if again is None:
            self.deadlines.await_nothing()
            await self.call.sink.send(
                status, [("Content-Type", "application/json")], event.error.body
            )
        return again, result

    def _decide(self, failure: AttemptFailure, choice: Choice) -> Again | None:
        """Again, on this model or the chain's next, if the budget has a retry left (E10)."""
        if self.call.sink.started:
            return None
        policy, state, left = self.rules.retry, self.rules.state, self.deadlines.time_left
        replay = choice.backend.replay_allowed and self.models.request.replayable
        again = policy.decide(
            failure,
            attempt=self.tries,
            replay_allowed=replay,
            fresh_used=True,
            time_left=left,
            rng=state.rng,
        )
        if (
            again is None
            and self.models.more
            and policy.may_fall_back(failure, replay_allowed=replay, time_left=left)
        ):
            again = Again(delay=0.0, fallback=True)
        if again is None or self._costs_nobody(failure):
            return again
        if state.budget.take(policy.budget, state.clock()):
            return again
        state.metrics.budget_exhausted.value += 1
        return None

    def _costs_nobody(self, failure: AttemptFailure) -> bool:
        """True when nothing was sent and a backend is left that was not found unreachable.

        Choosing that one instead adds to nobody's load, so the budget is left alone: one dead
        backend of two must not cost requests (docs/decisions/0017).
        """
        reachable = any(member.name not in self.unreachable for member in self.models.members)
        return failure.stage is Stage.CONNECTING and reachable

    async def _fail(self, failure: AttemptFailure) -> None:
        """The request is lost: raise what to answer, or end the answer that was started."""
        self.call.outcome.cause = failure.cause
        err = error_for(failure)
        if not self.call.sink.started or self.relay is None:
            raise err from failure
        await self.relay.break_off(err, self.call.request_id)

    def _served(self, choice: Choice, result: AttemptResult) -> None:
        prefix = self.models.request.prefix
        if result is AttemptResult.OK and prefix is not None:
            state = self.rules.state
            state.served(choice.backend.name, prefix, state.clock())

    def _sent(self) -> None:
        self.stage = Stage.AWAITING_HEAD
        self.deadlines.await_first()

    def _first_frame(self) -> None:
        if self.ticket is not None:
            self.ticket.first_token()
        self.call.outcome.ttft = self._since_sent()

    def _since_sent(self) -> float:
        return self.rules.state.clock() - self.sent_at
