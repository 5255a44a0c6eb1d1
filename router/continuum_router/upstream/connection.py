"""One connection to a backend, as a plain asyncio Protocol without a coroutine.

It carries one call at a time: `start` sends a request, and the sink is told of the head, the body's
bytes and how it ended, in that order and synchronously. Both ways in use it (design/data-plane.md
rules 2 and 3); `upstream.reply` puts the awaitable form on top. What happens between two calls is
the owner's matter: it gets the connection back only after an answer that ended cleanly by its own
framing, with the request sent in full and no byte too many.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from continuum_router.backends.exchange import UpstreamRequest
from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.body_framing import (
    BodyFraming,
    ChunkedFraming,
    CloseFraming,
    FramingError,
    LengthFraming,
    whole_event_chunks,
)
from continuum_router.upstream.response_head import (
    MAX_HEAD_BYTES,
    HeadError,
    HeadFacts,
    HeadReader,
    is_interim,
)

JOIN_LIMIT = 64 * 1024
"""Request bodies up to this size go out in one write with their head."""

_NO_BODY = frozenset({204, 304})


class ReplySink(Protocol):
    """Who receives one answer. Called synchronously; may call the connection's methods back.

    `wire` True says that whole plain chunks which end an event may come as they are (`on_chunks`);
    everything else is payload (`on_body`). After `on_end` or `on_failure` nothing more is called.
    """

    wire: bool

    def on_sent(self) -> None:
        """The request has left for the kernel in full (first_byte counts from here, E10)."""

    def on_whole(self, facts: HeadFacts, body: bytes) -> None:
        """The final head with the whole body in one piece; the call has ended well.

        Takes the place of the three below. The connection already belongs to its owner again.
        """

    def on_head(self, facts: HeadFacts, length: int | None) -> None:
        """The final head; `length` of the body, None when only its framing will tell."""

    def on_body(self, data: bytes) -> None:
        """Payload of the body, never empty."""

    def on_chunks(self, data: bytes, size: int) -> None:
        """Whole chunks in wire form, `size` bytes of payload; only while `wire` is True."""

    def on_end(self) -> None:
        """The body is complete. The connection already belongs to its owner again."""

    def on_failure(self, failure: AttemptFailure) -> None:
        """The call failed; the connection is closed."""


class ConnectionOwner(Protocol):
    """Who keeps the connection between calls."""

    def released(self, connection: "Connection", keep_for: float | None) -> None:
        """The call ended cleanly, another may follow. `keep_for`: the peer's hint, seconds."""

    def lost(self, connection: "Connection") -> None:
        """It will carry no further call. Called exactly once, also for one that was released."""


