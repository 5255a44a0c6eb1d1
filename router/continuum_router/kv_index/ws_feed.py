"""The pull form over a WebSocket: each text message is a piece of the SSE byte stream (C32)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import aiohttp

from continuum_router.kv_index.feeds import FeedError, FeedFault, HttpFeed, failures

MAX_MESSAGE = 1024 * 1024
"""As the bound on a line and a record (S0 "SSE parsing")."""
_CLOSE_SECONDS = 1.0
_CLEAN = (aiohttp.WSCloseCode.OK, aiohttp.WSCloseCode.GOING_AWAY)

Socket = aiohttp.ClientWebSocketResponse


class WsFeed(HttpFeed):
    """``ws://`` or ``wss://`` endpoint of a listener."""

    @asynccontextmanager
    async def open(self, last_event_id: str | None) -> AsyncIterator[AsyncIterator[bytes]]:
        """See ``EventFeed``."""
        socket = await self._connect(self.headers(last_event_id))
        try:
            async with aclosing(_pieces(socket)) as pieces:
                yield pieces
        finally:
            await socket.close()

    async def _connect(self, headers: dict[str, str]) -> Socket:
        context = self.tls()
        with failures():
            async with asyncio.timeout(self.connect_timeout):
                return await self.session.ws_connect(
                    self.endpoint,
                    headers=headers,
                    timeout=aiohttp.ClientWSTimeout(
                        ws_receive=self.idle_timeout, ws_close=_CLOSE_SECONDS
                    ),
                    ssl=context,
                    server_hostname=self.access.server_name,
                    max_msg_size=MAX_MESSAGE,
                )


async def _pieces(socket: Socket) -> AsyncGenerator[bytes, None]:
    """The text messages as they arrive, until the peer closes properly."""
    while True:
        with failures():
            message = await socket.receive()
        match message.type:
            case aiohttp.WSMsgType.TEXT:
                yield message.data.encode()
            case aiohttp.WSMsgType.BINARY:
                raise FeedError(FeedFault.CONTENT_TYPE)
            case aiohttp.WSMsgType.CLOSE | aiohttp.WSMsgType.CLOSING if message.data in _CLEAN:
                return
            case _:
                raise FeedError(FeedFault.CUT)
