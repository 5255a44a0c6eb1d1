"""One ordinary request on its way, without a coroutine: the fast path's `attempt` and `relay`.

It calls what the general loop calls, in the same order: parse, look up, choose, count, lease, send,
relay, record. As soon as something is not ordinary (no free connection, a failure, an unusual
answer) and the client has no bytes yet, the general loop goes on with what was begun
(`_hand_over`), and what becomes of the request then is decided there alone.
"""

import asyncio
from collections.abc import Mapping, Sequence

import orjson

from continuum_router.api.event_wire import EventWire
from continuum_router.api.fast_books import FastBooks
from continuum_router.api.hand_over import HandOver
from continuum_router.api.reply_plan import ReplyPlan
from continuum_router.backends.fleet import AttemptResult
from continuum_router.backends.holding import Holding
from continuum_router.error_bodies import to_stream_event
from continuum_router.errors import AttemptFailure, Stage, forget_frames
from continuum_router.request import request_of
from continuum_router.upstream.begun import Begun
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.deadlines import Limit, Limits
from continuum_router.upstream.outcome import (
    ended_by,
    error_for,
    result_of_failure,
    tell_failure,
)
from continuum_router.upstream.relay import COLLECT_LIMIT
from continuum_router.upstream.reply import QueuedReply
from continuum_router.upstream.response_head import HeadFacts
from continuum_shared.sse import encode_event

CHUNKED = b"Transfer-Encoding: chunked\r\n"


