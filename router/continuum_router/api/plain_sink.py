"""The client's side of a relayed answer, straight on the connection (`upstream.relay.ClientSink`).

For requests that the fast path took and the general loop goes on with: there is no aiohttp request
that an answer could be prepared for.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from continuum_router.api.answer_head import HttpDate, answer_head, has_no_body
from continuum_router.errors import ClientGone

JSON = ("Content-Type", "application/json")


class ClientWire(Protocol):
    """One client connection, as writing to it needs it."""

    @property
    def writing_paused(self) -> bool:
        """True while the client reads slower than it is written to."""

    def send(self, data: bytes) -> bool:
        """Write; False when nobody is there."""

    async def drained(self) -> None:
        """Wait until the client has caught up. Raises ConnectionError."""

    def break_off(self) -> None:
        """Abort the connection."""


class Client(ClientWire, Protocol):
    """The connection that a request of the fast path came in on."""

    def call_ended(self, close: bool) -> None:
        """The call is over; `close`: the connection ends with it."""

    def give_back(self, data: bytes) -> None:
        """This was nothing for the fast path after all: the untouched bytes."""


class PlainSink:
    """Writes one answer to one connection; see WebSink for `more_headers` and `closing`.

    `closes` turns True when the connection is to end with this answer.
    """

    __slots__ = ("_chunked", "_closing", "_date", "_more_headers", "_wire", "closes", "status_sent")

    def __init__(
        self,
        wire: ClientWire,
        *,
        date: HttpDate,
        more_headers: Callable[[], Iterable[tuple[str, str]]],
        closing: Callable[[], bool],
    ) -> None:
        self._wire = wire
        self._date = date
        self._more_headers = more_headers
        self._closing = closing
        self._chunked = False
        self.closes = False
        self.status_sent: int | None = None

    @property
    def started(self) -> bool:
        """See ClientSink."""
        return self.status_sent is not None

    @property
    def status(self) -> int:
        """The status that was sent."""
        assert self.status_sent is not None
        return self.status_sent

    @property
    def congested(self) -> bool:
        """See ClientSink."""
        return self._wire.writing_paused

    async def send(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """See ClientSink."""
        head = self._head(status, headers, len(body))
        self._put(head if has_no_body(status) else head + body)
        await self._drain()

    def refuse(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send an error object without waiting. Raises ClientGone."""
        self._put(self._head(status, headers, len(body), (JSON,)) + body)

    async def start(
        self, status: int, headers: Sequence[tuple[str, str]], length: int | None
    ) -> None:
        """See ClientSink."""
        self._chunked = length is None and not has_no_body(status)
        self._put(self._head(status, headers, length))

    async def write(self, data: bytes) -> None:
        """See ClientSink."""
        if data:
            self._put(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            await self._drain()

    async def finish(self) -> None:
        """See ClientSink."""
        if self._chunked:
            self._put(b"0\r\n\r\n")
        await self._drain()

    async def finish_and_close(self) -> None:
        """See ClientSink."""
        self.closes = True
        await self.finish()

    def cut(self) -> None:
        """See ClientSink."""
        self.closes = True
        self._wire.break_off()

    def _head(
        self,
        status: int,
        headers: Sequence[tuple[str, str]],
        length: int | None,
        last: Sequence[tuple[str, str]] = (),
    ) -> bytes:
        self.closes = self._closing()
        self.status_sent = status
        pairs = [*headers, *self._more_headers(), *last]
        return answer_head(status, pairs, length=length, date=self._date.line(), close=self.closes)

    def _put(self, data: bytes) -> None:
        if not self._wire.send(data):
            raise ClientGone

    async def _drain(self) -> None:
        if self._wire.writing_paused:
            try:
                await self._wire.drained()
            except ConnectionError:
                raise ClientGone from None
