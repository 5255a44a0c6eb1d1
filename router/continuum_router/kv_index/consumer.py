"""One backend's event stream into the index: read, decode, apply, resume.

S0 "Event consumption" and "SSE parsing", decisions A17, C8-C11, C28-C31. One supervised task runs
:meth:`KvEventConsumer.run` per source. Records are applied as they are read and nothing is queued,
so a router that falls behind stops reading and the listener feels it as back pressure; no record is
dropped for want of time (C30).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from continuum_router.kv_index.apply import OffloadPolicy, next_tier
from continuum_router.kv_index.feeds import EventFeed, FeedError, FeedFault
from continuum_router.kv_index.index import KvIndex
from continuum_router.kv_index.staging import Staging
from continuum_shared.backoff import Backoff
from continuum_shared.kv_event import (
    EventId,
    KvAction,
    KvEvent,
    KvEventError,
    KvEventFault,
    decode,
    parse_closing,
    parse_prefix_length,
)
from continuum_shared.logs import fields
from continuum_shared.metrics import Counter, Gauge, Metrics
from continuum_shared.sse import SseComment, SseEvent, SseOverflow, SseParser

log = logging.getLogger("continuum_router.kv_index")

BACKOFF_INITIAL = 1.0
BACKOFF_MAXIMUM = 60.0
LOOK_INTERVAL = 1.0
"""Seconds between two looks whether a listener that was away accepts connections again."""
SNAPSHOT_PATIENCE = 2.0
"""Seconds after which an incomplete snapshot is swapped in as far as it came (C28)."""

SLICE = 8 * 1024
"""Bytes that are applied without giving way, half a millisecond or so: a listener's snapshot of
many megabytes must not hold up client requests."""


class EventDrop(StrEnum):
    """Why a record was not applied: label ``reason`` of ``continuum_kv_event_dropped_total``."""

    UNKNOWN_TYPE = KvEventFault.UNKNOWN_TYPE.value
    MALFORMED = KvEventFault.MALFORMED.value
    OVERSIZED = "oversized"


class FeedLoss(StrEnum):
    """Why a stream is not open: label ``reason`` of ``continuum_kv_consumer_losses_total``."""

    CONNECT = FeedFault.CONNECT.value
    TIMEOUT = FeedFault.TIMEOUT.value
    TLS = FeedFault.TLS.value
    UNAUTHORIZED = FeedFault.UNAUTHORIZED.value
    REFUSED = FeedFault.REFUSED.value
    STATUS = FeedFault.STATUS.value
    CONTENT_TYPE = FeedFault.CONTENT_TYPE.value
    CUT = FeedFault.CUT.value
    OVERSIZED = "oversized"
    ENDED = "ended"


WIRING = MappingProxyType(
    {
        FeedLoss.TLS: "see event_sources[].tls and the listener's certificate",
        FeedLoss.UNAUTHORIZED: "auth_token must be one of the listener's auth_token_env",
        FeedLoss.REFUSED: "the listener's max_subscribers is reached",
        FeedLoss.STATUS: "endpoint must be the listener's /events/NAME of a source that it has",
        FeedLoss.CONTENT_TYPE: "something else than the listener answers at endpoint",
    }
)
"""Losses that waiting does not heal, and what to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCounters:
    """The series of one source, bound once."""

    received: dict[KvAction, Counter]
    dropped: dict[EventDrop, Counter]
    connected: Gauge
    reconnects: Counter
    losses: dict[FeedLoss, Counter]
    length_mismatch: Gauge


