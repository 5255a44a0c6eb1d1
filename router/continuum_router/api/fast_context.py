"""What all calls of the fast path share: the edge's books, the pool, the sweep, the memos."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from continuum_router.api.access_log import AccessLog
from continuum_router.api.answer_head import HttpDate
from continuum_router.api.deadline_sweep import DeadlineSweep
from continuum_router.api.edge_metrics import EdgeMetrics
from continuum_router.api.header_memo import HeaderMemo
from continuum_router.api.middleware import ActiveCount, Edge
from continuum_router.api.placement import Places
from continuum_router.api.reply_plan import ReplyPlans
from continuum_router.routing.response_homes import ResponseHomes
from continuum_router.runtime import Runtime, Snapshot
from continuum_router.upstream.attempt import Dispatcher
from continuum_router.upstream.pool import UpstreamPool
from continuum_shared.tasks import Supervisor


@dataclass(slots=True, kw_only=True, eq=False)
class SnapshotMemos:
    """What was worked out under one snapshot; dropped with it, never emptied by hand.

    `mark` stands for it where somebody who may live longer only wants to know it again.
    """

    snap: Snapshot
    rules: Dispatcher
    heads: HeaderMemo
    places: Places
    plans: ReplyPlans
    mark: object = field(default_factory=object)

    @classmethod
    def of(cls, snap: Snapshot) -> "SnapshotMemos":
        """Empty memos."""
        retryable = snap.dispatcher.retry.retryable_status_codes
        return cls(
            snap=snap,
            rules=snap.dispatcher,
            heads=HeaderMemo(),
            places=Places(snap),
            plans=ReplyPlans(retryable),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class FastContext:
    """`clock` is monotonic seconds. `lines`, `active`, `metrics`, `new_id` are the edge's."""

    runtime: Runtime
    edge: Edge
    upstream: UpstreamPool
    supervisor: Supervisor
    homes: ResponseHomes
    sweep: DeadlineSweep
    date: HttpDate
    clock: Callable[[], float]
    memos: SnapshotMemos
    lines: AccessLog = field(init=False)
    active: ActiveCount = field(init=False)
    metrics: EdgeMetrics = field(init=False)
    new_id: Callable[[], str] = field(init=False)

    def __post_init__(self) -> None:
        edge = self.edge
        self.lines, self.active = edge.lines, edge.active
        self.metrics, self.new_id = edge.metrics, edge.new_id

    def current(self) -> SnapshotMemos:
        """The memos of the snapshot in force."""
        snap = self.runtime.current
        if self.memos.snap is not snap:
            self.memos = SnapshotMemos.of(snap)
        return self.memos

    def spawn(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Go on with a request as a task."""
        return self.supervisor.spawn("request", work)
