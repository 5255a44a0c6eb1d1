"""All connections to all backends: one call is `await pool.send(backend, request, ...)`.

Serves both ways in: `send` for the ordinary one; `take` plus `Connection.start` for callers that
own a synchronous sink and must not wait (design/data-plane.md rule 2).
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Iterator

from continuum_router.backends.credentials import TlsFileError, tls_context
from continuum_router.backends.exchange import UpstreamReply, UpstreamRequest
from continuum_router.backends.pool import Backend
from continuum_router.config.backends import TlsConfig
from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.dial import default_tls
from continuum_router.upstream.lane import Lane
from continuum_router.upstream.reply import QueuedReply
from continuum_router.upstream.response_head import HeadReader

IDLE_LIMIT = 4.0
"""Seconds a connection is kept unused. Below the 5 s after which uvicorn closes its end (S2)."""

_PLAIN_TLS = TlsConfig()


class UpstreamPool:
    """Keeps connections by backend name. Lives as long as the process; survives reloads.

    `clock` gives seconds of a monotonic clock. `tls` gives the context for an https backend;
    without it, one default context (system trust store) is made for the first https backend.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_contexts",
        "_default_tls",
        "_heads",
        "_idle_limit",
        "_lanes",
        "_leaving",
        "_timer",
        "_tls",
    )

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        idle_limit: float = IDLE_LIMIT,
        tls: Callable[[Backend], ssl.SSLContext] | None = None,
    ) -> None:
        self._clock = clock
        self._idle_limit = idle_limit
        self._tls = tls
        self._default_tls: ssl.SSLContext | None = None
        self._contexts: dict[str, tuple[TlsConfig, ssl.SSLContext]] = {}
        self._heads = HeadReader()
        self._lanes: dict[str, Lane] = {}
        self._leaving: list[Lane] = []  # forgotten ones that are or were still used then
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def send(
        self,
        backend: Backend,
        request: UpstreamRequest,
        *,
        connect_timeout: float,
        fresh: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> UpstreamReply:
        """Send `request` and wait for the head of the answer.

        `connect_timeout` (seconds) bounds waiting for a free place below `backend.max_connections`
        and connecting; the caller's own deadlines bound the rest, by cancelling. `fresh` asks for a
        new connection (decisions E14). `on_sent` is called once, when the request has left in full.

        Raises AttemptFailure. A cancellation closes the connection. The reply must be used as a
        context manager or aborted: it holds a connection until its body has been read by the peer's
        framing or it is aborted.
        """
        lane = self._lane(backend)
        connection = None if fresh else lane.take()
        if connection is None:
            connection = await lane.get(
                connect_timeout=connect_timeout, fresh=fresh, tls=self._tls_for(backend)
            )
        reply = QueuedReply(connection, on_sent=on_sent)
        await reply.open(request)
        return reply

    def take(self, backend: Backend) -> Connection | None:
        """An idle connection, without waiting, or None: then `send` is the way.

        The caller must call `start` on it or `abort` it; it comes back by itself.
        """
        return self._lane(backend).take()

    async def obtain(self, backend: Backend, *, connect_timeout: float) -> Connection:
        """A connection for one call: one that has become free meanwhile, or a new one.

        `connect_timeout` as in `send`; the caller must call `start` on it or `abort` it. Raises
        AttemptFailure (stage connecting). A cancellation leaves nothing behind.
        """
        return await self._lane(backend).get(
            connect_timeout=connect_timeout, fresh=False, tls=self._tls_for(backend)
        )

    def forget(self, name: str) -> None:
        """Close a removed backend's idle connections; requests that are with it go on."""
        self._contexts.pop(name, None)
        lane = self._lanes.pop(name, None)
        if lane is not None:
            lane.retire()
            self._leaving = [gone for gone in (*self._leaving, lane) if gone.size]

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget every backend that is not named; for a reload."""
        for name in set(self._lanes).difference(names):
            self.forget(name)

    def connections(self) -> Iterator[tuple[tuple[str, str], float]]:
        """Label values (backend, state) and count, for a gauge read at scrape.

        States: active (carrying a call or being made), idle, waiting (callers in the queue).
        """
        for name, lane in self._lanes.items():
            yield (name, "active"), lane.size - len(lane.idle)
            yield (name, "idle"), len(lane.idle)
            yield (name, "waiting"), lane.waiting

    async def close(self) -> None:
        """Close everything; calls under way fail with cause aborted. Further sends fail."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for lane in (*self._lanes.values(), *self._leaving):
            lane.close()
        self._lanes.clear()
        self._leaving.clear()
        await asyncio.sleep(0)  # lets the transports close their sockets

    def _lane(self, backend: Backend) -> Lane:
        lane = self._lanes.get(backend.name)
        if lane is None or (lane.url is not backend.url and lane.url != backend.url):
            lane = self._new_lane(backend)
        elif lane.tls is not backend.tls and lane.tls != backend.tls:
            # Connections made under other trust settings are not used again.
            lane = self._new_lane(backend)
        lane.cap = backend.max_connections
        lane.tls = backend.tls
        return lane

    def _new_lane(self, backend: Backend) -> Lane:
        """A lane for a new backend, or for one that a reload gave another address."""
        if self._closed:
            raise AttemptFailure(Stage.CONNECTING, Cause.POOL_CLOSED)
        self.forget(backend.name)
        lane = Lane(
            backend.url,
            heads=self._heads,
            idle_limit=self._idle_limit,
            clock=self._clock,
            on_idle=self._arm,
        )
        self._lanes[backend.name] = lane
        return lane

    def _tls_for(self, backend: Backend) -> ssl.SSLContext | None:
        if not backend.url.tls:
            return None
        if self._tls is not None:
            return self._tls(backend)
        if backend.tls == _PLAIN_TLS:
            if self._default_tls is None:
                self._default_tls = default_tls()
            return self._default_tls
        known = self._contexts.get(backend.name)
        if known is None or known[0] != backend.tls:
            try:
                known = (backend.tls, tls_context(backend.tls))
            except TlsFileError as err:
                raise AttemptFailure(Stage.CONNECTING, Cause.TLS, detail=err.key) from None
            self._contexts[backend.name] = known
        return known[1]

    def _arm(self) -> None:
        """Sweep in a while; called when a connection falls idle."""
        if self._timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_limit / 4, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        left = [lane.sweep() for lane in self._lanes.values()]
        if any(left):
            self._arm()