class ConsumerMetrics:
    """The families of all event consumers (decisions G19, A17)."""

    def __init__(self, metrics: Metrics) -> None:
        self._received = metrics.counter(
            "continuum_kv_event_received_total",
            "KV events received from a backend's source and applied.",
            {"backend": None, "action": KvAction},
        )
        self._dropped = metrics.counter(
            "continuum_kv_event_dropped_total",
            "KV events of a backend's source that could not be used.",
            {"backend": None, "reason": EventDrop},
        )
        self._connected = metrics.gauge(
            "continuum_kv_consumer_connected",
            "1 while the event stream of a backend is open.",
            {"backend": None},
        )
        self._reconnects = metrics.counter(
            "continuum_kv_consumer_reconnects_total",
            "Attempts to open the event stream of a backend again.",
            {"backend": None},
        )
        self._losses = metrics.counter(
            "continuum_kv_consumer_losses_total",
            "Event streams of a backend that could not be opened or were lost.",
            {"backend": None, "reason": FeedLoss},
        )
        self._mismatch = metrics.gauge(
            "continuum_kv_prefix_length_mismatch",
            "1 while the listener of a backend cuts prefixes at another length than this router.",
            {"backend": None},
        )

    def bind(self, backend: str) -> SourceCounters:
        """The series of one source, all present from now on."""
        return SourceCounters(
            received={action: self._received.child(backend, action) for action in KvAction},
            dropped={reason: self._dropped.child(backend, reason) for reason in EventDrop},
            connected=self._connected.child(backend),
            reconnects=self._reconnects.child(backend),
            losses={reason: self._losses.child(backend, reason) for reason in FeedLoss},
            length_mismatch=self._mismatch.child(backend),
        )


def _is_place(text: str) -> bool:
    """Whether an id has our form and may go into a request header."""
    return text.isascii() and text.isprintable() and EventId.parse(text) is not None


