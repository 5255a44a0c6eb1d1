"""One ordinary request on its way, without a coroutine: the fast path's `attempt` and `relay`.

It calls what the general loop calls, in the same order: parse, look up, choose, count, lease, send,
relay, record. As soon as something is not ordinary (no free connection, a failure, an unusual
answer) and the client has no bytes yet, the general loop goes on with what was begun
(`_hand_over`), and what becomes of the request then is decided there alone.
"""

from collections.abc import Sequence

import orjson

from continuum_router.api.answer_head import header_lines
from continuum_router.api.edge_metrics import EndpointLabel
from continuum_router.api.event_wire import EventWire
from continuum_router.api.fast_context import FastContext, SnapshotMemos
from continuum_router.api.hand_over import HandOver
from continuum_router.api.header_memo import OrdinaryHead
from continuum_router.api.placement import Placement
from continuum_router.api.plain_sink import Client
from continuum_router.api.scope import CACHE_BYPASS, Scope
from continuum_router.backends.exchange import UpstreamRequest
from continuum_router.backends.fleet import AttemptResult, Lease
from continuum_router.errors import AttemptFailure, Stage, to_stream_event
from continuum_router.providers.json_scan import ResponseIdTap
from continuum_router.request import COMPLETING, Endpoint
from continuum_router.upstream.attempt import Dispatcher
from continuum_router.upstream.begun import Begun
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.deadlines import Limit
from continuum_router.upstream.outcome import (
    Ended,
    ended_by,
    error_for,
    result_of_failure,
    tell_failure,
)
from continuum_router.upstream.relay import COLLECT_LIMIT
from continuum_router.upstream.reply import QueuedReply
from continuum_router.upstream.response_head import HeadFacts
from continuum_router.upstream.usage import Usage, tell_usage, usage_of
from continuum_shared.sse import encode_event

_BYPASS = header_lines([CACHE_BYPASS])


