"""The listener's own metrics (decisions J5, G19). Labels: source names of the file, closed enums.

Families are made once by the wiring; each source binds its children once, so that counting a batch
is one addition. Sizes of the block graph are read at scrape time.
"""

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum

from continuum_kv_listener.bearer import Refusal
from continuum_kv_listener.chain_stats import ChainStats, Unattributed
from continuum_kv_listener.engine_events import (
    Cleared,
    DropReason,
    EngineEvent,
    Removed,
    Stored,
)
from continuum_kv_listener.server_certificate import Renewal
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_shared.kv_event import KvAction
from continuum_shared.metrics import Counter, Metrics


class EventType(StrEnum):
    """What an engine event is."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


class ReplayResult(StrEnum):
    """How a replay request ended."""

    COMPLETE = "complete"
    NO_ANSWER = "no_answer"
    CUT_SHORT = "cut_short"
    BAD_ENDPOINT = "bad_endpoint"


class QuestionResult(StrEnum):
    """How asking for a path's text ended."""

    ANSWERED = "answered"
    FAILED = "failed"


class StreamStart(StrEnum):
    """What a subscriber got first."""

    RESUMED = "resumed"
    SNAPSHOT = "snapshot"
    SWAP = "swap"


class StreamEnd(StrEnum):
    """Why a subscriber's stream ended."""

    CLIENT_LEFT = "client_left"
    FELL_BEHIND = "fell_behind"
    STALLED = "stalled"
    SHUTDOWN = "shutdown"


EVENT_TYPES: dict[type[EngineEvent], EventType] = {
    Stored: EventType.STORED,
    Removed: EventType.REMOVED,
    Cleared: EventType.CLEARED,
}

ReadAttribution = Callable[[], Iterable[tuple[str, Collection[TemplateLimit], int]]]
"""Source names with the limits of their templates and how many salts have verified."""
ReadStats = Callable[[], Iterable[tuple[str, ChainStats]]]
"""Source names with the present counts of their block graphs."""


class ListenerMetrics:
    """All families of the daemon."""

    def __init__(self, metrics: Metrics) -> None:
        source = {"source": None}
        pre = "continuum_listener_"
        self.metrics = metrics
        self.events = metrics.counter(
            f"{pre}events_total", "Engine events applied.", {"source": None, "type": EventType}
        )
        self.dropped = metrics.counter(
            f"{pre}dropped_total",
            "Received things that did not become state.",
            {"source": None, "reason": DropReason},
        )
        self.batches = metrics.counter(f"{pre}batches_total", "Batches applied.", source)
        self.gaps = metrics.counter(
            f"{pre}gaps_total", "Live batches that did not follow the one before.", source
        )
        self.lost = metrics.counter(
            f"{pre}lost_batches_total", "Batches that no replay brought back.", source
        )
        self.restarts = metrics.counter(
            f"{pre}restarts_total", "Engine processes found to be new ones.", source
        )
        self.replays = metrics.counter(
            f"{pre}replays_total", "Replay requests.", {"source": None, "result": ReplayResult}
        )
        self.connected = metrics.gauge(
            f"{pre}connected", "Publishers connected: 1, or dp_size, when all is well.", source
        )
        self.questions = metrics.counter(
            f"{pre}questions_total",
            "Paths whose text was asked for.",
            {"source": None, "result": QuestionResult},
        )
        self.records = metrics.counter(
            f"{pre}records_total",
            "Records published to subscribers.",
            {"source": None, "action": KvAction},
        )
        self.reannounced = metrics.counter(
            f"{pre}reannounced_total", "Live prefixes told again.", source
        )
        self.subscribers = metrics.gauge(f"{pre}subscribers", "Open event streams.", source)
        self.stream_starts = metrics.counter(
            f"{pre}stream_starts_total",
            "Event streams opened, by what they began with.",
            {"source": None, "start": StreamStart},
        )
        self.stream_ends = metrics.counter(
            f"{pre}stream_ends_total",
            "Event streams ended.",
            {"source": None, "end": StreamEnd},
        )
        self.refused = metrics.counter(
            f"{pre}refused_requests_total",
            "Requests to the HTTP side that were not served.",
            {"reason": Refusal},
        )
        self.crashes = metrics.counter(
            f"{pre}task_crashes_total", "Tasks that ended with an error and were restarted."
        )

    def intake(self, source: str) -> "IntakeMetrics":
        """The children that the intake of one source counts on."""
        return IntakeMetrics(self, source)

    def stream(self, source: str) -> "StreamMetrics":
        """The children of one source's event stream."""
        return StreamMetrics(self, source)

    def watch_attribution(self, read: ReadAttribution) -> None:
        """Register what is read from the attributors at scrape time."""
        self.metrics.gauge_fn(
            "continuum_listener_template_limits",
            "1 for each kind of prompt that the source's chat template keeps from being "
            "attributed.",
            ("source", "limit"),
            lambda: [
                ((source, limit.value), float(limit in limits))
                for source, limits, _ in read()
                for limit in TemplateLimit
            ],
        )
        self.metrics.counter_fn(
            "continuum_listener_verified_salts_total",
            "Chains attributed by a router's salt, without asking for their text.",
            ("source",),
            lambda: [((source,), float(salts)) for source, _, salts in read()],
        )

    def watch_certificate(self, expires: Callable[[], float]) -> dict[Renewal, Counter]:
        """Register what is known about the certificate; gives the counters of its renewals."""
        pre = "continuum_listener_certificate_"
        self.metrics.gauge_fn(
            f"{pre}expiry_timestamp_seconds",
            "End of validity of the HTTP side's certificate, Unix time.",
            (),
            lambda: [((), expires())],
        )
        renewals = self.metrics.counter(
            f"{pre}renewals_total", "Changes of the certificate's files.", {"result": Renewal}
        )
        return {result: renewals.child(result) for result in Renewal}

    def watch_sizes(self, read: ReadStats) -> None:
        """Register what is read from the block graphs at scrape time."""
        pre = "continuum_listener_"
        gauges: tuple[tuple[str, str, Callable[[ChainStats], int]], ...] = (
            ("blocks", "Blocks tracked.", lambda stats: stats.blocks),
            ("tokens", "Token ids kept.", lambda stats: stats.tokens),
            ("prefixes", "Prefixes announced as live.", lambda stats: stats.prefixes),
            ("questions_open", "Paths being asked about.", lambda stats: stats.questions_open),
            (
                "doubted_prefixes",
                "Live prefixes that nothing has shown to be there since events were lost.",
                lambda stats: stats.doubted_prefixes,
            ),
        )
        for name, text, value in gauges:
            self.metrics.gauge_fn(f"{pre}{name}", text, ("source",), _rows(read, value))
        counters: tuple[tuple[str, str, Callable[[ChainStats], int]], ...] = (
            (
                "block_size_mismatch_total",
                "Stored events whose tokens do not fit their block size.",
                lambda stats: stats.block_size_mismatches_total,
            ),
            (
                "evicted_blocks_total",
                "Blocks forgotten because of max_tracked_blocks.",
                lambda stats: stats.blocks_evicted_total,
            ),
            (
                "dropped_texts_total",
                "Token segments forgotten because of max_retained_tokens.",
                lambda stats: stats.texts_dropped_total,
            ),
            (
                "drifted_copies_total",
                "Copies dropped because the engine has fewer blocks than were counted.",
                lambda stats: stats.drifted_copies_total,
            ),
        )
        for name, text, value in counters:
            self.metrics.counter_fn(f"{pre}{name}", text, ("source",), _rows(read, value))
        self.metrics.gauge_fn(
            f"{pre}unattributed_blocks",
            "Blocks without a prefix, by reason.",
            ("source", "reason"),
            lambda: [
                ((source, reason.value), float(stats.unattributed.get(reason, 0)))
                for source, stats in read()
                for reason in Unattributed
            ],
        )


