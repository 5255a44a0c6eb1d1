"""The connections of one backend: idle ones last in first out, a cap, a queue for the cap."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from continuum_router.config.backends import TlsConfig
from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.dial import dial
from continuum_router.upstream.response_head import HeadReader
from continuum_shared.config.kinds import BackendUrl

KEEP_HINT_SHARE = 0.8
"""Share of the idle time a peer promises (`Keep-Alive: timeout=N`) that we make use of."""


class Lane:
    """Owner of one backend's connections.

    Counts: `conns` are open ones (busy or idle), `_pending` are places reserved for connections
    being made. Their sum never exceeds `cap`, except by one for the moment in which a caller that
    wants a fresh connection trades a kept one in. Whoever waits gets the next free connection or
    place in the order of arrival; while someone waits there is no idle connection.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_heads",
        "_idle_limit",
        "_on_idle",
        "_pending",
        "_retired",
        "_waiters",
        "cap",
        "conns",
        "idle",
        "tls",
        "url",
    )

    def __init__(
        self,
        url: BackendUrl,
        *,
        heads: HeadReader,
        idle_limit: float,
        clock: Callable[[], float],
        on_idle: Callable[[], None],
    ) -> None:
        self.url = url
        self.tls = TlsConfig()
        self.cap = 1
        self.conns: set[Connection] = set()
        self.idle: list[Connection] = []
        self._pending = 0
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        self._retired = False
        self._closed = False
        self._heads = heads
        self._idle_limit = idle_limit
        self._clock = clock
        self._on_idle = on_idle

    @property
    def size(self) -> int:
        """Connections open or being made."""
        return len(self.conns) + self._pending

    @property
    def waiting(self) -> int:
        """Callers in the queue."""
        return sum(1 for waiter in self._waiters if not waiter.done())

    # -- getting one ------------------------------------------------------------------------

    def take(self) -> Connection | None:
        """The idle connection that was used last, or None. Ones past their time are closed."""
        while self.idle:
            connection = self.idle.pop()
            if connection.usable and self._clock() < connection.idle_until:
                return connection
            connection.abort()
        return None

    async def get(
        self, *, connect_timeout: float, fresh: bool, tls: ssl.SSLContext | None
    ) -> Connection:
        """A connection for one call, within `connect_timeout` seconds, queueing included.

        `fresh` asks for one that has carried no call. Raises AttemptFailure (connecting).
        """
        deadline = asyncio.get_running_loop().time() + connect_timeout
        connection = None if fresh else self.take()
        while connection is None:
            if self._closed:
                raise AttemptFailure(Stage.CONNECTING, Cause.POOL_CLOSED)
            if self._reserve():
                return await self._dial(tls, deadline)
            granted = await self._queue(deadline)
            if granted is None:
                return await self._dial(tls, deadline)
            if fresh:
                self._pending += 1
                granted.abort()
                return await self._dial(tls, deadline)
            connection = granted if granted.usable else None
        return connection

    def _reserve(self) -> bool:
        """Reserve a place for a new connection; an idle one makes room when the cap is reached."""
        if self.size >= self.cap and self.idle:
            self.idle.pop(0).abort()
        if self.size >= self.cap:
            return False
        self._pending += 1
        return True

    async def _dial(self, tls: ssl.SSLContext | None, deadline: float) -> Connection:
        """Make the connection for which a place is reserved."""
        try:
            connection = await dial(
                self.url, self._heads, tls=tls, deadline=deadline, server_name=self.tls.server_name
            )
        except BaseException:
            self._pending -= 1
            self._serve_waiters()
            raise
        self._pending -= 1
        connection.owner = self
        self.conns.add(connection)
        if self._closed:
            connection.abort()
            raise AttemptFailure(Stage.CONNECTING, Cause.POOL_CLOSED)
        return connection

    async def _queue(self, deadline: float) -> Connection | None:
        """Wait for a connection, or for a reserved place (None)."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter
        except TimeoutError:
            self._return(waiter)
            raise AttemptFailure(Stage.CONNECTING, Cause.POOL_FULL) from None
        except asyncio.CancelledError:
            self._return(waiter)
            raise

    def _return(self, waiter: asyncio.Future[Connection | None]) -> None:
        """Pass on what a waiter was given just as it gave up."""
        if not waiter.done():
            waiter.cancel()
        if waiter.cancelled():
            self._waiters = deque(other for other in self._waiters if other is not waiter)
        elif waiter.exception() is None:
            granted = waiter.result()
            if granted is None:
                self._pending -= 1
                self._serve_waiters()
            elif granted.usable:
                self._hand_on(granted)

    # -- ConnectionOwner --------------------------------------------------------------------

    def released(self, connection: Connection, keep_for: float | None) -> None:
        limit = self._idle_limit
        if keep_for is not None:
            limit = min(limit, keep_for * KEEP_HINT_SHARE)
        connection.idle_until = self._clock() + limit
        if len(self.conns) > self.cap:
            connection.abort()
        else:
            self._hand_on(connection)

    def lost(self, connection: Connection) -> None:
        self.conns.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._serve_waiters()

    def _hand_on(self, connection: Connection) -> None:
        """Give a free connection to who waits longest, or keep it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if self._retired:
            connection.abort()
            return
        self.idle.append(connection)
        self._on_idle()

    def _serve_waiters(self) -> None:
        """Give free places to those who wait."""
        while self._waiters and self.size < self.cap:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._pending += 1
                waiter.set_result(None)

    # -- ending -----------------------------------------------------------------------------

    def sweep(self) -> bool:
        """Close idle connections past their time; True while some are left."""
        now = self._clock()
        for connection in [c for c in self.idle if now >= c.idle_until]:
            connection.abort()
        return bool(self.idle)

    def retire(self) -> None:
        """Close what is idle, now and from now on.

        Requests that began under an older configuration go on: those under way, and those that
        wait for a connection here or still come for one.
        """
        self._retired = True
        for connection in list(self.idle):
            connection.abort()

    def close(self) -> None:
        """Retire, and fail the calls under way (cause aborted) and those that wait."""
        self._closed = True
        self.retire()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(AttemptFailure(Stage.CONNECTING, Cause.POOL_CLOSED))
        for connection in list(self.conns):
            connection.fail(Cause.ABORTED)
