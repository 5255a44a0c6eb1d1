"""The numbered event stream of one source: history, resume, snapshots. The only place that encodes.

A record is encoded once, when it is published, and every subscriber sends the same bytes. Numbers
begin at 1; ``<epoch>-0`` is the place before the first record. What a subscriber gets (C28, C29):

===========================  ==========================================================
``Last-Event-ID``            first the comment ``prefix-length=…``, then
===========================  ==========================================================
still in the history         the records after it
none                         a snapshot: one record for each live prefix
unknown epoch, too old       ``cache_purged {"snapshot": n}`` and the n records that replace all
===========================  ==========================================================

Of a snapshot only the last record carries the ``id``, so that a stream that breaks half-way is
asked for again as a whole. Re-announced records have no ``id``, are not part of the history and
keep their place between the numbered ones. A subscriber that falls out of the history is closed:
nothing is ever left out silently (C30).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from continuum_kv_listener.listener_metrics import StreamEnd, StreamMetrics, StreamStart
from continuum_shared.kv_event import (
    EventId,
    KvAction,
    KvEvent,
    encode,
    prefix_length_comment,
)
from continuum_shared.sse import encode_comment, encode_event

HISTORY = 10_000
TAKE_BYTES = 64 * 1024
MAX_REANNOUNCED = 4_096
"""Re-announced records kept for slow subscribers; losing one costs a refresh, not state."""

Snapshot = Callable[[], Sequence[KvEvent]]


class FellBehind(Exception):
    """The subscriber's next record has left the history; it has to come back with its last id."""


class EventStream:
    """Publishes the records of one source to any number of subscribers.

    ``epoch`` must be different in every process (it makes ids of an earlier one unknown).
    ``snapshot`` gives one ``CREATED`` or ``OFFLOADED`` event for each live prefix and must agree
    with what was published so far.
    """

    def __init__(
        self,
        *,
        epoch: str,
        max_prefix_length: int,
        snapshot: Snapshot,
        metrics: StreamMetrics,
        history: int = HISTORY,
    ) -> None:
        self.epoch = epoch
        self.metrics = metrics
        self.last_seq = 0
        self._history = history
        self._ring: list[bytes] = [b""] * history
        self._extras: deque[tuple[int, int, bytes]] = deque(maxlen=MAX_REANNOUNCED)
        self._extras_made = 0
        self._snapshot = snapshot
        self._greeting = encode_comment(prefix_length_comment(max_prefix_length))
        self._subscribers: set[Subscription] = set()
        self.closed = False

    @property
    def subscribers(self) -> int:
        """How many streams are open."""
        return len(self._subscribers)

    @property
    def oldest_seq(self) -> int:
        """Number of the oldest record that can still be sent."""
        return max(1, self.last_seq - self._history + 1)

    def publish(self, events: Iterable[KvEvent]) -> None:
        """Number, encode and keep these events and wake the subscribers."""
        before = self.last_seq
        for event in events:
            self.last_seq += 1
            self._ring[self.last_seq % self._history] = self._encode(event, self.last_seq)
            self.metrics.published(event.action)
        if self.last_seq != before:
            self._wake()

    def reannounce(self, events: Iterable[KvEvent]) -> None:
        """Tell the present subscribers again what is live, in its place but without a number."""
        before = self._extras_made
        for event in events:
            self._extras_made += 1
            self._extras.append((self._extras_made, self.last_seq, self._encode(event, None)))
        made = self._extras_made - before
        if made:
            self.metrics.reannounced.inc(made)
            self._wake()

    def subscribe(self, last_event_id: str | None) -> "Subscription":
        """Open a stream after ``last_event_id`` (the request's header, any text)."""
        start, head, position = self._head(last_event_id)
        subscription = Subscription(self, head, position + 1, self._extras_made)
        self._subscribers.add(subscription)
        self.metrics.started(start)
        if self.closed:
            subscription.close()
        return subscription

    def close(self) -> None:
        """End all streams, now and in future: the daemon is stopping."""
        self.closed = True
        for subscription in tuple(self._subscribers):
            subscription.close()

    def _head(self, last_event_id: str | None) -> tuple[StreamStart, list[bytes], int]:
        """What comes before the live records, and the number it brings the subscriber to."""
        if not last_event_id:
            return StreamStart.SNAPSHOT, self._swap(purge=False), self.last_seq
        known = EventId.parse(last_event_id)
        if (
            known is not None
            and known.epoch == self.epoch
            and self.oldest_seq - 1 <= known.seq <= self.last_seq
        ):
            return StreamStart.RESUMED, [self._greeting], known.seq
        return StreamStart.SWAP, self._swap(purge=True), self.last_seq

    def _swap(self, *, purge: bool) -> list[bytes]:
        events = list(self._snapshot())
        if purge:
            events.insert(0, KvEvent(action=KvAction.PURGED, snapshot=len(events)))
        last = len(events) - 1
        records = [
            self._encode(event, self.last_seq if index == last else None)
            for index, event in enumerate(events)
        ]
        return [self._greeting, *records]

    def _encode(self, event: KvEvent, seq: int | None) -> bytes:
        identity = None if seq is None else str(EventId(epoch=self.epoch, seq=seq))
        return encode_event(encode(event), event=event.action.value, id=identity)

    def _wake(self) -> None:
        for subscription in self._subscribers:
            subscription.news.set()

    def _forget(self, subscription: "Subscription") -> None:
        if subscription in self._subscribers:
            self._subscribers.discard(subscription)
            self.metrics.ended(subscription.end)

    def _record(self, seq: int) -> bytes:
        return self._ring[seq % self._history]


