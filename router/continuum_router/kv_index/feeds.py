"""Where the bytes of one backend's event stream come from.

The consumer sees an :class:`EventFeed`; the pull form over HTTP is :class:`SseFeed`, over a
WebSocket ``ws_feed``, the push form (event bus) comes from elsewhere and fits by shape. Whatever
goes wrong in the transport leaves here as a :class:`FeedError` with a closed reason.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import aiohttp
from yarl import URL

from continuum_shared.config.kinds import Secret

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
    a stream or did not last. ``TLS``: no certificate that we trust, or ours was not taken, or the
    files cannot be read. ``UNAUTHORIZED``: the listener wants another token (401, 403).
    ``REFUSED``: it has no room for another stream (503).
    """

    CONNECT = "connect"
    TIMEOUT = "timeout"
    TLS = "tls"
    UNAUTHORIZED = "unauthorized"
    REFUSED = "refused"
    STATUS = "status"
    CONTENT_TYPE = "content_type"
    CUT = "cut"


_STATUS_FAULTS = {
    401: FeedFault.UNAUTHORIZED,
    403: FeedFault.UNAUTHORIZED,
    503: FeedFault.REFUSED,
}


class FeedError(Exception):
    """The stream failed; ``status`` is given when the peer answered with one that is not 200.

    ``detail`` is a fixed word of the TLS library or a configuration key, never a peer's text.
    """

    def __init__(self, fault: FeedFault, status: int | None = None, detail: str = "") -> None:
        more = detail if status is None else str(status)
        super().__init__(f"{fault.value} {more}".rstrip())
        self.fault = fault
        self.status = status


class TlsFiles(Exception):
    """The files of a TLS section cannot be used; the text names the key."""


MakeTls = Callable[[], ssl.SSLContext]
"""Makes the client context from the files as they are now. Raises :class:`TlsFiles`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedAccess:
    """How a feed shows who it is and knows the listener.

    ``tls`` makes the context of each connection, None takes the system's trust store;
    ``server_name`` is the name that the certificate must have, when it is not the endpoint's host.
    """

    token: Secret | None = None
    tls: MakeTls | None = None
    server_name: str | None = None


OPEN = FeedAccess()


class EventFeed(Protocol):
    """One source of SSE bytes that can be opened again and again."""

    def open(self, last_event_id: str | None) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Connect and give the pieces of the stream, in any split, until it ends.

        ``last_event_id`` is where to go on; ``None`` asks for a snapshot. Entering the context and
        iterating raise :class:`FeedError`; leaving it closes the connection.
        """

    async def reachable(self) -> bool:
        """Whether somebody accepts connections there now. Never raises, asks for nothing."""


class _Redirected(Exception):
    """The peer sent us elsewhere; ``status`` is how."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


async def _refuse_redirects(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """An event source is a place that the operator named, and the token is for it alone."""
    response = await handler(request)
    if response.status in (301, 302, 303, 307, 308):
        response.close()
        raise _Redirected(response.status)
    return response


def event_session() -> aiohttp.ClientSession:
    """A session for long-lived streams: no limit of connections, no cookies, no proxy variables,
    no redirects.

    Make it inside a running event loop; the maker closes it.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        middlewares=(_refuse_redirects,),
    )


@contextmanager
def failures() -> Iterator[None]:
    """What goes wrong inside leaves as a :class:`FeedError`."""
    try:
        yield
    except TimeoutError:
        raise FeedError(FeedFault.TIMEOUT) from None
    except (_Redirected, aiohttp.WSServerHandshakeError) as error:
        raise refused(error.status) from None
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        # With TLS 1.3 a server says only after the handshake that it wants another certificate.
        raise FeedError(FeedFault.TLS, detail=_tls_word(error)) from None
    except aiohttp.ClientConnectorError:
        raise FeedError(FeedFault.CONNECT) from None
    except (aiohttp.ClientError, OSError):
        raise FeedError(FeedFault.CUT) from None


def refused(status: int) -> FeedError:
    """The failure that an answer with another status than the wanted one is."""
    return FeedError(_STATUS_FAULTS.get(status, FeedFault.STATUS), status)


class HttpFeed:
    """What the two pull forms share. The session is handed in and stays open. Times are in seconds;
    ``idle_timeout`` bounds the silence.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: str,
        *,
        access: FeedAccess = OPEN,
        connect_timeout: float = CONNECT_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self.session = session
        self.endpoint = endpoint
        self.access = access
        self.connect_timeout = connect_timeout
        self.idle_timeout = idle_timeout

    def headers(self, last_event_id: str | None) -> dict[str, str]:
        """What is sent to the listener."""
        headers = dict(_HEADERS)
        if self.access.token is not None:
            headers["Authorization"] = f"Bearer {self.access.token.reveal()}"
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        return headers

    def tls(self) -> ssl.SSLContext | bool:
        """The context of the next connection; True is aiohttp's own."""
        try:
            return True if self.access.tls is None else self.access.tls()
        except TlsFiles as error:
            raise FeedError(FeedFault.TLS, detail=str(error)) from None

    async def reachable(self) -> bool:
        """See :class:`EventFeed`: a bare TCP connection, closed at once."""
        url = URL(self.endpoint)
        try:
            async with asyncio.timeout(REACH_TIMEOUT):
                _, writer = await asyncio.open_connection(url.host, url.port)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            return False
        return True


class SseFeed(HttpFeed):
    """``GET endpoint`` of a listener."""

    @asynccontextmanager
    async def open(self, last_event_id: str | None) -> AsyncIterator[AsyncIterator[bytes]]:
        """See :class:`EventFeed`."""
        response = await self._get(self.headers(last_event_id))
        try:
            if response.status != 200:
                raise refused(response.status)
            if response.content_type != "text/event-stream":
                raise FeedError(FeedFault.CONTENT_TYPE)
            async with aclosing(_pieces(response.content)) as pieces:
                yield pieces
        finally:
            response.close()

    async def _get(self, headers: dict[str, str]) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self.connect_timeout, sock_read=self.idle_timeout
        )
        context = self.tls()
        with failures():
            return await self.session.get(
                self.endpoint,
                headers=headers,
                timeout=timeout,
                ssl=context,
                server_hostname=self.access.server_name,
            )


def _tls_word(error: aiohttp.ClientSSLError | ssl.SSLError) -> str:
    """The TLS library's word for what went wrong, such as ``certificate_verify_failed``."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorSSLError) else error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    reason = getattr(cause, "reason", None)
    return str(reason or "").lower()


async def _pieces(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Pieces as they arrive. The reader's own limit stops the peer while we are behind."""
    while True:
        with failures():
            piece = await content.readany()
        if not piece:
            return
        yield piece
