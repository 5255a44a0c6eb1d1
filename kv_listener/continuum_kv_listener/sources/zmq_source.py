"""One engine's ZMQ publisher as a stream of batches and link changes.

The listener subscribes in one of two ways (decisions C26, C27). *Connect*: one socket lives for
exactly one TCP connection; when that ends, what it had delivered is read to the end, the socket is
dropped and a new one made after a delay. ZMQ's own reconnecting is not used, because it gives up
for good after a protocol error (an oversized frame is one) and mixes two engine processes in one
queue. *Bind*: engines connect to us; admission numbers each connection (``publisher_acl``) and the
newest one is followed. When it ends while an older one lives on, that one is followed again.

Frames of one message: ``[topic, sequence (8 bytes, big-endian), payload (msgpack)]``. Anything
else costs itself and is counted as ``bad_frames``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_events import DropReason, RawBatch
from continuum_kv_listener.sequence import MAX_SEQUENCE
from continuum_kv_listener.sources.address_family import AddressFamily
from continuum_kv_listener.sources.bound_peers import BoundPeers
from continuum_kv_listener.sources.publisher_acl import AdmissionDesk, PublisherAcl
from continuum_kv_listener.sources.readable import Socket, wait_readable
from continuum_shared.backoff import Backoff

DRAIN_LIMIT = 128
"""Messages taken in one go before other tasks get a turn."""
RECEIVE_HIGH_WATER = 10_000
CONNECT_SECONDS = 5.0
HEARTBEAT_SECONDS = 10.0
DEAD_AFTER_SECONDS = 30.0
NEVER_MS = 24 * 3600 * 1000
NO_PUBLISHER = "what listens there is no ZMQ publisher"
_SEQUENCE_BYTES = 8
_FRAMES = 3

_WATCHED = (
    zmq.Event.ACCEPTED
    | zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.DISCONNECTED
    | zmq.Event.CLOSED
    | zmq.Event.CONNECT_RETRIED
)
_HANDSHAKE_FAILED = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_CONNECTING_ENDED = (
    zmq.Event.DISCONNECTED | zmq.Event.CLOSED | zmq.Event.CONNECT_RETRIED | _HANDSHAKE_FAILED
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUp:
    """A publisher is connected; ``session`` numbers this source's connections in their order."""

    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDown:
    """No publisher is connected any more."""


