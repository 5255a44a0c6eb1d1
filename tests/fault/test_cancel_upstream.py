"""Cancelling a call at each await that holds a socket or a place: nothing stays behind."""

import asyncio
import random

import pytest

from continuum_router.backends.kinds import BackendType
from continuum_router.backends.pool import Backend
from continuum_shared.config.kinds import BackendUrl
from support.faults import deaf_port
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    answers,
    chunk,
    chunked_head,
    hangs,
    reply,
    scripted,
)
from support.upstream_calls import counts, pool, request, until

NOTHING = {"active": 0, "idle": 0, "waiting": 0}


async def whole(upstream, backend, body: bytes = b"{}") -> bytes:
    with await upstream.send(backend, request(body), connect_timeout=5) as got:
        return await got.read(100_000_000)


async def cancelled(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_while_connecting():
    with deaf_port() as port:
        url = BackendUrl.parse(f"http://127.0.0.1:{port}")
        async with pool() as upstream:
            target = Backend(name="b", type=BackendType.GENERIC, url=url)
            task = asyncio.create_task(whole(upstream, target))
            await until(lambda: counts(upstream)["active"] == 1)
            await cancelled(task)
            assert counts(upstream) == NOTHING


async def test_while_waiting_for_a_place():
    async with scripted(hangs()) as backend, pool() as upstream:
        target = backend.backend(max_connections=1)
        first = asyncio.create_task(whole(upstream, target))
        await until(lambda: len(backend.requests) == 1)
        second = asyncio.create_task(whole(upstream, target))
        await until(lambda: counts(upstream)["waiting"] == 1)
        await cancelled(second)
        assert counts(upstream) == {"active": 1, "idle": 0, "waiting": 0}
        await cancelled(first)
        assert counts(upstream) == NOTHING


async def test_while_sending():
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        await peer.until_client_leaves()

    async with scripted(script) as backend, pool() as upstream:
        task = asyncio.create_task(whole(upstream, backend.backend(), b"x" * 32_000_000))
        await until(lambda: counts(upstream)["active"] == 1 and backend.connections == 1)
        await asyncio.sleep(0.02)
        await cancelled(task)
        assert counts(upstream) == NOTHING
        await until(lambda: len(backend.left) == 1, within=1)


@pytest.mark.parametrize(
    "pieces",
    [[], [b"HTTP/1.1 200 OK\r\nConte"], [chunked_head()], [chunked_head(), chunk(b"x")]],
    ids=["before the head", "in the head", "after the head", "in the body"],
)
async def test_while_waiting_for_the_backend(pieces):
    async with scripted(hangs(*pieces)) as backend, pool() as upstream:
        task = asyncio.create_task(whole(upstream, backend.backend()))
        await until(lambda: len(backend.requests) == 1)
        await asyncio.sleep(0.02)
        cancelled_at = asyncio.get_running_loop().time()
        await cancelled(task)
        assert counts(upstream) == NOTHING
        await until(lambda: len(backend.left) == 1, within=1)
        assert backend.left[0] - cancelled_at < 1


async def test_a_deadline_is_a_cancellation():
    async with scripted(hangs()) as backend, pool() as upstream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await whole(upstream, backend.backend())
        assert counts(upstream) == NOTHING
        await until(lambda: len(backend.left) == 1, within=1)


async def test_many_cancellations_at_random_points():
    """1,000 calls against 20 places, each cancelled at some loop turn or left to end."""
    rng = random.Random(20)
    script = answers(chunked_head(), chunk(b"a" * 50), chunk(b"b" * 50), LAST_CHUNK, gap=0)
    outcomes = {"whole": 0, "cancelled": 0}

    async def one(upstream, target) -> None:
        task = asyncio.create_task(whole(upstream, target))
        for _ in range(rng.randrange(40)):
            await asyncio.sleep(0)
        task.cancel()
        try:
            assert await task == b"a" * 50 + b"b" * 50
            outcomes["whole"] += 1
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1

    async with scripted(script) as backend, pool() as upstream:
        target = backend.backend(max_connections=20)
        for _ in range(20):
            await asyncio.gather(*[one(upstream, target) for _ in range(50)])
            assert counts(upstream)["active"] == 0
            assert counts(upstream)["waiting"] == 0
            assert counts(upstream)["idle"] <= 20
            # The places are all there again.
            found = await asyncio.gather(*[whole(upstream, target) for _ in range(25)])
            assert found == [b"a" * 50 + b"b" * 50] * 25
        await until(lambda: backend.open == counts(upstream)["idle"])
    assert min(outcomes.values()) > 100, outcomes


async def test_close_while_calls_are_on():
    async with scripted(answers(reply(), delay=0.01)) as backend, pool() as upstream:
        tasks = [asyncio.create_task(whole(upstream, backend.backend())) for _ in range(20)]
        await asyncio.sleep(0.005)
        await upstream.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result).__name__ for result in results} == {"AttemptFailure"}
        await until(lambda: backend.open == 0)