class Subscription:
    """One subscriber's place in the stream; a context manager that forgets it at the end.

    ``end`` says why the stream ended, for the count; the sender sets it when it knows better.
    """

    def __init__(
        self, stream: EventStream, head: list[bytes], next_seq: int, extras_seen: int
    ) -> None:
        self.news = asyncio.Event()
        self.news.set()
        self.closed = False
        self.end = StreamEnd.CLIENT_LEFT
        self._stream = stream
        self._head = deque(head)
        self._next_seq = next_seq
        self._extras_seen = extras_seen

    def take(self, limit: int = TAKE_BYTES) -> bytes:
        """The next bytes to send, about ``limit`` of them; empty when there is nothing for now.

        Raises :class:`FellBehind` when the next record has left the history.
        """
        stream = self._stream
        if self._next_seq < stream.oldest_seq:
            raise FellBehind
        out: list[bytes] = []
        size = 0
        head = self._head
        while head and size < limit:
            out.append(head.popleft())
            size += len(out[-1])
        if not head:
            out.extend(self._numbered_and_extras(limit - size))
        if not out:
            self.news.clear()
        return b"".join(out)

    def close(self) -> None:
        """End this stream: the sender stops after what it is writing."""
        self.closed = True
        self.news.set()

    def leave(self) -> None:
        """The sender is gone; forget and count this subscriber. May be called twice."""
        self._stream._forget(self)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _numbered_and_extras(self, limit: int) -> list[bytes]:
        """Numbered records and, between them, the re-announced ones of that moment."""
        stream = self._stream
        extras: list[tuple[int, int, bytes]] = []
        if stream._extras_made > self._extras_seen:
            extras = [item for item in stream._extras if item[0] > self._extras_seen]
        at = 0
        out: list[bytes] = []
        size = 0
        while size < limit:
            if at < len(extras) and extras[at][1] < self._next_seq:
                self._extras_seen = extras[at][0]
                piece = extras[at][2]
                at += 1
            elif self._next_seq <= stream.last_seq:
                piece = stream._record(self._next_seq)
                self._next_seq += 1
            else:
                break
            out.append(piece)
            size += len(piece)
        return out