class FastCall:
    """See the module. `due` and `expire` are for the sweep, `on_*` and `wire` for the connection.

    Made with an ordinary head; `dispatch` sends it off with its body.
    """

    __slots__ = (
        "_body",
        "_client",
        "_closes",
        "_connection",
        "_end",
        "_events",
        "_facts",
        "_handed",
        "_head",
        "_lease",
        "_length",
        "_limit",
        "_memos",
        "_placed",
        "_rules",
        "_scope",
        "_sent_at",
        "_stage",
        "_started",
        "_tap",
        "_way",
        "due",
        "wire",
    )

    def __init__(
        self, way: FastContext, memos: SnapshotMemos, client: Client, head: OrdinaryHead
    ) -> None:
        self._placed: Placement  # from `dispatch` on
        self._end: float
        self._sent_at: float
        self._length: int | None  # from `on_head` on
        self._way = way
        self._memos = memos
        self._rules: Dispatcher = memos.snap.dispatcher
        self._client = client
        self._head = head
        self._scope = Scope(
            request_id=way.edge.new_id(),
            started=way.clock(),
            method="POST",
            endpoint=EndpointLabel(head.endpoint.value),
            route=head.endpoint.path,
            api=True,
            path=head.endpoint.path,
            cacheable=head.endpoint in COMPLETING,
            generates=True,
            routing_headers=memos.snap.routing_headers,
            client_id=head.client_id,
            client_ref=head.client_ref,
            trace_id=head.trace_id,
        )
        self._body: list[bytes] = []
        self._limit = Limit.TOTAL
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._stage = Stage.SELECTING
        self._facts: HeadFacts | None = None
        self._events: EventWire | None = None
        self._started = False
        self._closes = False
        self._handed: HandOver | None = None
        self._tap = ResponseIdTap() if head.endpoint is Endpoint.RESPONSES else None
        self.due = 0.0
        self.wire = False

    def dispatch(self, raw: bytes, *, counted: bool = False) -> bool:
        """Send the request off with its body. False: nothing for the fast path, nothing happened.

        `counted`: the request is among the active ones already.
        """
        way, head, outcome = self._way, self._head, self._scope.outcome
        placed = self._memos.places.place(head.endpoint, raw, way.clock(), head.inbound)
        if placed is None:
            return False
        self._placed = placed
        self._scope.model = placed.request.model or None
        if self._scope.cacheable:
            way.edge.lines.started(self._scope)
        outcome.backend, outcome.choice = placed.choice.backend.name, placed.choice
        self._end = self.due = placed.at + placed.limits.total
        if not counted:
            way.edge.active.__enter__()
        way.sweep.add(self)
        self._send()
        return True

    def _send(self) -> None:
        choice, request, way = self._placed.choice, self._placed.request, self._way
        fleet = self._rules.state.fleet
        lease = fleet.lease(choice.backend.name, choice.rule.by_prefix, choice.ticket)
        self._lease = lease.begin()
        try:
            connection = way.upstream.take(choice.backend)
        except AttemptFailure:
            connection = None
        if connection is None:
            self._hand_over(Begun(choice=choice, lease=lease, started=self._placed.at))
            return
        self._scope.outcome.attempts = 1
        self._connection = connection
        self._stage = Stage.SENDING
        self._sent_at = way.clock()
        raw = request.raw
        head = self._head.head_for(choice.backend, self._rules.preparer)
        sent = UpstreamRequest(method="POST", head=b"%b%d\r\n\r\n" % (head, len(raw)), body=raw)
        connection.start(sent, self)

    # -- ReplySink --------------------------------------------------------------------------

    def on_sent(self) -> None:
        self._stage = Stage.AWAITING_HEAD
        first_byte = self._placed.limits.first_byte
        if first_byte:
            self._limit_to(Limit.FIRST_BYTE, self._way.clock() + first_byte)

    def on_head(self, facts: HeadFacts, length: int | None) -> None:
        self._facts, self._length = facts, length
        self._stage = Stage.STREAMING
        plan = self._memos.plans.plan(facts)
        seconds = self._way.clock() - self._sent_at
        self._rules.state.fleet.observe_latency(self._placed.choice.backend.name, seconds)
        if self._placed.request.stream:
            if plan.events:
                self._events = EventWire()
                return
        elif plan.plain and length is not None and length <= COLLECT_LIMIT:
            self._first_token()
            return
        self._hand_over_reply(())

    def on_body(self, data: bytes) -> None:
        events = self._events
        if events is None:
            self._body.append(data)
            return
        self._note(data)
        known = events.first.seen
        out = events.payload(data)
        if events.first.error is not None:
            self._hand_over_reply((events.first.take(),))
            return
        if not known and events.first.seen:
            self._first_token()
        self.wire = events.passing and (self._tap is None or self._tap.found is not None)
        self._relay(out)
        if events.first.seen and not self._client.writing_paused:
            self._await_chunk()

    def on_chunks(self, data: bytes, size: int) -> None:
        assert self._events is not None
        self._client.send(self._events.chunks(data, size))
        if not self._client.writing_paused:
            self._await_chunk()

    def on_end(self) -> None:
        self._connection = None
        events = self._events
        if events is None:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._note(body)
            self._begin(b"Content-Length: %d\r\n" % len(body), body)
        else:
            self._relay(events.end())
        self._scope.outcome.ended = Ended.COMPLETE
        self._book(AttemptResult.OK)
        prefix = self._placed.request.prefix
        if prefix is not None:
            self._rules.state.served(self._placed.choice.backend.name, prefix, self._way.clock())
        self._leave(200, close=self._closes)

    def on_failure(self, failure: AttemptFailure) -> None:
        self._connection = None
        if self._started:
            self._break_off(failure, result_of_failure(failure))
        elif self._facts is None:
            self._hand_over(self._begun(failure=failure))
        else:
            held = self._body if self._events is None else [self._events.first.take()]
            self._hand_over_reply([piece for piece in held if piece], failure)

    # -- the client -------------------------------------------------------------------------

    def pause(self) -> None:
        """The client reads slower than it is written to: nobody but the total limit hurries."""
        self._limit_to(Limit.TOTAL, self._end)
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._connection is not None:
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
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        status = self._way.edge.cancelled(self._scope)
        if self._lease is not None:
            self._scope.outcome.attempts = 1
            self._book(AttemptResult.CLIENT_GONE)
        self._leave(status, close=True)

    # -- DeadlineSweep ----------------------------------------------------------------------

    def expire(self, now: float) -> None:  # noqa: ARG002
        """A limit has passed."""
        failure = AttemptFailure(self._stage, self._limit.cause)
        owes = not self._client.writing_paused
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        if self._started:
            result = AttemptResult.FAILED if owes else AttemptResult.CLIENT_GONE
            self._break_off(failure, result)
        else:
            self._hand_over(self._begun(failure=failure))

    # ---------------------------------------------------------------------------------------

    def _limit_to(self, limit: Limit, due: float) -> None:
        if due < self._end:
            self._limit, self.due = limit, due
        else:
            self._limit, self.due = Limit.TOTAL, self._end

    def _await_chunk(self) -> None:
        interval = self._placed.limits.chunk_interval
        if interval:
            self._limit_to(Limit.CHUNK_INTERVAL, self._way.clock() + interval)
        else:
            self._limit_to(Limit.TOTAL, self._end)

    def _relay(self, out: bytes) -> None:
        """Write a part of the stream."""
        if self._started:
            self._client.send(out)
        elif out:
            self._begin(b"Transfer-Encoding: chunked\r\n", out)

    def _begin(self, framing: bytes, body: bytes) -> None:
        """Write the head and what follows it at once."""
        assert self._facts is not None
        self._started = True
        way, scope, plans = self._way, self._scope, self._memos.plans
        self._closes = way.runtime.draining
        self._client.send(
            b"%bx-continuum-request-id: %b\r\n%b%b%b%b%b\r\n%b"
            % (
                plans.plan(self._facts).head,
                scope.request_id.encode("ascii"),
                _BYPASS if scope.cacheable else b"",
                plans.route_lines(self._placed.choice) if scope.routing_headers else b"",
                framing,
                way.date.line(),
                b"Connection: close\r\n" if self._closes else b"",
                body,
            )
        )

    def _begun(self, failure: AttemptFailure | None, reply: QueuedReply | None = None) -> Begun:
        assert self._lease is not None
        return Begun(
            choice=self._placed.choice,
            started=self._placed.at,
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
        assert self._facts is not None
        reused = failure.reused if failure is not None else connection is not None
        reply = QueuedReply.take_over(connection, self._facts, self._length, pieces, reused=reused)
        if failure is not None:
            reply.on_failure(failure)
        self._hand_over(self._begun(None, reply))

    def _hand_over(self, begun: Begun) -> None:
        self._way.sweep.drop(self)
        self._handed = HandOver(self._way, self._rules, self._client, self._scope)
        placed = self._placed
        self._handed.start(placed.request, self._head.inbound, placed.holdings, begun)

    def _first_token(self) -> None:
        self._scope.outcome.ttft = self._way.clock() - self._sent_at
        if (ticket := self._placed.choice.ticket) is not None:
            ticket.first_token()

    def _note(self, data: bytes) -> None:
        if self._tap is not None:
            self._tap.feed(data)

    def _break_off(self, failure: AttemptFailure, result: AttemptResult) -> None:
        """The stream cannot be completed and the client has its start: say so as its last event."""
        assert self._events is not None
        scope, outcome = self._scope, self._scope.outcome
        tell_failure(failure, scope.request_id, outcome)
        outcome.cause = failure.cause
        outcome.ended = ended_by(failure, started=True)
        if self._client.writing_paused:
            self._client.break_off()
        else:
            error = to_stream_event(error_for(failure), scope.request_id)
            self._client.send(self._events.broken(encode_event(orjson.dumps(error))))
        self._book(result)
        self._leave(200, close=True)

    def _book(self, result: AttemptResult) -> None:
        """The attempt has ended: count it down, record it."""
        name, state = self._placed.choice.backend.name, self._rules.state
        assert self._lease is not None
        if result is AttemptResult.OK and self._lease.ticket is not None:
            tell_usage(self._lease.ticket, self._usage())
        self._lease.end()
        state.fleet.record(name, result)
        state.metrics.attempt_ended(result)

    def _leave(self, status: int, *, close: bool) -> None:
        """The request has ended: write its books, let the connection go on or end."""
        way, scope = self._way, self._scope
        way.sweep.drop(self)
        if self._tap is not None and self._tap.found:
            way.homes.remember(self._tap.found, self._placed.choice.backend.name)
        if way.edge.lines.wanted:
            scope.outcome.usage = self._usage()
        way.edge.account(scope, status)
        way.edge.active.__exit__()
        self._client.call_ended(close=close)

    def _usage(self) -> Usage | None:
        return self._events.usage() if self._events is not None else usage_of(self._body)
