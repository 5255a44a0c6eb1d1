"""Where the bytes of one backend's event stream come from.

The consumer sees an :class:`EventFeed`; the pull form over HTTP is :class:`SseFeed`, the push form
(event bus) comes from elsewhere and fits by shape. Whatever goes wrong in the transport leaves here
as a :class:`FeedError` with a closed reason.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from enum import StrEnum
from typing import Protocol

import aiohttp
from yarl import URL

CONNECT_TIMEOUT = 10.0
REACH_TIMEOUT = 1.0
IDLE_TIMEOUT = 30.0
"""Seconds without a byte after which a stream is dead: three heartbeats of the listener."""

_HEADERS = {
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
    "Cache-Control": "no-store",
}


class FeedFault(StrEnum):
    """Why a stream could not be opened or ended early.

    ``CONNECT``: nobody accepts connections there. ``CUT``: somebody did, and what followed was not
    a stream or did not last.
    """

    CONNECT = "connect"
    TIMEOUT = "timeout"
    STATUS = "status"
    CONTENT_TYPE = "content_type"
    CUT = "cut"


class FeedError(Exception):
    """The stream failed; ``status`` is given with ``FeedFault.STATUS``."""

    def __init__(self, fault: FeedFault, status: int | None = None) -> None:
        super().__init__(fault.value if status is None else f"{fault.value} {status}")
        self.fault = fault
        self.status = status


class EventFeed(Protocol):
    """One source of SSE bytes that can be opened again and again."""

    def open(self, last_event_id: str | None) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Connect and give the pieces of the stream, in any split, until it ends.

        ``last_event_id`` is where to go on; ``None`` asks for a snapshot. Entering the context and
        iterating raise :class:`FeedError`; leaving it closes the connection.
        """

    async def reachable(self) -> bool:
        """Whether somebody accepts connections there now. Never raises, asks for nothing."""


def event_session() -> aiohttp.ClientSession:
    """A session for long-lived streams: no limit of connections, no cookies, no proxy variables.

    Make it inside a running event loop; the maker closes it.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
    )


class SseFeed:
    """``GET endpoint`` of a listener.

    The session is handed in and stays open; redirects are failures, since an event source is a
    place that the operator named. Times are in seconds; ``idle_timeout`` bounds the silence.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: str,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self._session = session
        self._endpoint = endpoint
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout, sock_read=idle_timeout
        )

    @asynccontextmanager
    async def open(self, last_event_id: str | None) -> AsyncIterator[AsyncIterator[bytes]]:
        """See :class:`EventFeed`."""
        headers = dict(_HEADERS)
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        response = await self._get(headers)
        try:
            if response.status != 200:
                raise FeedError(FeedFault.STATUS, response.status)
            if response.content_type != "text/event-stream":
                raise FeedError(FeedFault.CONTENT_TYPE)
            async with aclosing(_pieces(response.content)) as pieces:
                yield pieces
        finally:
            response.close()

    async def reachable(self) -> bool:
        """See :class:`EventFeed`: a bare TCP connection, closed at once."""
        url = URL(self._endpoint)
        try:
            async with asyncio.timeout(REACH_TIMEOUT):
                _, writer = await asyncio.open_connection(url.host, url.port)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            return False
        return True

    async def _get(self, headers: dict[str, str]) -> aiohttp.ClientResponse:
        try:
            return await self._session.get(
                self._endpoint, headers=headers, allow_redirects=False, timeout=self._timeout
            )
        except TimeoutError:
            raise FeedError(FeedFault.TIMEOUT) from None
        except (aiohttp.ClientSSLError, ssl.SSLError):
            raise FeedError(FeedFault.CUT) from None
        except aiohttp.ClientConnectorError:
            raise FeedError(FeedFault.CONNECT) from None
        except (aiohttp.ClientError, OSError):
            raise FeedError(FeedFault.CUT) from None


async def _pieces(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Pieces as they arrive. The reader's own limit stops the peer while we are behind."""
    try:
        while piece := await content.readany():
            yield piece
    except TimeoutError:
        raise FeedError(FeedFault.TIMEOUT) from None
    except (aiohttp.ClientError, OSError):
        raise FeedError(FeedFault.CUT) from None