def source_backoff(reconnect_interval: float | None, rng: random.Random) -> Backoff:
    """Delays between connections (C31): from the interval (seconds, else 1) doubling to 60."""
    initial = BACKOFF_INITIAL if reconnect_interval is None else reconnect_interval
    return Backoff(initial, max(initial, BACKOFF_MAXIMUM), rng=rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """One configured source: the backend that its events are about, and how to follow it.

    ``patience`` is how long, in seconds, an incomplete snapshot may take (C28).
    """

    backend: str
    feed: EventFeed
    backoff: Backoff
    counters: SourceCounters
    patience: float = SNAPSHOT_PATIENCE


class KvEventConsumer:
    """Keeps the index true to one backend's event stream.

    ``max_prefix_length`` is the router's own, for comparison with the listener's; ``clock`` is the
    one whose times the index is given.
    """

    def __init__(
        self,
        source: EventSource,
        index: KvIndex,
        *,
        policy: OffloadPolicy,
        max_prefix_length: int,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.backend = source.backend
        self._feed = source.feed
        self._counters = source.counters
        self._patience = source.patience
        self._backoff = source.backoff
        self._index = index
        self._policy = policy
        self._max_prefix_length = max_prefix_length
        self._clock = clock
        self._sleep = sleep
        self._resume_id: str | None = None
        self._staging: Staging | None = None
        self._warned_length: int | None = None
        self._said: set[str] = set()
        self._closing: str | None = None

    @property
    def resume_id(self) -> str | None:
        """Id of the last record that was taken in, sent when the stream is opened again."""
        return self._resume_id

    async def run(self) -> None:
        """Follow the stream for ever, across its breaks. Ends only by cancellation."""
        while True:
            away = False
            try:
                await self._follow()
                loss, reason = FeedLoss.ENDED, self._closing or "ended"
            except FeedError as error:
                loss, reason = FeedLoss(error.fault.value), str(error)
                away = error.fault is FeedFault.CONNECT
            except SseOverflow as error:
                self._counters.dropped[EventDrop.OVERSIZED].value += 1
                loss, reason = FeedLoss.OVERSIZED, f"oversized {error.where}"
            self._counters.losses[loss].value += 1
            self._tell_lost(loss, reason)
            await self._pause(self._backoff.next(), away=away)
            self._counters.reconnects.value += 1

    async def _pause(self, delay: float, *, away: bool) -> None:
        """Wait ``delay`` seconds; shorter when a listener that was ``away`` is back.

        The growing delay (C31) spares a listener that answers and is in trouble. One that accepts
        no connection has nothing to be spared, and its return should not be noticed a minute late.
        """
        while delay > 0:
            step = min(delay, LOOK_INTERVAL) if away else delay
            await self._sleep(step)
            delay -= step
            if away and delay > 0 and await self._feed.reachable():
                return

    async def _follow(self) -> None:
        """One connection, from opening to its end."""
        parser = SseParser()
        try:
            async with self._feed.open(self._resume_id) as pieces:
                self._counters.connected.set(1)
                self._said.clear()
                self._closing = None
                log.info("Event stream open", extra=fields(backend=self.backend))
                if self._resume_id is None:
                    # Without an id everything is told anew, and what went meanwhile is not (C28).
                    self._index.purge(self.backend)
                async for piece in pieces:
                    for start in range(0, len(piece), SLICE):
                        if start:
                            await asyncio.sleep(0)
                        self.take(parser.feed(piece[start : start + SLICE]))
        finally:
            self._counters.connected.set(0)
            # A snapshot that broke off is asked for again: its records carry no id (C28).
            self._drop_staging()

    def take(self, items: Iterable[SseEvent | SseComment]) -> None:
        """Apply parsed items in their order. Bad ones cost themselves and are counted."""
        for item in items:
            if isinstance(item, SseComment):
                self._compare_length(item.text)
                self._closing = parse_closing(item.text) or self._closing
                continue
            self._backoff.reset()
            try:
                event = decode(item.event, item.data)
            except KvEventError as error:
                self._counters.dropped[EventDrop(error.fault.value)].value += 1
                if self._staging is not None and self._staging.skip():
                    self._finish_swap()
            else:
                self._counters.received[event.action].value += 1
                self._apply(event)
            if item.id is not None and _is_place(item.id):
                self._resume_id = item.id

    def _apply(self, event: KvEvent) -> None:
        if event.action is KvAction.PURGED:
            self._drop_staging()
            if event.snapshot:
                self._staging = Staging(event.snapshot, self._patience, self._finish_swap)
            else:
                self._index.purge(self.backend)
            return
        if event.prefix is None:
            return
        if self._staging is not None:
            known = self._staging.tier(event.prefix)
            tier = next_tier(event.action, known, self._policy)
            if self._staging.put(event.prefix, event.tokens, tier):
                self._finish_swap()
            return
        now = self._clock()
        held = self._index.holding(self.backend, event.prefix, now)
        tier = next_tier(event.action, held.tier if held is not None else None, self._policy)
        if tier is None:
            self._index.remove(self.backend, event.prefix)
        else:
            self._index.set(self.backend, event.prefix, event.tokens, tier, now)

    def _finish_swap(self) -> None:
        """Put the snapshot, as far as it has come, in the place of all that was known."""
        staging = self._staging
        if staging is not None:
            self._drop_staging()
            self._index.swap(self.backend, staging.records, self._clock())

    def _drop_staging(self) -> None:
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    def _compare_length(self, comment: str) -> None:
        """Set the gauge, and warn once for each other value that the listener names (A17)."""
        theirs = parse_prefix_length(comment)
        if theirs is None:
            return
        differs = theirs != self._max_prefix_length
        self._counters.length_mismatch.set(1 if differs else 0)
        if differs and theirs != self._warned_length:
            self._warned_length = theirs
            log.warning(
                "The listener cuts prefixes at another length; no prefix of this source will match",
                extra=fields(backend=self.backend, listener=theirs, router=self._max_prefix_length),
            )

    def _tell_lost(self, loss: FeedLoss, reason: str) -> None:
        """One warning for each loss, and one for each fault of the wiring that shows later; the
        attempts that only fail again are told at DEBUG."""
        first = not self._said or (loss in WIRING and reason not in self._said)
        self._said.add(reason if loss in WIRING else loss.value)
        extra = fields(backend=self.backend, reason=reason)
        if loss in WIRING:
            extra = fields(backend=self.backend, reason=reason, hint=WIRING[loss])
        log.log(logging.WARNING if first else logging.DEBUG, "Event stream lost", extra=extra)
