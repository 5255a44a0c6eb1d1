"""Clients that leave: the backend is told within a second, and nothing stays counted (R2, S1)."""

import asyncio
import contextlib
import json
import random

import pytest

from support.edge import BODY, CHAT, Edge, edge_config, running
from support.faults import deaf_port
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    chunk,
    chunked_head,
    hangs,
    reply,
    scripted,
    sse,
)


def _request(stream: bool) -> bytes:
    body = json.dumps({**BODY, "stream": stream}).encode()
    return f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _leave_after(edge: Edge, data: bytes, seconds: float, *, reset: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    writer.write(data)
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    if reset:
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answered", ["nothing", "head", "event"])
async def test_the_backend_is_left_within_a_second(stream: bool, answered: str) -> None:
    pieces = {
        "nothing": (),
        "head": (chunked_head(),),
        "event": (chunked_head(), chunk(sse('{"a":1}'))),
    }[answered]
    async with scripted(hangs(*pieces)) as backend, running(edge_config([backend.url])) as edge:
        await _leave_after(edge, _request(stream), 0.1, reset=False)
        left_at = asyncio.get_running_loop().time()
        await edge.settled()
        async with asyncio.timeout(1):
            while not backend.left:
                await asyncio.sleep(0.005)
        assert backend.left[0] - left_at < 1.0
        assert edge.in_flight() == 0
        name = "continuum_requests_total"
        labels = {"endpoint": "chat_completions", "status_class": "client_cancelled"}
        assert edge.sample(name, **labels) == 1
        assert edge.sample("continuum_upstream_attempts_total", result="client_gone") == 1
        assert edge.router.state.dispatch.fleet.success_rate("b1") == 1.0


async def test_leaving_while_the_backend_is_being_dialled() -> None:
    with deaf_port() as port:
        async with running(edge_config([f"http://127.0.0.1:{port}"])) as edge:
            await _leave_after(edge, _request(False), 0.1, reset=True)
            await edge.settled(1.0)
            assert edge.in_flight() == 0


async def test_leaving_inside_the_own_body() -> None:
    async with scripted(hangs()) as backend, running(edge_config([backend.url])) as edge:
        await _leave_after(edge, _request(False)[:-5], 0.05, reset=True)
        await edge.settled(1.0)
        assert edge.in_flight() == 0
    assert backend.requests == []


async def test_leaving_while_a_retry_waits() -> None:
    async def busy(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(reply(b"{}", status="503 X"))

    async with scripted(busy) as backend:
        more = "retry: {initial_delay: 5s, jitter: false}"
        async with running(edge_config([backend.url], more)) as edge:
            await _leave_after(edge, _request(False), 0.1, reset=False)
            await edge.settled(1.0)
            assert edge.in_flight() == 0
    assert len(backend.requests) == 1


async def test_a_thousand_aborts_at_random_points_leave_nothing_behind() -> None:
    rng = random.Random(20240607)
    finished = 0

    async def script(peer: Peer) -> None:
        nonlocal finished
        while await peer.request() is not None:
            await asyncio.sleep(rng.random() * 0.02)
            await peer.send(chunked_head())
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(rng.random() * 0.01)
                await peer.send(chunk(sse('{"a":1}')))
            if rng.random() < 0.3:
                await peer.until_client_leaves()
                return
            await peer.send(LAST_CHUNK)
            finished += 1

    async with scripted(script) as one, scripted(script) as two:
        more = "selection_strategy: PrefixAwareHash\nprefix_routing: {enabled: true}"
        async with running(edge_config([one.url, two.url], more)) as edge:
            room = asyncio.Semaphore(40)

            async def client() -> None:
                async with room:
                    data = _request(rng.random() < 0.7)
                    cut = rng.randrange(20, len(data)) if rng.random() < 0.1 else len(data)
                    await _leave_after(
                        edge, data[:cut], rng.random() * 0.08, reset=rng.random() < 0.5
                    )

            await asyncio.gather(*(client() for _ in range(1000)))
            await edge.settled()
            assert edge.in_flight() == 0
            fleet = edge.router.state.dispatch.fleet
            assert dict(fleet.loads) == {"b1": 0, "b2": 0}
            assert dict(fleet.by_prefix) == {"b1": 0, "b2": 0}
            assert edge.sample("continuum_requests_active") == 0
            async with asyncio.timeout(1):
                while any(
                    count
                    for (_, state), count in edge.router.state.upstream.connections()
                    if state != "idle"
                ):
                    await asyncio.sleep(0.01)
            idle = sum(count for (_, state), count in edge.router.state.upstream.connections())
            async with asyncio.timeout(1):
                while one.open + two.open > idle:
                    await asyncio.sleep(0.01)
            ended = sum(
                edge.sample("continuum_requests_total", endpoint=endpoint, status_class=kind)
                for endpoint in ("chat_completions", "other")
                for kind in ("2xx", "4xx", "5xx", "client_cancelled")
            )
            assert ended <= 1000
            results = {
                name: edge.sample("continuum_upstream_attempts_total", result=name)
                for name in ("ok", "failed", "client_gone")
            }
            assert results["failed"] == 0
            assert results["client_gone"] > 100


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ahead", ["many requests", "a long body"])
async def test_leaving_with_more_sent_ahead_than_is_read(stream: bool, ahead: str) -> None:
    follow = {
        "many requests": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 1000,
        "a long body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n"
        + b"x" * 1_500_000,
    }[ahead]
    async with scripted(hangs()) as backend, running(edge_config([backend.url])) as edge:
        await _leave_after(edge, _request(stream) + follow, 0.2, reset=False)
        left_at = asyncio.get_running_loop().time()
        await edge.settled()
        async with asyncio.timeout(1):
            while not backend.left:
                await asyncio.sleep(0.005)
        assert backend.left[0] - left_at < 1.0
        assert edge.in_flight() == 0