class FastCall(FastBooks):
    """See the module. `due` and `expire` are for the sweep, `on_*` and `wire` for the connection.

    `dispatch` sends it off with its body.
    """

    _connection: Connection | None = None
    _dialling: "asyncio.Task[None] | None" = None
    _handed: HandOver | None = None
    _stage = Stage.SELECTING
    _limit = Limit.TOTAL
    _slow_client = False
    _written = False  # all of the answer, to a client that is behind
    wire = False
    _holdings: Mapping[str, Holding] | None
    _raw: bytes  # these from `dispatch` on
    _limits: Limits
    _at: float
    _end: float
    _sent_at: float
    _head_at: float
    _facts: HeadFacts  # these from the answer's head on
    _length: int | None
    _plan: ReplyPlan

    def dispatch(self, raw: bytes, now: float, *, counted: bool = False) -> bool:
        """Send the request off with its body. False: nothing for the fast path, nothing happened.

        `counted`: the request is among the active ones already.
        """
        way, memos, head = self._way, self._memos, self._head
        placed = memos.places.place(head.endpoint, raw, now, self._peer, head.inbound)
        if placed is None:
            return False
        self._raw, self._at = raw, now
        reading, self._holdings, choice, limits = placed
        self._reading, self._choice = reading, choice
        backend = choice.backend
        self._name = name = backend.name
        self._limits = limits
        self._end = self.due = now + limits.total
        self.begun = True
        self.told = way.lines.wanted
        if self.told and head.cacheable:
            way.lines.started(self.scope())
        if not counted:
            way.active.now += 1
        way.sweep.add(self)
        rules = memos.rules
        self._lease = rules.state.fleet.lease(name, choice.rule.by_prefix, choice.ticket).begin()
        try:
            connection = way.upstream.take(backend)
        except AttemptFailure:
            connection = None
        self._sent_at = now
        if connection is None:
            self._stage = Stage.CONNECTING
            self._dialling = way.spawn(self._dial())
        else:
            self._start(connection)
        return True

    def _start(self, connection: Connection) -> None:
        """Send the request."""
        self._connection = connection
        self._stage = Stage.SENDING
        preparer, head, raw = self._memos.rules.preparer, self._head, self._raw
        backend = self._choice.backend
        if preparer.stamps:
            raw = preparer.salted(raw, request_of(head.endpoint, raw, self._reading), backend)
        start = head.heads.get(self._name) or head.head_for(backend, preparer)
        connection.start_ordinary(b"%b%d\r\n\r\n" % (start, len(raw)), raw, self)

    async def _dial(self) -> None:
        """There is no kept connection: make one, then go on as if there had been."""
        way, rules = self._way, self._memos.rules
        try:
            connection = await way.upstream.obtain(
                self._choice.backend, connect_timeout=rules.connect_timeout
            )
        except AttemptFailure as failure:
            self._dialling = None
            self._hand_over(self._begun(failure=failure))
            forget_frames(failure)
            return
        self._dialling = None
        self._sent_at = way.clock()
        self._start(connection)

    def _stop_dialling(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None

    # -- ReplySink --------------------------------------------------------------------------

    def _first_token(self, at: float) -> None:
        self._ttft = at - self._sent_at
        ticket = self._lease.ticket
        if ticket is not None:
            ticket.first_token()

    def on_sent(self) -> None:
        self._stage = Stage.AWAITING_HEAD
        if self._limits.first_byte:
            self._limit_to(Limit.FIRST_BYTE, self._way.clock() + self._limits.first_byte)

    def on_whole(self, facts: HeadFacts, body: bytes) -> None:
        self._connection = None
        plan = self._head_came(facts, len(body))
        if self._reading[2] or not plan.plain or len(body) > COLLECT_LIMIT:
            self._hand_over_reply((body,) if body else ())
        else:
            self._first_token(self._head_at)
            self._answer(body)

    def on_head(self, facts: HeadFacts, length: int | None) -> None:
        plan = self._head_came(facts, length)
        if self._reading[2]:
            if plan.events:
                self._events = EventWire()
                return
        elif plan.plain and length is not None and length <= COLLECT_LIMIT:
            self._first_token(self._head_at)
            return
        self._hand_over_reply(())

    def on_body(self, data: bytes) -> None:
        events = self._events
        if events is None:
            self._body = (*self._body, data)
            return
        tap = self._tap
        if tap is not None:
            tap.feed(data)
        known = events.first.seen
        out = events.payload(data)
        if events.first.error is not None:
            self._hand_over_reply((events.first.take(),))
            return
        if not known and events.first.seen:
            self._first_token(self._way.clock())
        self.wire = events.passing and (tap is None or tap.found is not None)
        self._relay(out)
        if events.first.seen:
            self._await_chunk()

    def on_chunks(self, data: bytes, size: int) -> None:
        if self.told:
            assert self._events is not None
            self._events.passed(data, size)
        self._client.send(data)
        interval = self._limits.chunk_interval
        if interval and not self._slow_client:
            due = self._way.clock() + interval
            if due < self._end:
                self.due = due
            else:
                self._limit_to(Limit.TOTAL, due)

    def on_end(self) -> None:
        self._connection = None
        events = self._events
        if events is None:
            self._answer(b"".join(self._body))
        else:
            self._relay(events.end())
            self._all_written()

    def on_failure(self, failure: AttemptFailure) -> None:
        self._connection = None
        if self._client_has_bytes:
            self._break_off(failure, result_of_failure(failure))
        elif self._stage is not Stage.STREAMING:
            self._hand_over(self._begun(failure=failure))
        else:
            held = self._body if self._events is None else [self._events.first.take()]
            self._hand_over_reply([piece for piece in held if piece], failure)

    # -- the client -------------------------------------------------------------------------

    def pause(self) -> None:
        """The client reads slower than it is written to: nobody but the total limit hurries."""
        self._slow_client = True
        self._limit_to(Limit.TOTAL, self._end)
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self._slow_client = False
        if self._written:
            self._all_written()
        elif self._connection is not None:
            self._await_chunk()
            self._connection.resume()

    def gone(self) -> None:
        """The client has left, or the process ends."""
        if self._handed is not None:
            begun = self._handed.cancel()
            if begun is None:
                return
            # The task has not run and never will: the books are still ours.
            if begun.reply is not None:
                begun.reply.abort()
        self._stop_dialling()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        scope = self._so_far() if self.begun else self.scope()
        status = self._way.edge.cancelled(scope)
        self._way.sweep.drop(self)
        if self.begun:
            self._attempt_ended(AttemptResult.CLIENT_GONE)
        self._left(scope, status)

    # -- DeadlineSweep ----------------------------------------------------------------------

    def expire(self, now: float) -> None:  # noqa: ARG002
        """A limit has passed."""
        failure = AttemptFailure(self._stage, self._limit.cause)
        owes = not self._slow_client
        self._stop_dialling()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        if self._client_has_bytes:
            result = AttemptResult.FAILED if owes else AttemptResult.CLIENT_GONE
            self._break_off(failure, result)
        else:
            self._hand_over(self._begun(failure=failure))

    # ---------------------------------------------------------------------------------------

    @property
    def _client_has_bytes(self) -> bool:
        return self._written or (self._events is not None and self._events.started)

    def _head_came(self, facts: HeadFacts, length: int | None) -> ReplyPlan:
        self._facts, self._length = facts, length
        self._stage = Stage.STREAMING
        self._head_at = now = self._way.clock()
        memos = self._memos
        memos.rules.state.fleet.observe_latency(self._name, now - self._sent_at)
        self._plan = plan = memos.plans.known.get(facts) or memos.plans.plan(facts)
        return plan

    def _limit_to(self, limit: Limit, due: float) -> None:
        if due < self._end:
            self._limit, self.due = limit, due
        else:
            self._limit, self.due = Limit.TOTAL, self._end

    def _await_chunk(self) -> None:
        if self._slow_client:
            return
        interval = self._limits.chunk_interval
        if interval:
            self._limit_to(Limit.CHUNK_INTERVAL, self._way.clock() + interval)
        else:
            self._limit_to(Limit.TOTAL, self._end)

    def _relay(self, out: bytes) -> None:
        """Write a part of the stream."""
        events = self._events
        assert events is not None
        if events.started:
            self._client.send(out)
        elif out:
            events.started = True
            self._begin(CHUNKED, out)

    def _answer(self, body: bytes) -> None:
        """A whole answer is there."""
        if self._tap is not None:
            self._tap.feed(body)
        self._body = (body,)
        self._begin(b"Content-Length: %d\r\n" % len(body), body)
        self._all_written()

    def _all_written(self) -> None:
        """The request is over, as soon as its client has caught up."""
        if self._slow_client:
            self._written = True
        else:
            self._way.sweep.drop(self)
            self._completed()

    def _begin(self, framing: bytes, body: bytes) -> None:
        """Write the head and what follows it at once."""
        way, memos = self._way, self._memos
        self._closes = way.runtime.draining
        self._client.send(
            b"%bx-continuum-request-id: %b\r\n%b%b%b%b%b\r\n%b"
            % (
                self._plan.head,
                self._request_id.encode("ascii"),
                self._head.cache_line,
                memos.plans.route_lines(self._choice) if memos.snap.routing_headers else b"",
                framing,
                way.date.line(),
                b"Connection: close\r\n" if self._closes else b"",
                body,
            )
        )

    def _begun(self, failure: AttemptFailure | None, reply: QueuedReply | None = None) -> Begun:
        return Begun(
            choice=self._choice,
            started=self._at,
            lease=self._lease,
            sent_at=self._sent_at,
            reply=reply,
            failure=failure,
        )

    def _hand_over_reply(
        self, pieces: Sequence[bytes], failure: AttemptFailure | None = None
    ) -> None:
        """Let the loop go on with an answer of which `pieces` have come, and maybe its end."""
        connection, self._connection = self._connection, None
        reused = failure.reused if failure is not None else connection is not None
        reply = QueuedReply.take_over(connection, self._facts, self._length, pieces, reused=reused)
        if failure is not None:
            reply.on_failure(failure)
        self._hand_over(self._begun(None, reply))

    def _hand_over(self, begun: Begun) -> None:
        self._way.sweep.drop(self)
        request = request_of(self._head.endpoint, self._raw, self._reading)
        rules = self._memos.rules
        self._handed = HandOver(self._way, rules, self._client, self.scope(), self._peer)
        self._handed.start(request, self._head.inbound, self._holdings, begun)

    def _break_off(self, failure: AttemptFailure, result: AttemptResult) -> None:
        """The stream cannot be completed and the client has its start: say so as its last event."""
        scope = self._so_far(ended_by(failure, started=True))
        tell_failure(failure, scope.request_id, scope.outcome)
        scope.outcome.cause = failure.cause
        if self._slow_client:
            self._client.break_off()
        else:
            assert self._events is not None
            error = to_stream_event(error_for(failure), scope.request_id)
            self._client.send(self._events.broken(encode_event(orjson.dumps(error))))
        self._way.sweep.drop(self)
        self._attempt_ended(result)
        self._left(scope, 200)
