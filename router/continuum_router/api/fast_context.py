"""What all calls of the fast path share: the edge's books, the pool, the sweep, the memos."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from continuum_router.api.answer_head import HttpDate
from continuum_router.api.deadline_sweep import DeadlineSweep
from continuum_router.api.header_memo import HeaderMemo
from continuum_router.api.middleware import Edge
from continuum_router.api.placement import Places
from continuum_router.api.reply_plan import ReplyPlans
from continuum_router.routing.response_homes import ResponseHomes
from continuum_router.runtime import Runtime, Snapshot
from continuum_router.upstream.pool import UpstreamPool
from continuum_shared.tasks import Supervisor


@dataclass(slots=True, kw_only=True, eq=False)
class SnapshotMemos:
    """What was worked out under one snapshot; dropped with it, never emptied by hand."""

    snap: Snapshot
    heads: HeaderMemo
    places: Places
    plans: ReplyPlans

    @classmethod
    def of(cls, snap: Snapshot) -> "SnapshotMemos":
        """Empty memos."""
        retryable = snap.dispatcher.retry.retryable_status_codes
        return cls(snap=snap, heads=HeaderMemo(), places=Places(snap), plans=ReplyPlans(retryable))


@dataclass(slots=True, kw_only=True, eq=False)
class FastContext:
    """`clock` is monotonic seconds."""

    runtime: Runtime
    edge: Edge
    upstream: UpstreamPool
    supervisor: Supervisor
    homes: ResponseHomes
    sweep: DeadlineSweep
    date: HttpDate
    clock: Callable[[], float]
    memos: SnapshotMemos

    def current(self) -> SnapshotMemos:
        """The memos of the snapshot in force."""
        snap = self.runtime.current
        if self.memos.snap is not snap:
            self.memos = SnapshotMemos.of(snap)
        return self.memos

    def spawn(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Go on with a request as a task."""
        return self.supervisor.spawn("request", work)
