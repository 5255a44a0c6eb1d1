"""What the batches of one source become: events of its block graph, then published records.

Nothing here waits, so tracking never depends on how fast the engine gives text
(design/architecture.md, section 5). The tasks around it are in ``source_runner``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol

from continuum_kv_listener.attribution_types import PathVerdict, Question
from continuum_kv_listener.chain_stats import ChainStats
from continuum_kv_listener.decode import DecodedBatch, decode_batch
from continuum_kv_listener.decode_slices import SMALL_BYTES, decode_slices
from continuum_kv_listener.engine_events import DropReason, EngineEvent, RawBatch
from continuum_kv_listener.listener_metrics import IntakeMetrics
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.logs import fields
from continuum_shared.prefix_key import PrefixKey

log = logging.getLogger("continuum_kv_listener.pipeline")

LOGGED_ONCE = {
    DropReason.UNDECODABLE_BATCH: "Batch cannot be decoded",
    DropReason.MALFORMED_EVENT: "Event is malformed",
    DropReason.UNKNOWN_TAG: "Event type is unknown",
    DropReason.BAD_FRAMES: "Message has the wrong frames",
    DropReason.OVERSIZED: "Message is larger than max_frame_bytes",
    DropReason.BAD_SALT: "A router's salt does not verify",
    DropReason.NOT_ALLOWED: "Publisher is not in allowed_publishers",
}
"""Drops that mean a wrong set-up: one line in the log per source, the rest is in the counter."""


class Tracker(Protocol):
    """The block graph of one source (``chain.ChainTracker``)."""

    @property
    def stats(self) -> ChainStats: ...

    def apply(self, event: EngineEvent, now: float) -> Sequence[DropReason]: ...

    def questions(self, limit: int, now: float) -> list[Question]: ...

    def answer(self, node: int, verdict: PathVerdict, now: float) -> None: ...

    def retry(self, node: int, at: float) -> None: ...

    def ask_again(self, now: float) -> int: ...

    def drain(self, now: float) -> list[KvEvent]: ...

    def next_due(self, now: float) -> float | None: ...

    def snapshot(self) -> list[tuple[PrefixKey, int, bool]]: ...

    def purge(self, now: float) -> None: ...

    def suspect(self, now: float) -> None: ...

    def doubted(self) -> frozenset[PrefixKey]: ...

    def fit(self, gpu_blocks: int) -> int: ...


class OnGap(StrEnum):
    """What an unrecovered loss means for what was known before it (decisions C17)."""

    SUSPECT = "suspect"
    """It is believed for one more TTL, and longer where a later store proves it."""
    PURGE = "purge"
    """It is dropped at once."""


class Outlet(Protocol):
    """Where records go (``stream.EventStream``, ``rank_merge.RankPort``)."""

    def publish(self, events: Iterable[KvEvent]) -> None: ...


class Pipeline:
    """Decodes, tracks and publishes for one source. ``clock`` gives monotonic seconds.

    ``due_changed`` and ``work_changed`` are set whenever there may be something new to publish,
    or to ask the engine about.
    """

    def __init__(
        self,
        *,
        engine: str,
        tracker: Tracker,
        metrics: IntakeMetrics,
        clock: Callable[[], float],
        on_restart: Callable[[float], None],
        on_gap: OnGap = OnGap.SUSPECT,
    ) -> None:
        self.tracker = tracker
        self.due_changed = asyncio.Event()
        self.work_changed = asyncio.Event()
        self.drops: dict[DropReason, int] = {}
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._on_restart = on_restart
        self._on_gap = on_gap
        self._outlet: Outlet | None = None

    def publish_to(self, outlet: Outlet) -> None:
        """Where records go (the stream needs this pipeline's snapshot, so it is made later)."""
        self._outlet = outlet

    def batch(self, raw: RawBatch) -> Iterable[None]:
        """Apply one batch; a bad event costs itself. What is returned has to be iterated to its
        end: empty when the batch was small and is done with, else a pause between two slices.

        A batch that breaks off is noticed before any of it is applied, and what is known at a pause
        is what the engine held between two of its events: good to publish and to begin a stream
        with.
        """
        if len(raw.payload) <= SMALL_BYTES:
            self._apply(decode_batch(raw.payload, self._engine))
            return ()
        return self._slices(raw.payload)

    def _slices(self, payload: bytes) -> Iterator[None]:
        for part in decode_slices(payload, self._engine):
            self._apply(part)
            yield

    def _apply(self, part: DecodedBatch) -> None:
        for reason in part.drops:
            self.dropped(reason)
            if reason is DropReason.UNDECODABLE_BATCH:
                self.lost()
        now = self._clock()
        for event in part.events:
            for reason in self.tracker.apply(event, now):
                self.dropped(reason)
            self._metrics.applied(event)

    def restarted(self) -> None:
        """The engine's cache is empty: say so at once."""
        now = self._clock()
        self.tracker.purge(now)
        self._on_restart(now)
        self.caught_up()

    def lost(self) -> None:
        """Events are missing for good: what they removed is still tracked."""
        now = self._clock()
        if self._on_gap is OnGap.PURGE:
            self.tracker.purge(now)
        else:
            self.tracker.suspect(now)

    def fit(self, gpu_blocks: int) -> None:
        """The engine said how many blocks it has (C16)."""
        dropped = self.tracker.fit(gpu_blocks)
        if dropped:
            log.warning(
                "More copies were counted than the engine has blocks",
                extra=fields(source=self._metrics.source, dropped=dropped, gpu_blocks=gpu_blocks),
            )
            self.caught_up()

    def caught_up(self) -> None:
        """Publish what is due and let the tasks look for more to do."""
        self.flush()
        self.due_changed.set()
        self.work_changed.set()

    def flush(self) -> None:
        """Publish what is due now."""
        if self._outlet is not None:
            self._outlet.publish(self.tracker.drain(self._clock()))

    def snapshot(self) -> list[KvEvent]:
        """One record for each live prefix, after everything due was published (J17)."""
        self.flush()
        return [_record(*row) for row in self.tracker.snapshot()]

    def dropped(self, reason: DropReason) -> None:
        """Count one drop; the first of a kind that means a wrong set-up is logged."""
        self._metrics.dropped(reason)
        seen = self.drops.get(reason, 0)
        self.drops[reason] = seen + 1
        if not seen and reason in LOGGED_ONCE:
            log.warning(
                LOGGED_ONCE[reason],
                extra=fields(source=self._metrics.source, reason=reason.value),
            )


def _record(prefix: PrefixKey, tokens: int, warm: bool) -> KvEvent:
    action = KvAction.OFFLOADED if warm else KvAction.CREATED
    return KvEvent(action=action, prefix=prefix, tokens=tokens)
