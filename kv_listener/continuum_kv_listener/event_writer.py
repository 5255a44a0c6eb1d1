"""Hands shared bytes to one subscriber's connection without copying them.

aiohttp's own writer joins a chunk with its frame, so each subscriber would get a copy. Here the
transport is given three pieces by reference: the chunk's length, the shared bytes, the line end.
uvloop keeps references until the kernel takes them, so that what waits for a thousand slow readers
is there once. The answer's head, its first piece and its end go aiohttp's way.
"""

import asyncio

from aiohttp import web
from aiohttp.http import HttpVersion11

WAITING_BYTES = 64 * 1024
"""What may wait for one subscriber in this process; the kernel holds some more."""
FIRST_LOOK, LAST_LOOK = 0.002, 1.0
"""Seconds between two looks whether a full connection has emptied, growing."""


class EventWriter:
    """The body of one event stream. ``patience`` is how long, in seconds, one write may take.

    All methods raise ConnectionError when the client is gone and TimeoutError when it does not
    read.
    """

    def __init__(
        self, request: web.Request, response: web.StreamResponse, *, patience: float
    ) -> None:
        self._request = request
        self._response = response
        self._patience = patience
        self._chunked = request.version >= HttpVersion11
        self._begun = False

    async def write(self, data: bytes) -> None:
        """Send one piece, then wait until there is room for another."""
        if not self._begun:
            self._begun = True
            async with asyncio.timeout(self._patience):
                await self._response.write(data)
            return
        transport = self._transport()
        if self._chunked:
            transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        else:
            transport.write(data)
        if transport.get_write_buffer_size() > WAITING_BYTES:
            await self._room()

    async def end(self, data: bytes) -> None:
        """Send the last piece and end the answer."""
        await self.write(data)
        async with asyncio.timeout(self._patience):
            await self._response.write_eof()

    async def _room(self) -> None:
        """Wait until half of the bound is free. aiohttp has no public way to be told."""
        look = FIRST_LOOK
        async with asyncio.timeout(self._patience):
            while self._transport().get_write_buffer_size() > WAITING_BYTES // 2:
                await asyncio.sleep(look)
                look = min(LAST_LOOK, look * 1.5)

    def _transport(self) -> asyncio.Transport:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the subscriber has left")
        return transport
