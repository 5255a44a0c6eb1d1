"""The awaitable form of an answer: a thin layer over the synchronous sink of `connection`.

What arrives waits here until the reader takes it. When more than 256 KiB wait, the connection stops
reading, so that a slow client slows its backend and memory stays bounded.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Self

from continuum_router.backends.exchange import (
    BodyState,
    BodyTail,
    ReplyHead,
    UpstreamReply,
    UpstreamRequest,
)
from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.response_head import HeadFacts

HIGH_WATER = 256 * 1024


class QueuedReply:
    """One answer. Is the sink towards the connection and an `UpstreamReply` towards the reader.

    One reader at a time. `on_sent` is called when the request has left in full. The connection is
    let go as soon as it has ended the call, though bytes may still wait here.
    """

    __slots__ = (
        "_connection",
        "_failure",
        "_head",
        "_idle",
        "_on_sent",
        "_paused",
        "_pieces",
        "_size",
        "_state",
        "_waiter",
        "reused",
    )
    wire = False

    def __init__(
        self, connection: Connection | None, *, on_sent: Callable[[], None] | None = None
    ) -> None:
        self._connection: Connection | None = connection
        self._on_sent = on_sent
        self._head: ReplyHead | None = None
        self._failure: AttemptFailure | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._paused = False
        self._state = BodyState.OPEN
        self._waiter: asyncio.Future[None] | None = None
        self._idle: float | None = None
        self.reused = False

    @classmethod
    def take_over(
        cls,
        connection: Connection | None,
        facts: HeadFacts,
        length: int | None,
        pieces: Iterable[bytes] = (),
        *,
        reused: bool,
    ) -> Self:
        """An answer whose start another sink has heard: its head and `pieces` of its payload.

        The connection tells the rest to this one. None: the call has ended; the caller says how by
        `on_failure`, or it ended well.
        """
        reply = cls(connection)
        reply.reused = reused
        reply.on_head(facts, length)
        for piece in pieces:
            reply.on_body(piece)
        if connection is not None:
            connection.hand_to(reply)
        return reply

    async def open(self, request: UpstreamRequest) -> None:
        """Send the request and wait for the head.

        Raises AttemptFailure. A cancellation closes the connection.
        """
        connection = self._connection
        if connection is None:
            raise RuntimeError("a reply is opened once")
        self.reused = connection.calls > 0
        connection.start(request, self, self._wake)
        if request.tail is not None:
            await self._send_tail(connection, request.tail)
        while self._head is None:
            if self._failure is not None:
                raise self._failure
            await self._wait()

    async def _send_tail(self, connection: Connection, tail: BodyTail) -> None:
        """Pass the rest of the body on at the backend's pace, until it is whole or answered.

        An answer that comes before is final: what the client still sends is not passed on. Raises
        what reading the client raises, with the call aborted.
        """
        while not self._answered():
            if connection.congested:
                await self._wait()
                continue
            try:
                data = await tail.next()
            except BaseException:
                self.abort()
                raise
            if self._answered():
                return
            if not data:
                connection.finish_request()
                return
            connection.write_more(data)

    def _answered(self) -> bool:
        return self._head is not None or self._failure is not None

    # -- UpstreamReply ----------------------------------------------------------------------

    @property
    def head(self) -> ReplyHead:
        if self._head is None:
            raise RuntimeError("the head has not come yet")
        return self._head

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return self.head.headers

    @property
    def state(self) -> BodyState:
        if self._state is BodyState.OPEN and self._connection is None and not self._pieces:
            return BodyState.COMPLETE if self._failure is None else BodyState.FAILED
        return self._state

    def chunks(self, *, idle: float | None = None) -> Self:
        """Iterate over the body; iterating again goes on where the last one stopped."""
        self._idle = idle
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            data = self.ready()
            if data is None:
                raise StopAsyncIteration
            if data:
                return data
            if await self._wait(self._idle):
                return b""

    def ready(self) -> bytes | None:
        pieces = self._pieces
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._size = 0
            if self._paused and self._connection is not None:
                self._paused = False
                self._connection.resume()
            return data
        if self._failure is not None:
            raise self._failure
        return None if self._connection is None else b""

    async def read(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        announced = self.head.body_length
        if announced is None or announced <= limit:
            async for piece in self:
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    break
            else:
                return b"".join(pieces)
        self.abort()
        raise ValueError("the body is longer than allowed")

    def abort(self) -> None:
        connection = self._connection
        if self.state is not BodyState.OPEN:
            return
        self._state = BodyState.ABORTED
        self._failure = AttemptFailure(
            Stage.AWAITING_HEAD if self._head is None else Stage.STREAMING,
            Cause.ABORTED,
            reused=self.reused,
        )
        self._connection = None
        self._pieces.clear()
        self._size = 0
        if connection is not None:
            connection.abort()
        self._wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()

    # -- ReplySink --------------------------------------------------------------------------

    def on_sent(self) -> None:
        if self._on_sent is not None:
            self._on_sent()

    def on_whole(self, facts: HeadFacts, body: bytes) -> None:
        self._connection = None
        self.on_head(facts, len(body))
        if body:
            self.on_body(body)

    def on_head(self, facts: HeadFacts, length: int | None) -> None:
        self._head = ReplyHead(
            status=facts.status, reason=facts.reason, headers=facts.headers, body_length=length
        )
        self._wake()

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.pause()
        self._wake()

    def on_chunks(self, data: bytes, size: int) -> None:  # noqa: ARG002
        raise RuntimeError("this sink takes payload")

    def on_end(self) -> None:
        self._connection = None
        self._wake()

    def on_failure(self, failure: AttemptFailure) -> None:
        self._connection = None
        self._failure = failure
        self._wake()

    # ---------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, idle: float | None = None) -> bool:
        """Wait until something has come. True: nothing did, for `idle` seconds."""
        if self._waiter is not None:
            raise RuntimeError("a reply has one reader at a time")
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        quiet = None if idle is None else loop.call_later(idle, self._wake)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._waiter = None
            if quiet is not None:
                quiet.cancel()
        return not self._pieces and self._failure is None and self._connection is not None


def keep_connection(reply: UpstreamReply) -> None:
    """Take what has arrived of an unwanted answer: if it is whole, the connection stays."""
    try:
        while reply.ready():
            pass
    except AttemptFailure:
        pass