def _rows(
    read: ReadStats, value: Callable[[ChainStats], int]
) -> Callable[[], Iterable[tuple[tuple[str, ...], float]]]:
    return lambda: [((source,), float(value(stats))) for source, stats in read()]


class IntakeMetrics:
    """One source's counters from socket to question."""

    def __init__(self, families: ListenerMetrics, source: str) -> None:
        self.source = source
        self.batches = families.batches.child(source)
        self.gaps = families.gaps.child(source)
        self.lost = families.lost.child(source)
        self.restarts = families.restarts.child(source)
        self.connected = families.connected.child(source)
        self._dropped = {r: families.dropped.child(source, r) for r in DropReason}
        self._replays = {r: families.replays.child(source, r) for r in ReplayResult}
        self._events = {k: families.events.child(source, t) for k, t in EVENT_TYPES.items()}
        self._questions = {r: families.questions.child(source, r) for r in QuestionResult}

    def dropped(self, reason: DropReason) -> None:
        """One thing was dropped."""
        self._dropped[reason].value += 1

    def replayed(self, result: ReplayResult) -> None:
        """One replay request ended."""
        self._replays[result].value += 1

    def applied(self, event: EngineEvent) -> None:
        """An engine event, or several that were read as one, was applied."""
        self._events[type(event)].value += event.merged if isinstance(event, Removed) else 1

    def asked(self, result: QuestionResult) -> None:
        """One question ended."""
        self._questions[result].value += 1


class StreamMetrics:
    """One source's counters from record to subscriber."""

    def __init__(self, families: ListenerMetrics, source: str) -> None:
        self.subscribers = families.subscribers.child(source)
        self.reannounced = families.reannounced.child(source)
        self._records = {a: families.records.child(source, a) for a in KvAction}
        self._starts = {s: families.stream_starts.child(source, s) for s in StreamStart}
        self._ends = {e: families.stream_ends.child(source, e) for e in StreamEnd}

    def published(self, action: KvAction) -> None:
        """One record got its number."""
        self._records[action].value += 1

    def started(self, start: StreamStart) -> None:
        """A subscriber arrived."""
        self.subscribers.value += 1
        self._starts[start].value += 1

    def ended(self, end: StreamEnd) -> None:
        """A subscriber is gone."""
        self.subscribers.value -= 1
        self._ends[end].value += 1
