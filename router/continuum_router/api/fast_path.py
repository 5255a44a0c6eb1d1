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
from continuum_router.api.header_memo import MAX_DIGITS, MAX_HEAD_BYTES, OrdinaryHead
from continuum_router.api.middleware import Edge
from continuum_router.api.plain_sink import Client
from continuum_router.routing.response_homes import ResponseHomes
from continuum_router.runtime import Runtime
from continuum_router.upstream.pool import UpstreamPool
from continuum_shared.tasks import Supervisor

BEGINS = b"POST /v1/"

ZERO = ord("0")

PATIENCE = 8
"""After so many unknown heads in a row a connection's heads are looked up and no longer kept."""


class Visitor:
    """What the fast path knows of one client connection: its peer, and how its heads fared.

    `head` is the last one, read under the memos of `mark`: clients send the same again and again.
    """

    __slots__ = ("client", "head", "mark", "misses", "peer")

    def __init__(self, client: Client, peer: str | None) -> None:
        self.client = client
        self.peer = peer
        self.misses = 0
        self.head: OrdinaryHead | None = None
        self.mark: object = None

    def same_head(self, data: bytes, memos: SnapshotMemos) -> int:
        """How many bytes the head of `data` takes if it is `head` with any length, else 0."""
        head = self.head
        if head is None or self.mark is not memos.mark or not data.startswith(head.start):
            return 0
        begin = len(head.start)
        end = data.find(b"\r\n", begin, begin + MAX_DIGITS + 2)
        plain = end > begin and data.startswith(head.rest, end) and data[begin:end].isdigit()
        if not plain or (data[begin] == ZERO and end > begin + 1):
            return 0
        return end + len(head.rest)


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
        way = self.context
        runtime = way.runtime
        if runtime.draining:
            return None
        memos = way.memos
        if memos.snap is not runtime.current:
            memos = way.current()
        head = visitor.head
        end = visitor.same_head(data, memos)
        if end and head is not None:
            length = int(data[len(head.start) : end - len(head.rest)])
        else:
            end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
            found = self._read(data[:end], visitor, memos) if end >= 4 else None
            if found is None:
                return None
            head, length = found
        missing = length - (len(data) - end)
        if length > memos.snap.max_body_bytes or missing < 0:
            return None
        now = way.clock()
        call = FastCall(way, memos, visitor.client, head, visitor.peer, now)
        if missing == 0:
            return call if call.dispatch(data[end:], now) else None
        arriving = Arriving(way, visitor.client, call, head=data[:end], length=length)
        arriving.more(data[end:])
        return arriving

    def _read(
        self, head: bytes, visitor: Visitor, memos: SnapshotMemos
    ) -> tuple[OrdinaryHead, int] | None:
        before = memos.heads.misses
        found = memos.heads.read(
            head,
            trusted=memos.snap.trusted_proxies.trusts(visitor.peer),
            remember=visitor.misses < PATIENCE,
        )
        if found is not None:
            visitor.misses = visitor.misses + 1 if memos.heads.misses > before else 0
            visitor.head, visitor.mark = found[0], memos.mark
        return found

    def close(self) -> None:
        """The server ends."""
        self.context.sweep.close()