class Connection(asyncio.Protocol):
    """See the module. Made by `dial`; `owner` may be exchanged while no call is on."""

    __slots__ = (
        "_began",
        "_buffer",
        "_facts",
        "_framing",
        "_head_only",
        "_heads",
        "_interim",
        "_lost",
        "_on_room",
        "_owes",
        "_sink",
        "_sock_paused",
        "_stage",
        "_transport",
        "_unsent",
        "calls",
        "idle_until",
        "owner",
    )

    def __init__(self, owner: ConnectionOwner, heads: HeadReader) -> None:
        self.owner = owner
        self.calls = 0
        self.idle_until = 0.0
        self._heads = heads
        self._transport: asyncio.Transport | None = None
        self._sink: ReplySink | None = None
        self._lost = False
        self._unsent = False
        self._owes = False
        self._on_room: Callable[[], None] | None = None
        self._sock_paused = False
        self._reset()

    def _reset(self) -> None:
        self._stage = Stage.SENDING
        self._framing: BodyFraming | None = None
        self._facts: HeadFacts | None = None
        self._buffer = b""
        self._interim = 0
        self._began = False
        self._head_only = False

    # -- for the owner and the sink ---------------------------------------------------------

    @property
    def usable(self) -> bool:
        """True while no call is on and nothing has gone wrong with the socket."""
        return self._sink is None and not self._lost

    @property
    def reused(self) -> bool:
        """True when the present call is not the first."""
        return self.calls > 1

    @property
    def congested(self) -> bool:
        """True while bytes of the request wait for the backend to read."""
        return self._unsent

    def start(
        self,
        request: UpstreamRequest,
        sink: ReplySink,
        on_room: Callable[[], None] | None = None,
    ) -> None:
        """Send a request. Failures reach the sink, also one that is known at once.

        When the request has a tail, its pieces follow by `write_more` and `finish_request`;
        `on_room` is called whenever the backend has read what was written.
        """
        self._owes = request.tail is not None
        self._on_room = on_room
        self._send(request.head, request.body, sink, head_only=request.method == "HEAD")

    def start_ordinary(self, head: bytes, body: bytes, sink: ReplySink) -> None:
        """`start` for a POST with its whole body."""
        self._owes = False
        self._on_room = None
        self._send(head, body, sink, head_only=False)

    def _send(self, head: bytes, body: bytes, sink: ReplySink, *, head_only: bool) -> None:
        transport = self._transport
        if self._sink is not None:
            raise RuntimeError("the connection carries a call already")
        self.calls += 1
        self._sink = sink
        self._head_only = head_only
        if self._lost or transport is None or transport.is_closing():
            self._fail(Cause.CLOSED)
            return
        if len(body) <= JOIN_LIMIT:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        if not self._unsent:
            self._sent()

    def write_more(self, data: bytes) -> None:
        """Send the next piece of the present request's tail."""
        if self._transport is not None and not self._lost:
            self._transport.write(data)

    def finish_request(self) -> None:
        """The tail is complete. A call that is answered before is the connection's last one."""
        self._owes = False
        if not self._unsent:
            self._sent()

    def pause(self) -> None:
        """Stop reading: the sink's reader is behind. The kernel's window then slows the backend."""
        if not self._sock_paused and self._transport is not None and not self._lost:
            self._sock_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again after `pause`."""
        if self._sock_paused and self._transport is not None:
            self._sock_paused = False
            if not self._lost:
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once; the sink hears nothing more, the backend sees the connection end."""
        self._sink = None
        self._close()

    def hand_to(self, sink: ReplySink) -> None:
        """Let another sink hear the rest of the call, if one is on."""
        if self._sink is not None:
            self._sink = sink

    def fail(self, cause: Cause) -> None:
        """Close at once and tell the sink why, if a call is on."""
        self._fail(cause)

    # -- asyncio.Protocol -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # From the second unsent byte on, pause_writing tells that the request is still on its way.
        self._transport.set_write_buffer_limits(high=1)

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False
        if self._sink is not None:
            self._sent()
            if self._on_room is not None:
                self._on_room()

    def data_received(self, data: bytes) -> None:
        if self._sink is None:
            self._close()  # bytes that belong to no call
        elif self._framing is None:
            self._began = True
            self._read_head(self._buffer + data if self._buffer else data)
        else:
            self._read_body(data)

    def eof_received(self) -> bool:
        if self._framing is not None and self._framing.ends_with_connection:
            self._end(clean=False)
        else:
            self._fail(Cause.CUT if self._stage is Stage.STREAMING else Cause.CLOSED)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is None:
            self.eof_received()
        else:
            self._fail(_cause_of(exc))

    # -- one answer -------------------------------------------------------------------------

    def _sent(self) -> None:
        if self._stage is Stage.SENDING and not self._owes:
            self._stage = Stage.AWAITING_HEAD
            if self._sink is not None:
                self._sink.on_sent()

    def _read_head(self, data: bytes) -> None:
        while True:
            try:
                read = self._heads.read(data)
            except HeadError as error:
                self._fail(error.cause)
                return
            if read is None:
                if self._interim + len(data) > MAX_HEAD_BYTES:
                    self._fail(Cause.HEAD_TOO_LARGE)
                self._buffer = data
                return
            facts, length, used = read
            if not is_interim(facts.status):
                break
            self._interim += used
            data = data[used:]
            if self._interim > MAX_HEAD_BYTES:
                self._fail(Cause.HEAD_TOO_LARGE)
                return
        self._buffer = b""
        self._take_head(facts, length, data[used:])

    def _take_head(self, facts: HeadFacts, length: int | None, rest: bytes) -> None:
        if facts.status == 101:
            self._fail(Cause.BAD_HEAD)
            return
        if self._head_only or facts.status in _NO_BODY:
            length = 0
        elif facts.chunked:
            length = None
        if length == len(rest):
            self._whole(facts, rest)
            return
        self._facts = facts
        self._stage = Stage.STREAMING
        if length is not None:
            self._framing = LengthFraming(length)
        elif facts.chunked:
            self._framing = ChunkedFraming()
        else:
            self._framing = CloseFraming()
        sink = self._sink
        if sink is None:
            return
        sink.on_head(facts, length)
        self._read_body(rest)

    def _read_body(self, data: bytes) -> None:
        sink = self._sink
        framing = self._framing
        if sink is None or framing is None:
            return
        if sink.wire and framing.between_chunks:
            size = whole_event_chunks(data)
            if size:
                sink.on_chunks(data, size)
                return
        pieces: list[bytes] = []
        broken = False
        try:
            used = framing.feed(data, pieces)
        except FramingError:
            broken = True
            used = 0
        if pieces:
            sink.on_body(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if self._sink is None:
                return
        if broken:
            self._fail(Cause.BAD_FRAMING)
        elif framing.done:
            self._end(clean=used == len(data))

    def _whole(self, facts: HeadFacts, body: bytes) -> None:
        """The answer came in one piece, which is the ordinary case: no framing to follow."""
        sink, self._sink = self._sink, None
        self._let_go(facts)
        if sink is not None:
            sink.on_whole(facts, body)

    # -- how a call ends --------------------------------------------------------------------

    def _end(self, *, clean: bool) -> None:
        """The answer is complete: give the connection back or close it, then tell the sink."""
        sink = self._sink
        facts = self._facts
        self._sink = None
        if clean and facts is not None:
            self._let_go(facts)
        else:
            self._close()
        if sink is not None:
            sink.on_end()

    def _let_go(self, facts: HeadFacts) -> None:
        if facts.keep and not self._unsent and not self._owes and not self._lost:
            if self._sock_paused:
                self.resume()
            self._reset()
            self.owner.released(self, facts.keep_for)
        else:
            self._close()

    def _fail(self, cause: Cause) -> None:
        sink = self._sink
        self._sink = None
        self._close()
        if sink is not None:
            sink.on_failure(
                AttemptFailure(self._stage, cause, reused=self.reused, began=self._began)
            )

    def _close(self) -> None:
        if self._lost:
            return
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        self.owner.lost(self)


def _cause_of(exc: Exception) -> Cause:
    """What ended an established connection. Write errors of a closed peer count as a reset."""
    return Cause.TLS if isinstance(exc, ssl.SSLError) else Cause.RESET