SourceItem = RawBatch | LinkUp | LinkDown


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqEndpointSettings:
    """Where and how to subscribe. ``max_message_bytes`` is the frame size at which ZMQ hangs up."""

    name: str
    endpoint: str
    mode: ZmqMode
    topic: str = ""
    rank: int = 0
    max_message_bytes: int = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who may connect to a bound socket, and who says so to ZMQ."""

    desk: AdmissionDesk
    acl: PublisherAcl


class ZmqSource:
    """Subscribes to one endpoint; :meth:`receive` gives what happened, in order.

    ``on_drop`` is called for each message that cannot become a batch. ``admission`` is required
    in bind mode and not used otherwise.
    """

    def __init__(
        self,
        settings: ZmqEndpointSettings,
        *,
        context: "zmq.Context[Socket]",
        on_drop: Callable[[DropReason], None],
        admission: Admission | None = None,
        clock: Callable[[], float] = time.monotonic,
        backoff: Backoff | None = None,
    ) -> None:
        self.settings = settings
        self.last_error: str | None = None
        self.refused: str | None = None
        self.ever_connected = False
        self._context = context
        self._on_drop = on_drop
        self._clock = clock
        self._backoff = backoff or Backoff(0.1, 2.0)
        self._binds = settings.mode is ZmqMode.BIND
        self._desk = admission.desk if admission else None
        self._socket: Socket | None = None
        self._monitor: Socket | None = None
        self._family = AddressFamily(settings.endpoint)
        self._reopen_at = 0.0
        self._give_up_at = 0.0
        self._session = 0
        self._admitted = 0
        self._up = False
        self._down = False
        self._strange = False
        self._peers = BoundPeers()
        self._lost_one = self._last_one = False
        if self._binds:
            if admission is None:
                raise ValueError("a source that binds needs an admission rule")
            admission.desk.register(
                settings.name,
                admission.acl,
                admitted=self._on_admitted,
                refused=self._on_refused,
            )

    @property
    def peers(self) -> int:
        """How many publishers are connected now; more than one shares the endpoint wrongly."""
        return self._peers.count if self._binds else int(self._up)

    async def receive(self, timeout: float | None = None) -> list[SourceItem]:
        """The next items, in order; an empty list after ``timeout`` seconds without any."""
        deadline = None if timeout is None else self._clock() + timeout
        while True:
            now = self._clock()
            if self._socket is None and now >= self._reopen_at:
                self._open(now)
            items = self._take()
            if items:
                return items
            until = self._wake_at()
            if deadline is not None:
                if now >= deadline:
                    return []
                until = deadline if until is None else min(until, deadline)
            await wait_readable(self._open_sockets(), None if until is None else until - now)

    def close(self) -> None:
        """Give up the socket and the admission rule."""
        self._drop_socket()
        if self._binds and self._desk is not None:
            self._desk.unregister(self.settings.name)

    def _open_sockets(self) -> tuple[Socket, ...]:
        if self._socket is None or self._monitor is None:
            return ()
        return (self._socket, self._monitor)

    def _wake_at(self) -> float | None:
        """When to look again although nothing arrived."""
        if self._socket is None:
            return self._reopen_at
        return None if self._binds or self._up else self._give_up_at

    def _on_admitted(self, session: int) -> None:
        self._admitted = session

    def _on_refused(self, address: str) -> None:
        self.refused = address
        self._on_drop(DropReason.NOT_ALLOWED)

    def _open(self, now: float) -> None:
        socket: Socket = self._context.socket(zmq.SUB)
        settings = self.settings
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER)
        socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(CONNECT_SECONDS * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_SECONDS * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(DEAD_AFTER_SECONDS * 1000))
        socket.setsockopt(zmq.IPV6, int(self._family.ipv6))
        socket.setsockopt(zmq.SUBSCRIBE, settings.topic.encode("utf-8"))
        if self._binds:
            socket.setsockopt(zmq.ZAP_DOMAIN, settings.name.encode("utf-8"))
        else:
            socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
            socket.setsockopt(zmq.CONNECT_TIMEOUT, int(CONNECT_SECONDS * 1000))
        self._monitor = socket.get_monitor_socket(_WATCHED)
        self._socket = socket
        self._up = self._down = self._strange = False
        self._forget_peers()
        self._give_up_at = now + 2 * CONNECT_SECONDS
        try:
            if self._binds:
                socket.bind(settings.endpoint)
                self._backoff.reset()
                self.last_error = None
            else:
                socket.connect(settings.endpoint)
        except zmq.ZMQError as error:
            self._fail(zmq.strerror(error.errno or 0))

    def _fail(self, reason: str) -> None:
        self.last_error = reason
        self._drop_socket()
        self._reopen_at = self._clock() + self._backoff.next()

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(0)
        if self._monitor is not None:
            self._monitor.close(0)
        self._socket = self._monitor = None
        self._up = self._down = False
        self._forget_peers()

    def _forget_peers(self) -> None:
        self._peers = BoundPeers()
        self._lost_one = self._last_one = False

    def _take(self) -> list[SourceItem]:
        items: list[SourceItem] = []
        if self._socket is None:
            return items
        self._take_link_events(items)
        drained = self._take_messages(self._socket, items)
        if self._binds:
            # What the lost connection had delivered is read: the rest comes from who is left.
            self._last_one = self._last_one or (self._lost_one and drained)
            return items
        if self._down and drained:
            was_up = self._up
            if not was_up:
                self._family.failed()
            self._fail(self._why_ended(was_up))
            if was_up:
                items.append(LinkDown())
        elif not self._up and self._clock() >= self._give_up_at:
            self._family.failed()
            self._fail("no answer")
        return items

    def _why_ended(self, was_up: bool) -> str:
        if was_up:
            return "connection lost"
        return NO_PUBLISHER if self._strange else "connection refused"

    def _take_link_events(self, items: list[SourceItem]) -> None:
        monitor = self._monitor
        while monitor is not None:
            try:
                frames = monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = parse_monitor_message(frames)
            event = int(message["event"])
            if self._binds:
                self._on_bound_event(event, int(message["value"]), items)
            elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._connected(items)
            elif event & _CONNECTING_ENDED:
                # A refusal has no connection that could end.
                if event & (zmq.Event.DISCONNECTED | _HANDSHAKE_FAILED):
                    self._strange = True
                self._down = True

    def _on_bound_event(self, event: int, descriptor: int, items: list[SourceItem]) -> None:
        """Follow who is connected; a failed handshake ends in a disconnect of its own."""
        if event == zmq.Event.ACCEPTED:
            self._peers.accepted(descriptor)
        elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self._peers.shaken_hands()
            self._lost_one = self._last_one = False
            self._joined(self._admitted, items)
        elif event == zmq.Event.DISCONNECTED and self._peers.ended(descriptor):
            self._lost_one = self._peers.count == 1
            if not self._peers.count and self._up:
                self._up = False
                items.append(LinkDown())

    def _connected(self, items: list[SourceItem]) -> None:
        if not self._up:
            self._backoff.reset()
            self._joined(self._session + 1, items)

    def _joined(self, session: int, items: list[SourceItem]) -> None:
        if session <= self._session and self._up:
            return
        self._session = max(session, self._session)
        self._up = self.ever_connected = True
        self.last_error = None
        items.append(LinkUp(session=self._session))

    def _take_messages(self, socket: Socket, items: list[SourceItem]) -> bool:
        """Read up to :data:`DRAIN_LIMIT` messages; True when there are no more for now."""
        for _ in range(DRAIN_LIMIT):
            try:
                if self._binds:
                    frames = self._receive_bound(socket, items)
                else:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if frames is None:
                continue
            batch = self._read(frames)
            if batch is not None:
                if not self._binds:
                    # The monitor's word about the handshake may come a moment after the first
                    # message; the connection is there all the same. Not so for nonsense: what an
                    # HTTP server says passes for messages of ZMQ's first protocol.
                    self._connected(items)
                items.append(batch)
        return False

    def _receive_bound(self, socket: Socket, items: list[SourceItem]) -> list[bytes] | None:
        """One message of the newest connection; what older ones left behind is a duplicate."""
        parts = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        session = _session_of(parts[0])
        if session is not None:
            if session < self._session:
                if not self._last_one:
                    self._on_drop(DropReason.DUPLICATE)
                    return None
                self._up = False
                self._session = session
            self._joined(session, items)
        return [part.bytes for part in parts]

    def _read(self, frames: list[bytes]) -> RawBatch | None:
        if len(frames) == _FRAMES and len(frames[1]) == _SEQUENCE_BYTES:
            seq = int.from_bytes(frames[1], "big")
            if seq < MAX_SEQUENCE:
                return RawBatch(
                    source=self.settings.name,
                    rank=self.settings.rank,
                    seq=seq,
                    payload=frames[2],
                )
        self._on_drop(DropReason.BAD_FRAMES)
        return None


def _session_of(part: zmq.Frame) -> int | None:
    try:
        text = part.get("User-Id")
    except zmq.ZMQError:
        return None
    return int(text) if isinstance(text, str) and text.isdigit() else None
