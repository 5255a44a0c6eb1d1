"""Connections are warm before the first client, and a silent backend holds nobody up (S2)."""

import asyncio
import time

from continuum_router.upstream.pool import UpstreamPool
from continuum_router.upstream.prewarm import MAX_BODY, prewarm
from continuum_shared.config.kinds import Secret
from support.scripted_backend import Peer, scripted


async def ok(peer: Peer) -> None:
    while await peer.request() is not None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def test_the_connection_stays_for_the_first_request() -> None:
    pool = UpstreamPool(clock=time.monotonic)
    async with scripted(ok) as server:
        backend = server.backend(api_key=Secret("k"))
        assert await prewarm([backend], pool, 2.0) == 1
        assert dict(pool.connections())["b1", "idle"] == 1
        await pool.close()
    assert server.requests[0].line == "GET /health HTTP/1.1"
    assert server.requests[0].header("authorization") == "Bearer k"


async def test_silent_and_dead_and_endless_ones_cost_their_own_connection_only() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.until_client_leaves()

    async def endless(peer: Peer) -> None:
        await peer.request()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY * 2)
        await peer.send(head + b"x" * MAX_BODY * 2)
        await peer.until_client_leaves()

    pool = UpstreamPool(clock=time.monotonic)
    async with scripted(ok) as one, scripted(silent) as two, scripted(endless) as three:
        backends = [
            one.backend("a"),
            two.backend("b"),
            three.backend("c"),
            two.backend("d", enabled=False),
        ]
        async with asyncio.timeout(2):
            assert await prewarm(backends, pool, 0.2) == 1
        assert [seen.line for seen in two.requests] == ["GET /health HTTP/1.1"]
        await pool.close()
