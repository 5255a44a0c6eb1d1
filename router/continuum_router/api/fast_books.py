"""The books of one request on the fast path: who it is, what became of it, what is counted.

The same numbers, lines and leases as on the general way, once each. What the general way keeps in a
`Scope` from the start is put into one here only when somebody asks: a log line, an error, the loop.
"""

from continuum_router.api.event_wire import EventWire
from continuum_router.api.fast_context import FastContext, SnapshotMemos
from continuum_router.api.header_memo import OrdinaryHead
from continuum_router.api.plain_sink import Client
from continuum_router.api.scope import Scope
from continuum_router.backends.fleet import AttemptResult, Lease
from continuum_router.providers.json_scan import ResponseIdTap
from continuum_router.request import Reading
from continuum_router.routing.selector import Choice
from continuum_router.upstream.outcome import Ended
from continuum_router.upstream.usage import Usage, UsageTail


class FastBooks:
    """Made with an ordinary head that came at `now`; `peer` is the client's address.

    `begun`: a backend was chosen and its lease taken. `told`: the request leaves a completion line.
    `due` is when its present time limit passes.
    """

    # What most requests never change stands here once: to set it each time would cost.
    _scope: Scope | None = None
    _events: EventWire | None = None
    _body: tuple[bytes, ...] = ()
    _ttft: float | None = None
    _tap: ResponseIdTap | None = None
    _closes = False
    begun = False
    told = False
    # These from the choice on.
    _reading: Reading
    _choice: Choice
    _name: str
    _lease: Lease
    due: float

    def __init__(
        self,
        way: FastContext,
        memos: SnapshotMemos,
        client: Client,
        head: OrdinaryHead,
        peer: str | None,
        now: float,
    ) -> None:
        self._way = way
        self._memos = memos
        self._client = client
        self._head = head
        self._peer = peer
        self._started_at = now
        self._request_id = way.new_id()
        if head.keeps_id:
            self._tap = ResponseIdTap()

    def scope(self) -> Scope:
        """The request as the general way knows it."""
        scope = self._scope
        if scope is None:
            scope = self._scope = self._head.scope(self._request_id, self._started_at)
            scope.routing_headers = self._memos.snap.routing_headers
            if self.begun:
                scope.model = self._reading[1] or None
                scope.outcome.backend, scope.outcome.choice = self._name, self._choice
        return scope

    def _so_far(self, ended: Ended | None = None) -> Scope:
        """The scope, with what has become of the one attempt."""
        scope = self.scope()
        outcome = scope.outcome
        outcome.attempts, outcome.ttft, outcome.ended = 1, self._ttft, ended
        if self.told:
            outcome.usage = self._usage()
        return scope

    def _usage(self) -> Usage | None:
        """What the answer, as far as it came, says of its tokens."""
        if self._events is not None:
            return self._events.usage()
        tail = UsageTail()
        for piece in self._body:
            tail.feed(piece)
        return tail.read()

    def _attempt_ended(self, result: AttemptResult) -> None:
        """Count the attempt down, record it."""
        self._lease.end()
        state = self._memos.rules.state
        state.fleet.record(self._name, result)
        state.metrics.attempt_ended(result)
        if self._tap is not None and self._tap.found:
            # A client that left has seen the id too, and may come back with it.
            self._way.homes.remember(self._tap.found, self._name)

    def _completed(self) -> None:
        """The answer has been sent in full: the connection goes on, unless it was said to close."""
        way, name, ticket = self._way, self._name, self._lease.ticket
        if ticket is not None and (usage := self._usage()) is not None:
            ticket.usage(usage.prompt_tokens, usage.cached_tokens)
        self._attempt_ended(AttemptResult.OK)
        now = way.clock()
        prefix = self._reading[3]
        if prefix is not None:
            self._memos.rules.state.served(name, prefix, now)
        seconds = now - self._started_at
        way.metrics.completed(self._head.label, seconds, self._ttft)
        if self.told:
            way.lines.completed(self._so_far(Ended.COMPLETE), 200, seconds)
        active = way.active
        active.now -= 1
        if not active.now:
            active.none_left()
        self._client.call_ended(self._closes)

    def _left(self, scope: Scope, status: int) -> None:
        """The request has ended otherwise, and the client's connection with it."""
        self._way.edge.account(scope, status)
        self._way.active.leave()
        self._client.call_ended(True)
