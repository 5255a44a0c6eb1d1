"""The books of one request on the fast path: who it is, what became of it, what is counted.

The same numbers, lines and leases as on the general way, once each. What the general way keeps in a
`Scope` from the start is put into one here only when somebody asks: a log line, an error, the loop.
"""

from continuum_router.api.event_wire import EventWire
from continuum_router.api.fast_context import FastContext, SnapshotMemos
from continuum_router.api.header_memo import OrdinaryHead
from continuum_router.api.placement import Placement
from continuum_router.api.plain_sink import Client
from continuum_router.api.scope import Scope
from continuum_router.backends.fleet import AttemptResult, Lease
from continuum_router.providers.json_scan import ResponseIdTap
from continuum_router.upstream.outcome import Ended
from continuum_router.upstream.usage import Usage, UsageTail


class FastBooks:
    """Made with an ordinary head that came at `now`; `peer` is the client's address.

    `begun`: a backend was chosen and its lease taken. `told`: the request leaves a completion line.
    `due` is when its present time limit passes.
    """

    __slots__ = (
        "_body",
        "_client",
        "_closes",
        "_events",
        "_head",
        "_lease",
        "_memos",
        "_name",
        "_peer",
        "_placed",
        "_request_id",
        "_scope",
        "_started_at",
        "_tap",
        "_ttft",
        "_way",
        "begun",
        "due",
        "told",
    )

    def __init__(
        self,
        way: FastContext,
        memos: SnapshotMemos,
        client: Client,
        head: OrdinaryHead,
        peer: str | None,
        now: float,
    ) -> None:
        self._placed: Placement  # these from the choice on
        self._name: str
        self._lease: Lease
        self.due: float
        self._way = way
        self._memos = memos
        self._client = client
        self._head = head
        self._peer = peer
        self._started_at = now
        self._request_id = way.new_id()
        self._scope: Scope | None = None
        self._events: EventWire | None = None
        self._body: list[bytes] | tuple[bytes, ...] = ()
        self._ttft: float | None = None
        self._tap = ResponseIdTap() if head.keeps_id else None
        self._closes = False
        self.begun = False
        self.told = False

    def scope(self) -> Scope:
        """The request as the general way knows it."""
        scope = self._scope
        if scope is None:
            scope = self._scope = self._head.scope(self._request_id, self._started_at)
            scope.routing_headers = self._memos.snap.routing_headers
            if self.begun:
                scope.model = self._placed.reading[1] or None
                scope.outcome.backend, scope.outcome.choice = self._name, self._placed.choice
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
        way, ticket = self._way, self._lease.ticket
        if ticket is not None and (usage := self._usage()) is not None:
            ticket.usage(usage.prompt_tokens, usage.cached_tokens)
        self._attempt_ended(AttemptResult.OK)
        now = way.clock()
        prefix = self._placed.reading[3]
        if prefix is not None:
            self._memos.rules.state.served(self._name, prefix, now)
        seconds = now - self._started_at
        way.metrics.completed(self._head.label, seconds, self._ttft)
        if self.told:
            way.lines.completed(self._so_far(Ended.COMPLETE), 200, seconds)
        way.active.leave()
        self._client.call_ended(close=self._closes)

    def _left(self, scope: Scope, status: int) -> None:
        """The request has ended otherwise, and the client's connection with it."""
        self._way.edge.account(scope, status)
        self._way.active.leave()
        self._client.call_ended(close=True)
