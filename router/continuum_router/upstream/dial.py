"""Opens a connection to a backend: TCP, TLS or a unix socket; names what went wrong."""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence

import aiohappyeyeballs

from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.response_head import HeadReader
from continuum_shared.config.kinds import BackendUrl

HEAD_START = 0.25
"""Seconds that one address of a name is tried before the next one joins (RFC 8305)."""

AddressInfo = tuple[
    int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]
]
"""One row of getaddrinfo."""

Resolve = Callable[[str, int], Awaitable[Sequence[AddressInfo]]]
"""Host and port → addresses, the preferred one first. Raises OSError."""


class _Nobody:
    """Owner of a connection that nobody has taken over yet."""

    def released(self, connection: Connection, keep_for: float | None) -> None:
        """Nothing to give back to."""

    def lost(self, connection: Connection) -> None:
        """Nothing to account for: whoever dialled looks at `usable`."""


def default_tls() -> ssl.SSLContext:
    """The system's trust store, host names checked, HTTP/1.1 only. Reads files: make it once."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def dial(
    url: BackendUrl,
    heads: HeadReader,
    *,
    tls: ssl.SSLContext | None,
    deadline: float,
    server_name: str | None = None,
    resolve: Resolve | None = None,
) -> Connection:
    """Connect until `deadline` (the loop's clock). `tls` is needed for https.

    `server_name` is the name that the certificate must have, when it is not the URL's host.

    Raises AttemptFailure with stage connecting. A host name is resolved anew each time, by the
    system unless `resolve` is given; its addresses race, families in turn, each with a head start
    before the next, so that a family which leads nowhere costs a moment and not the deadline.
    """
    loop = asyncio.get_running_loop()
    name = (server_name or url.host) if tls is not None else None

    def make() -> Connection:
        return Connection(_Nobody(), heads)

    try:
        async with asyncio.timeout_at(deadline):
            if url.socket_path:
                _, connection = await loop.create_unix_connection(make, url.socket_path)
            elif _is_address(url.host):
                _, connection = await loop.create_connection(
                    make, url.host, url.port, ssl=tls, server_hostname=name
                )
            else:
                sock = await _first_of(await (resolve or _by_system)(url.host, url.port))
                _, connection = await loop.create_connection(
                    make, sock=sock, ssl=tls, server_hostname=name
                )
    except OSError as error:
        cause, detail = _cause_of(error)
        raise AttemptFailure(Stage.CONNECTING, cause, detail=detail) from error
    if not connection.usable:
        raise AttemptFailure(Stage.CONNECTING, Cause.CLOSED)
    return connection


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def _by_system(host: str, port: int) -> Sequence[AddressInfo]:
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _first_of(addresses: Sequence[AddressInfo]) -> socket.socket:
    """A socket that is connected to the first address which answers."""
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "no address")
    return await aiohappyeyeballs.start_connection(
        addresses,
        happy_eyeballs_delay=HEAD_START,
    )


def _cause_of(error: OSError) -> tuple[Cause, str]:
    """Name a connect error. The detail is an errno's symbol, never the error's own text."""
    if isinstance(error, TimeoutError):
        return Cause.CONNECT_TIMEOUT, ""
    if isinstance(error, ssl.SSLError):
        return Cause.TLS, error.reason or ""
    if isinstance(error, socket.gaierror):
        return Cause.DNS, ""
    # The errors of several addresses may come joined into one without an errno.
    if error.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return Cause.REFUSED, "ECONNREFUSED"
    symbol = errno.errorcode.get(error.errno or 0, "")
    if isinstance(error, ConnectionRefusedError):
        return Cause.REFUSED, symbol
    if isinstance(error, ConnectionError):
        return Cause.RESET, symbol
    return Cause.UNREACHABLE, symbol
