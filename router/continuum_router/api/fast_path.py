"""The fast path: ordinary requests are taken before aiohttp's parser (design/data-plane.md).

A request is taken when everything about it is ordinary: its head is there in one piece and strict
(`header_memo`), nothing follows its body, nobody is answered on its connection. Every other byte is
aiohttp's. Taken requests run without a coroutine (`fast_call`).
"""

from continuum_router.api.answer_head import HttpDate
from continuum_router.api.arriving import Arriving
from continuum_router.api.deadline_sweep import DeadlineSweep
from continuum_router.api.fast_call import FastCall
from continuum_router.api.fast_context import FastContext, SnapshotMemos
from continuum_router.api.header_memo import MAX_HEAD_BYTES
from continuum_router.api.middleware import Edge
from continuum_router.api.plain_sink import Client
from continuum_router.routing.response_homes import ResponseHomes
from continuum_router.runtime import Runtime
from continuum_router.upstream.pool import UpstreamPool
from continuum_shared.tasks import Supervisor

BEGINS = b"POST /v1/"

PATIENCE = 8
"""After so many unknown heads in a row a connection's heads are looked up and no longer kept."""


class Visitor:
    """What the fast path knows of one client connection: its peer, and how its heads fared."""

    __slots__ = ("client", "misses", "peer")

    def __init__(self, client: Client, peer: str | None) -> None:
        self.client = client
        self.peer = peer
        self.misses = 0


class FastPath:
    """One for each server."""

    def __init__(
        self,
        runtime: Runtime,
        edge: Edge,
        *,
        upstream: UpstreamPool,
        supervisor: Supervisor,
        homes: ResponseHomes,
    ) -> None:
        state = runtime.current.dispatcher.state
        self.context = FastContext(
            runtime=runtime,
            edge=edge,
            upstream=upstream,
            supervisor=supervisor,
            homes=homes,
            sweep=DeadlineSweep(state.clock),
            date=HttpDate(state.wall),
            clock=state.clock,
            memos=SnapshotMemos.of(runtime.current),
        )

    def take(self, data: bytes, visitor: Visitor) -> FastCall | Arriving | None:
        """Take the request in `data`; None when it is not ordinary, and nothing has happened."""
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
        way = self.context
        if end < 4 or way.runtime.draining:
            return None
        memos = way.current()
        snap = memos.snap
        before = memos.heads.misses
        found = memos.heads.read(
            data[:end],
            trusted=snap.trusted_proxies.trusts(visitor.peer),
            remember=visitor.misses < PATIENCE,
        )
        if found is None:
            return None
        visitor.misses = visitor.misses + 1 if memos.heads.misses > before else 0
        head, length = found
        missing = length - (len(data) - end)
        if length > snap.max_body_bytes or missing < 0:
            return None
        now = way.clock()
        call = FastCall(way, memos, visitor.client, head, visitor.peer, now)
        if missing == 0:
            return call if call.dispatch(data[end:], now) else None
        arriving = Arriving(way, visitor.client, call, head=data[:end], length=length)
        arriving.more(data[end:])
        return arriving

    def close(self) -> None:
        """The server ends."""
        self.context.sweep.close()
