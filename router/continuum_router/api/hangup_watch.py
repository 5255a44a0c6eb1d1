"""Notices that a client has left although nothing is read from it.

While a request runs, a client may send the next ones. When too much waits, aiohttp stops reading,
and then the end of the connection is not seen either: the request would run to its deadline, and
the engine with it (user report S1 asks for one second). The kernel is asked instead, a few times a
second, and only while reading stands still. It knows of an end that has arrived; one that waits
behind megabytes which our full receive buffer keeps out is noticed when those are read.
"""

import asyncio
import select

LOOK_SECONDS = 0.4
"""Time between two looks: with it a client that left is noticed well within a second."""


class HangupWatch:
    """Watches one connection from :meth:`start` until it reads again or is closed."""

    __slots__ = ("_looking",)

    def __init__(self) -> None:
        self._looking = False

    def start(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Reading has been paused. Calling again while the watch runs does nothing."""
        if not self._looking:
            self._looking = True
            loop.call_later(LOOK_SECONDS, self._look, transport, loop)

    def _look(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._looking = False
        if transport.is_closing() or transport.is_reading():
            return
        if hung_up(transport.get_extra_info("socket").fileno()):
            transport.abort()
        else:
            self.start(transport, loop)


def hung_up(fd: int) -> bool:
    """Whether the peer of a socket has closed its side, read or unread bytes before that aside."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    return bool(poller.poll(0))
