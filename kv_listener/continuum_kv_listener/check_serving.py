"""The part of ``--check`` about the listener itself: its address, certificate and tokens."""

import asyncio
import errno
import os
import ssl
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from continuum_kv_listener.check_table import Outcome
from continuum_kv_listener.config import ListenerConfig
from continuum_kv_listener.server_certificate import CertificateError, ServerCertificate
from continuum_shared.config.addresses import is_loopback
from continuum_shared.config.kinds import ListenAddress

SELF = "(listener)"
DAY = 86_400.0
RENEW_DAYS = 14
_REASONS = {
    errno.EACCES: "no right to use it: ports below 1024 and other users' directories need one",
    errno.EADDRNOTAVAIL: "this machine has no such address: use one of its own, or 0.0.0.0",
    errno.ENOENT: "the socket's directory does not exist: make it",
}


async def try_serving(config: ListenerConfig, seconds: float, wall: float) -> list[Outcome]:
    """Rows about the HTTP side. ``wall`` is the present in Unix seconds."""
    outcomes = [await _try_listen(config, seconds)]
    if config.tls is not None:
        outcomes.append(_try_certificate(config, wall))
    near = bool(config.listen.socket_path) or is_loopback(config.listen.host)
    if config.auth_token_env:
        names = ", ".join(config.auth_token_env)
        note = "asked for by everything but /health"
        outcomes.append(Outcome(source=SELF, what="token", endpoint=names, good=True, note=note))
    elif not near:
        note = "none is asked for: whoever reaches the port may read. Set auth_token_env"
        outcomes.append(Outcome(source=SELF, what="token", endpoint="-", good=None, note=note))
    return outcomes


def _try_certificate(config: ListenerConfig, wall: float) -> Outcome:
    assert config.tls is not None
    path = config.tls.cert
    try:
        expires = ServerCertificate(config.tls).expires
    except CertificateError as error:
        return _row("certificate", path, good=False, note=str(error))
    day = datetime.fromtimestamp(expires, UTC).date().isoformat()
    left = (expires - wall) / DAY
    if left <= 0:
        return _row("certificate", path, good=False, note=f"ended on {day}: renew it")
    soon = ": renew it now" if left < RENEW_DAYS else ""
    return _row("certificate", path, good=True, note=f"good until {day}, {left:.0f} days{soon}")


async def _try_listen(config: ListenerConfig, seconds: float) -> Outcome:
    listen, what = config.listen, "listen"
    try:
        await _bind_once(listen)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            reason = _REASONS.get(error.errno or 0, os.strerror(error.errno or 0).lower())
            return _row(what, str(listen), good=False, note=reason)
        if await _listener_answers(config, seconds):
            note = "in use by a listener that runs already; bound ZMQ endpoints are then its too"
            return _row(what, str(listen), good=None, note=note)
        note = "in use by another program: end it, or choose another port"
        return _row(what, str(listen), good=False, note=note)
    return _row(what, str(listen), good=True)


async def _bind_once(listen: ListenAddress) -> None:
    """Listen and let go at once. Raises OSError."""
    loop = asyncio.get_running_loop()
    if not listen.socket_path:
        server = await loop.create_server(asyncio.Protocol, listen.host, listen.port)
        server.close()
        await server.wait_closed()
        return
    # A socket that a dead process left is taken over at the start; a living one answers.
    path = Path(listen.socket_path)
    with suppress(ConnectionRefusedError, FileNotFoundError):
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        raise OSError(errno.EADDRINUSE, "in use")
    server = await loop.create_unix_server(asyncio.Protocol, path)
    server.close()
    await server.wait_closed()
    with suppress(FileNotFoundError):
        _remove(path)


def _remove(path: Path) -> None:
    path.unlink()


async def _listener_answers(config: ListenerConfig, seconds: float) -> bool:
    """Whether what holds the address is a listener. The certificate is ours and not looked at."""
    listen = config.listen
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    scheme = "http" if config.tls is None else "https"
    if listen.socket_path:
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(listen.socket_path)
        url = f"{scheme}://listener/health"
    else:
        connector = aiohttp.TCPConnector(ssl=tls)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)
        url = f"{scheme}://{ListenAddress(host=host, port=listen.port)}/health"
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            if answer.status != 200 or (answer.content_length or 0) > 1024:
                return False
            body = await answer.json()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return False
    return isinstance(body, dict) and body.get("status") == "ok" and "sources" in body


def wall_clock() -> float:
    """Unix seconds, for the command."""
    return time.time()  # noqa: TID251 - the command's own clock


def _row(what: str, endpoint: str, *, good: bool | None, note: str = "") -> Outcome:
    return Outcome(source=SELF, what=what, endpoint=endpoint, good=good, note=note)
