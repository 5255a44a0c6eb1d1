"""From the fast path to the general loop: a task goes on with what was begun."""

import asyncio
from collections.abc import Mapping

import orjson

from continuum_router.api.fast_context import FastContext
from continuum_router.api.plain_sink import Client, PlainSink
from continuum_router.api.scope import Scope
from continuum_router.backends.holding import Holding
from continuum_router.error_bodies import error_form, to_client
from continuum_router.errors import ClientGone, RouterError
from continuum_router.providers.json_scan import ResponseIdTap
from continuum_router.providers.prepare import Inbound
from continuum_router.request import ChatRequest, Endpoint
from continuum_router.upstream.attempt import Dispatcher
from continuum_router.upstream.begun import Begun
from continuum_router.upstream.outcome import Call


class HandOver:
    """One request that goes on as a task.

    The task writes the books, ends the lease, leaves the count of active requests and tells the
    client's connection when all is over.
    """

    __slots__ = (
        "_begun",
        "_call",
        "_client",
        "_peer",
        "_rules",
        "_scope",
        "_sink",
        "_tap",
        "_task",
        "_way",
    )

    def __init__(
        self, way: FastContext, rules: Dispatcher, client: Client, scope: Scope, peer: str | None
    ) -> None:
        self._way = way
        self._rules = rules
        self._client = client
        self._peer = peer
        self._scope = scope
        self._sink = PlainSink(
            client,
            date=way.date,
            more_headers=scope.headers,
            closing=lambda: way.runtime.draining,
        )
        self._begun: Begun | None = None
        self._call: Call | None = None
        self._tap: ResponseIdTap | None = None
        self._task: asyncio.Task[None] | None = None

    def start(
        self,
        request: ChatRequest,
        inbound: Inbound,
        holdings: Mapping[str, Holding] | None,
        begun: Begun,
    ) -> None:
        """Go on in the next turn of the loop."""
        self._scope.sink = self._sink
        # The loop counts the attempt that it takes up.
        self._scope.outcome.attempts = 0
        self._begun = begun
        self._tap = ResponseIdTap() if request.endpoint is Endpoint.RESPONSES else None
        self._call = Call(
            request=request,
            inbound=inbound,
            holdings=holdings,
            sink=self._sink,
            request_id=self._scope.request_id,
            outcome=self._scope.outcome,
            taps=() if self._tap is None else (self._tap,),
            client=self._peer,
        )
        self._task = self._way.spawn(self._run())

    def cancel(self) -> Begun | None:
        """The client has left. Gives what was begun if the task never ran: it never will."""
        assert self._task is not None
        self._task.cancel()
        return self._begun

    async def _run(self) -> None:
        begun, self._begun = self._begun, None
        edge = self._way.edge
        close = True
        try:
            await edge.settle(self._scope, lambda: self._work(begun), self._refuse)
            close = self._sink.closes
        except ConnectionError:
            pass  # nobody is there, or the answer was cut
        finally:
            edge.active.leave()
            self._client.call_ended(close=close)

    async def _work(self, begun: Begun | None) -> PlainSink:
        assert self._call is not None
        try:
            await self._rules.run(self._call, begun)
        finally:
            backend = self._scope.outcome.backend
            if self._tap is not None and self._tap.found and backend is not None:
                self._way.homes.remember(self._tap.found, backend)
        return self._sink

    def _refuse(self, err: RouterError) -> PlainSink:
        form = error_form(self._scope.path)
        status, body, headers = to_client(err, self._scope.request_id, form)
        try:
            self._sink.refuse(status, list(headers.items()), orjson.dumps(body))
        except ClientGone:
            raise ConnectionResetError("the client left") from None
        return self._sink
