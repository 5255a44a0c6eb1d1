"""Clients that leave at each point of the way through a real router, one point at a time."""

import asyncio
import contextlib
import json

import pytest

from support.edge import BODY, CHAT, edge_config, running
from support.scripted_backend import LAST_CHUNK, Peer, chunk, chunked_head, reply, scripted, sse

STAGES = ("accepted", "half head", "half body", "sent", "status", "event", "second event", "idle")


async def _client(port: int, stage: str, moved: asyncio.Event) -> None:
    """Speak up to `stage`, then reset the connection."""
    body = json.dumps({**BODY, "stream": True}).encode()
    wire = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sizes = {"accepted": 0, "half head": 20, "half body": len(wire) - 5}
    writer.write(wire[: sizes.get(stage, len(wire))])
    await writer.drain()
    waits = {
        "status": b"\r\n\r\n",
        "event": b'{"a":1}',
        "second event": b'{"a":2}',
        "idle": b"0\r\n\r\n",
    }
    with contextlib.suppress(asyncio.IncompleteReadError):
        if stage in waits:
            await reader.readuntil(waits[stage])
        elif stage == "sent":
            await moved.wait()
        else:
            await asyncio.sleep(0.02)
    writer.transport.abort()


@pytest.mark.parametrize("stage", STAGES)
async def test_leaving_at(stage: str) -> None:
    moved = asyncio.Event()

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            moved.set()
            if stage == "sent":
                await peer.until_client_leaves()
                return
            await peer.send(chunked_head(), chunk(sse('{"a":1}')), gap=0.01)
            await peer.send(chunk(sse('{"a":2}')), gap=0.01)
            if stage in ("status", "event", "second event"):
                await peer.until_client_leaves()
                return
            await peer.send(LAST_CHUNK)

    async with scripted(script) as backend:
        async with running(edge_config([backend.url])) as edge:
            await _client(edge.port, stage, moved)
            await asyncio.sleep(0.02)
            await edge.settled(1.0)
            assert edge.in_flight() == 0
            connections = dict(edge.router.state.upstream.connections())
            assert connections.get(("b1", "active"), 0) == 0
            left = stage in ("sent", "status", "event", "second event")
            async with asyncio.timeout(1):
                while len(backend.left) < left:
                    await asyncio.sleep(0.005)


async def test_stopping_the_router_in_the_middle_of_everything() -> None:
    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(chunked_head(), *[chunk(sse('{"a":1}'))] * 1000, gap=0.005)

    async def busy(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(reply(b"{}", status="503 X"))

    async with scripted(script) as one, scripted(busy) as two:
        more = "retry: {initial_delay: 2s, jitter: false}"
        async with running(edge_config([one.url, two.url], more)) as edge:
            streams = [asyncio.create_task(edge.stream()) for _ in range(10)]
            await asyncio.sleep(0.2)
            assert edge.in_flight() >= 5
            async with asyncio.timeout(8):
                await edge.router.stop()
            assert edge.in_flight() == 0
            await asyncio.gather(*streams, return_exceptions=True)
