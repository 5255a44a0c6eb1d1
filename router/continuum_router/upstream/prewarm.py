"""Opens a connection to every backend before the first client comes (S2 "start behaviour")."""

import asyncio
import logging
from collections.abc import Iterable

from continuum_router.backends.credentials import own_headers
from continuum_router.backends.exchange import UpstreamRequest
from continuum_router.backends.kinds import KINDS
from continuum_router.backends.pool import Backend
from continuum_router.errors import AttemptFailure
from continuum_router.upstream.dispatch_state import Transport
from continuum_shared.logs import fields

log = logging.getLogger("continuum_router.prewarm")

MAX_BODY = 64 * 1024


async def prewarm(backends: Iterable[Backend], transport: Transport, timeout: float) -> int:
    """Ask each enabled backend its light health endpoint through the pool that requests use.

    All at once, each for `timeout` seconds at most. Returns how many connections are warm now; a
    backend that does not answer is the probes' business, not an error of the start.
    """
    asked = [backend for backend in backends if backend.enabled]
    done = await asyncio.gather(*(_warm(backend, transport, timeout) for backend in asked))
    return sum(done)


async def _warm(backend: Backend, transport: Transport, timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout):
            reply = await transport.send(backend, _request(backend), connect_timeout=timeout)
            with reply:
                await reply.read(MAX_BODY)
    except (AttemptFailure, TimeoutError, ValueError) as error:
        reason = error.cause.value if isinstance(error, AttemptFailure) else "no_end"
        log.info("Backend not warmed", extra=fields(backend=backend.name, reason=reason))
        return False
    return True


def _request(backend: Backend) -> UpstreamRequest:
    url = backend.url
    lines = [
        f"GET {url.path}{KINDS[backend.type].health_paths[0]} HTTP/1.1",
        f"Host: {url.authority}",
        "Accept-Encoding: identity",
        *(f"{name}: {value}" for name, value in own_headers(backend)),
    ]
    head = "\r\n".join(lines) + "\r\n\r\n"
    return UpstreamRequest(method="GET", head=head.encode("latin-1"), body=b"")
