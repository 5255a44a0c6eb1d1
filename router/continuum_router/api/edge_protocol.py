"""One client connection: aiohttp's own protocol, with the fast path in front of it.

Bytes come here first. When a request surely begins with them and nobody is being answered, the fast
path may take them; everything else is aiohttp's, after `WireGuard` has read it strictly. The guard
also knows where each body ends, and so where the next request begins.
"""

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

from continuum_router.api.arriving import Arriving
from continuum_router.api.fast_call import FastCall
from continuum_router.api.fast_path import BEGINS, FastPath, Visitor
from continuum_router.api.hangup_watch import HangupWatch
from continuum_router.api.middleware import Edge
from continuum_router.api.wire_guard import WireGuard

if TYPE_CHECKING:
    from continuum_router.api.app import EdgeServer

HOLD_LIMIT = 64 * 1024
"""Bytes that a client may send ahead during a request before they are left in the kernel."""

NO_HTTP = b"\0\r\n\r\n"
"""What aiohttp's parser is given in the place of bytes that were refused; it is an error anywhere
but inside a chunk or a body of known length, where no refusal leaves it."""


class EdgeProtocol(RequestHandler):
    """See the module. Is the `Client` of its calls."""

    __slots__ = (
        "_ahead",
        "_ahead_size",
        "_answered_body",
        "_call",
        "_edge",
        "_ended",
        "_fast",
        "_guard",
        "_hangup",
        "_last",
        "_newest_body",
        "_sure",
        "_used",
        "_visitor",
    )

    def __init__(
        self, server: "EdgeServer", edge: Edge, fast: FastPath | None, **kwargs: object
    ) -> None:
        super().__init__(server, **kwargs)  # type: ignore[arg-type]
        self._edge = edge
        self._guard = WireGuard()
        self._hangup = HangupWatch()
        self._newest_body: StreamReader = EMPTY_PAYLOAD
        self._answered_body: StreamReader = EMPTY_PAYLOAD
        self._fast = fast
        self._sure = fast is not None
        self._used = False  # until aiohttp got bytes its task is known to have nothing to do
        self._call: FastCall | Arriving | None = None
        self._visitor: Visitor | None = None
        self._ahead: list[bytes] = []
        self._ahead_size = 0
        self._last = 0.0
        self._ended: asyncio.Future[None] | None = None

    # -- asyncio.Protocol -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple | list):
            peer = peer[0]
        self._visitor = Visitor(self, None if peer is None else str(peer))

    def data_received(self, data: bytes) -> None:
        """Take the client's next bytes."""
        call = self._call
        if call is not None:
            if isinstance(call, Arriving):
                self._arrived(call, data)
            else:
                self._hold(data)
            return
        waiter, fast, visitor = self._waiter, self._fast, self._visitor
        if (
            self._sure
            and fast is not None
            and visitor is not None
            and data.startswith(BEGINS)
            and (not self._used if waiter is None else not waiter.done())
            and not (self._messages or self._close or self._force_close or self._paused)
        ):
            self._call = fast.take(data, visitor)
            if self._call is not None:
                return
        if data:
            self._to_aiohttp(data)
        else:
            self._parse(data)  # aiohttp asks itself to go on with what it holds

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._call is not None:
            self._call.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._call is not None:
            self._call.resume()

    def connection_lost(self, exc: BaseException | None) -> None:
        call = self._call
        super().connection_lost(exc)
        if call is not None:
            call.gone()

    def _pause_transport_reading(self) -> None:
        super()._pause_transport_reading()
        if self.transport is not None:
            self._hangup.start(self.transport, self._loop, lambda: self._current_request)

    # -- the fast path ----------------------------------------------------------------------

    def _arrived(self, call: Arriving, data: bytes) -> None:
        off = call.more(data)
        if off is not None:
            self._call = off

    def _hold(self, data: bytes) -> None:
        """Bytes behind the request under way: they wait until it is answered."""
        self._ahead.append(data)
        self._ahead_size += len(data)
        if self._ahead_size > HOLD_LIMIT:
            self._pause_transport_reading()

    def send(self, data: bytes) -> bool:
        """See ClientWire."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        transport.write(data)
        return True

    async def drained(self) -> None:
        """See ClientWire."""
        await self._drain_helper()

    def break_off(self) -> None:
        """See ClientWire."""
        if self.transport is not None:
            self.transport.abort()

    def call_ended(self, close: bool) -> None:
        """See Client."""
        self._call = None
        self._last = self._loop.time()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if close or self._force_close or self._close:
            self.force_close()
        elif self._ahead:
            data = b"".join(self._ahead)
            if self._ahead_size > HOLD_LIMIT:
                self._resume_transport_reading()
            self._ahead, self._ahead_size = [], 0
            self.data_received(data)

    def give_back(self, data: bytes) -> None:
        """See Client."""
        self._call = None
        self._to_aiohttp(data)

    # -- aiohttp ----------------------------------------------------------------------------

    def _to_aiohttp(self, data: bytes) -> None:
        """Hand over those bytes that `WireGuard` finds clean."""
        self._used = True
        guard = self._guard
        refused = guard.fault is not None
        for piece in guard.feed(data):
            self._parse(piece)
        if guard.fault is not None and not refused:
            self._parse(NO_HTTP)
        self._sure = self._fast is not None and guard.between

    def _parse(self, data: bytes) -> None:
        """Let aiohttp read bytes.

        When a body turns out to be damaged, aiohttp queues the error as if it were a request of its
        own and leaves whoever reads the body waiting. It belongs to that body: hand it over.
        """
        super().data_received(data)
        messages = self._messages
        if not messages:
            return
        message, content = messages[-1]
        if isinstance(message, RawRequestMessage):
            self._newest_body = content
        elif not self._newest_body.is_eof():
            if self._newest_body is not self._answered_body:
                messages.pop()
                self._newest_body.set_exception(web.RequestPayloadError("the body is damaged"))
            self._newest_body.feed_eof()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """From now on nobody reads the request's body any more, aiohttp only skips what is left."""
        self._answered_body = request.content
        if self._guard.fault is not None and not self._messages:
            resp.force_close()  # nothing behind this request will be looked at
        return await super().finish_response(request, resp, start_time)

    def _process_keepalive(self) -> None:
        """An idle connection's time is up, unless the fast path has used it meanwhile."""
        used = self._loop.time() if self._call is not None else self._last
        due = used + self.keepalive_timeout
        if used and due > self._next_keepalive_close_time:
            self._next_keepalive_close_time = due
        super()._process_keepalive()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """The server ends: wait for the request under way, then end it."""
        self._force_close = True
        if self._call is not None:
            self._ended = self._loop.create_future()
            await asyncio.wait((self._ended,), timeout=timeout)
            if self._call is not None:
                self._call.gone()
        await super().shutdown(timeout)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Answer what aiohttp's parser refused. Its text may quote the client and is not used."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was started already")
        # aiohttp marks what it could not parse as HTTP/1.0; the answer is in the usual form.
        request._version = HttpVersion11
        return self._edge.unparsed("?", self._guard.fault)
