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

Nothing is copied for a subscriber. Those that stand at one place are given one and the same bytes
object, and those that need a snapshot while another reads one share it: a snapshot stays true as
long as the history holds what came after it, so a thousand routers that come back at once cost one.
"""

import asyncio
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
TAKE_BYTES = 16 * 1024
"""About how much is handed to a subscriber at once."""
BLOCK = 64
"""Records after which a batch ends, whoever takes it: so that subscribers who began at different
places stand at the same ones from the next block on. About 12 KiB."""
SHARED_BATCHES = 64
"""Whole blocks kept joined for subscribers that come by a little later."""
MAX_REANNOUNCED = 4_096
"""Re-announced records kept for slow subscribers; losing one costs a refresh, not state."""

Snapshot = Callable[[], Sequence[KvEvent]]


class FellBehind(Exception):
    """The subscriber's next record has left the history; it has to come back with its last id."""


class SnapshotPieces:
    """An encoded snapshot, cut into pieces of about ``TAKE_BYTES``; true at number ``seq``.

    Lives as long as somebody reads it: the stream holds it weakly, subscribers strongly.
    """

    __slots__ = ("__weakref__", "count", "pieces", "seq")

    def __init__(self, records: Sequence[bytes], seq: int) -> None:
        self.seq = seq
        self.count = len(records)
        self.pieces: list[bytes] = []
        part: list[bytes] = []
        size = 0
        for record in records:
            part.append(record)
            size += len(record)
            if size >= TAKE_BYTES:
                self.pieces.append(b"".join(part))
                part, size = [], 0
        if part:
            self.pieces.append(b"".join(part))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Joined records and the place that they bring a subscriber to."""

    data: bytes
    next_seq: int
    extras_seen: int


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
        self._idle: set[Subscription] = set()
        self._fresh: dict[tuple[int, int, int], _Batch] = {}
        self._full: OrderedDict[tuple[int, int, int], _Batch] = OrderedDict()
        self._shared: weakref.ref[SnapshotPieces] | None = None
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
        subscription = self._open(last_event_id)
        self._subscribers.add(subscription)
        self.metrics.started(subscription.start)
        if self.closed:
            subscription.close()
        return subscription

    def close(self) -> None:
        """End all streams, now and in future: the daemon is stopping."""
        self.closed = True
        for subscription in tuple(self._subscribers):
            subscription.close()

    def _open(self, last_event_id: str | None) -> "Subscription":
        """What comes before the live records, and the number it brings the subscriber to."""
        known = EventId.parse(last_event_id) if last_event_id else None
        if (
            known is not None
            and known.epoch == self.epoch
            and self.oldest_seq - 1 <= known.seq <= self.last_seq
        ):
            head = [self._greeting]
            return Subscription(self, StreamStart.RESUMED, head, None, known.seq + 1)
        snapshot = self._pieces()
        head, start = [self._greeting], StreamStart.SNAPSHOT
        if last_event_id:
            start = StreamStart.SWAP
            purge = KvEvent(action=KvAction.PURGED, snapshot=snapshot.count)
            head.append(self._encode(purge, None if snapshot.count else snapshot.seq))
        return Subscription(self, start, head, snapshot, snapshot.seq + 1)

    def _pieces(self) -> SnapshotPieces:
        """The snapshot that others are reading, if half of the history lies before it, else one
        of now."""
        shared = None if self._shared is None else self._shared()
        if shared is not None and self.last_seq - shared.seq <= self._history // 2:
            return shared
        events = self._snapshot()
        last = len(events) - 1
        made = SnapshotPieces(
            [
                self._encode(event, self.last_seq if index == last else None)
                for index, event in enumerate(events)
            ],
            self.last_seq,
        )
        self._shared = weakref.ref(made)
        return made

    def _encode(self, event: KvEvent, seq: int | None) -> bytes:
        identity = None if seq is None else str(EventId(epoch=self.epoch, seq=seq))
        return encode_event(encode(event), event=event.action.value, id=identity)

    def _wake(self) -> None:
        """There is something new: what was joined short is joined anew, who waits is told."""
        self._fresh.clear()
        for subscription in self._idle:
            subscription.news.set()
        self._idle.clear()

    def _forget(self, subscription: "Subscription") -> None:
        self._idle.discard(subscription)
        if subscription in self._subscribers:
            self._subscribers.discard(subscription)
            self.metrics.ended(subscription.end)

    def _batch(self, next_seq: int, extras_seen: int, limit: int) -> _Batch:
        """The records from a place on, joined once for everybody who stands there."""
        key = (next_seq, extras_seen, limit)
        found = self._fresh.get(key) or self._full.get(key)
        if found is None:
            found = self._join(next_seq, extras_seen, limit)
            if found.next_seq % BLOCK:
                if len(self._fresh) >= SHARED_BATCHES:
                    self._fresh.clear()
                self._fresh[key] = found
            else:
                self._full[key] = found
                if len(self._full) > SHARED_BATCHES:
                    self._full.popitem(last=False)
        return found

    def _join(self, next_seq: int, extras_seen: int, limit: int) -> _Batch:
        """Numbered records and, between them, the re-announced ones of that moment."""
        extras: list[tuple[int, int, bytes]] = []
        if self._extras_made > extras_seen:
            extras = [item for item in self._extras if item[0] > extras_seen]
        at = size = 0
        out: list[bytes] = []
        while size < limit:
            if at < len(extras) and extras[at][1] < next_seq:
                extras_seen = extras[at][0]
                piece = extras[at][2]
                at += 1
            elif next_seq <= self.last_seq:
                if out and next_seq % BLOCK == 0:
                    break
                piece = self._record(next_seq)
                next_seq += 1
            else:
                break
            out.append(piece)
            size += len(piece)
        return _Batch(b"".join(out), next_seq, extras_seen)

    def _record(self, seq: int) -> bytes:
        return self._ring[seq % self._history]


class Subscription:
    """One subscriber's place in the stream; a context manager that forgets it at the end.

    ``end`` says why the stream ended, for the count; the sender sets it when it knows better.
    """

    def __init__(
        self,
        stream: EventStream,
        start: StreamStart,
        head: Iterable[bytes],
        snapshot: SnapshotPieces | None,
        next_seq: int,
    ) -> None:
        self.news = asyncio.Event()
        self.news.set()
        self.closed = False
        self.start = start
        self.end = StreamEnd.CLIENT_LEFT
        self._stream = stream
        self._head = b"".join(head)
        self._snapshot = snapshot if snapshot is not None and snapshot.pieces else None
        self._pieces_taken = 0
        self._next_seq = next_seq
        self._extras_seen = stream._extras_made

    @property
    def lag(self) -> int:
        """Numbered records that are not handed out yet."""
        return self._stream.last_seq - self._next_seq + 1

    @property
    def caught_up(self) -> bool:
        """Whether all that there is was handed out."""
        stream = self._stream
        return (
            not self._head
            and self._snapshot is None
            and self._next_seq > stream.last_seq
            and self._extras_seen == stream._extras_made
        )

    def take(self, limit: int = TAKE_BYTES) -> bytes:
        """The next bytes to send, about ``limit`` of them; empty when there is nothing for now.

        Other subscribers at the same place get the same object. Raises :class:`FellBehind` when
        the next record has left the history.
        """
        stream = self._stream
        if self._next_seq < stream.oldest_seq:
            raise FellBehind
        if self._head:
            head, self._head = self._head, b""
            return head
        snapshot = self._snapshot
        if snapshot is not None:
            piece = snapshot.pieces[self._pieces_taken]
            self._pieces_taken += 1
            if self._pieces_taken == len(snapshot.pieces):
                self._snapshot = None
            return piece
        if self.caught_up:
            self.news.clear()
            stream._idle.add(self)
            return b""
        batch = stream._batch(self._next_seq, self._extras_seen, limit)
        self._next_seq, self._extras_seen = batch.next_seq, batch.extras_seen
        return batch.data

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
