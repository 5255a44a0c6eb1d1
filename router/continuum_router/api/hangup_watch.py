"""Notices that a client has left although nothing is read from it.

While a request runs, a client may send the next ones, or more of its body than the backend takes.
When too much waits, aiohttp stops reading, and then the end of the connection is not seen either:
the request would run to its deadline, and the engine with it (user report S1 asks for one second).
The kernel is asked instead, a few times a second, and only while reading stands still.

It knows of an end that has arrived. One that waits in the client's kernel, behind megabytes for
which our full receive buffer has no room, it does not know of: then the client is knocked at, with
an interim answer. A living one passes over it; the kernel of one that has left answers with a reset
(docs/decisions/0028).
"""

import asyncio
import select
from collections.abc import Callable, Sequence

from aiohttp import web
from aiohttp.http import HttpVersion11

LOOK_SECONDS = 0.4
"""Time between two looks: with it a client that left is noticed well within a second."""

KNOCKS = (2.0, 8.0, 30.0, 90.0)
"""Seconds of standing still after which a client is knocked at; some clients bear no more than
five interim answers to one request, and one may have been asked for."""

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"

_KNOCKED = "continuum.knocked"


def _nothing() -> web.BaseRequest | None:
    return None


class HangupWatch:
    """Watches one connection from :meth:`start` until it reads again or is closed."""

    __slots__ = ("_knocks", "_looking", "_since")

    def __init__(self, knocks: Sequence[float] = KNOCKS) -> None:
        self._knocks = knocks
        self._looking = False
        self._since = 0.0

    def start(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        request: Callable[[], web.BaseRequest | None] = _nothing,
    ) -> None:
        """Reading has been paused. Calling again while the watch runs does nothing.

        `request` tells what is being answered on the connection.
        """
        if not self._looking:
            self._looking = True
            self._since = loop.time()
            loop.call_later(LOOK_SECONDS, self._look, transport, loop, request)

    def _look(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        request: Callable[[], web.BaseRequest | None],
    ) -> None:
        self._looking = False
        if transport.is_closing() or transport.is_reading():
            return
        if hung_up(transport.get_extra_info("socket").fileno()):
            transport.abort()
            return
        asked = request()
        if asked is not None and may_be_knocked_at(asked):
            done = asked.get(_KNOCKED, 0)
            if done < len(self._knocks) and loop.time() - self._since >= self._knocks[done]:
                asked[_KNOCKED] = done + 1
                transport.write(INTERIM)
        self._looking = True
        loop.call_later(LOOK_SECONDS, self._look, transport, loop, request)


def hung_up(fd: int) -> bool:
    """Whether the peer of a socket has closed its side, read or unread bytes before that aside."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    return bool(poller.poll(0))


def may_be_knocked_at(request: web.BaseRequest) -> bool:
    """Whether an interim answer is in order: HTTP/1.1, body under way, nothing answered yet."""
    return (
        request.version >= HttpVersion11
        and not request.content.is_eof()
        and request.writer.output_size == 0
    )
