"""The general loop goes on with what the fast path began."""

import asyncio

from continuum_router.backends.fleet import AttemptResult
from support.fast_rig import FastRig, chat, fast_rig
from support.scripted_backend import answers, breaks_after, in_turn, reply, scripted


def attempts(rig: FastRig, result: AttemptResult) -> int:
    return rig.router.state.dispatch.metrics._attempts[result].value


async def until_answered(rig: FastRig) -> bytes:
    async with asyncio.timeout(3):
        while rig.active:
            await asyncio.sleep(0.005)
    return rig.wire.take()


def at(url: str) -> str:
    """The two backends of the rig at a real address."""
    return f"""
backends:
- {{name: b1, url: "{url}", models: [m]}}
"""


async def test_without_a_kept_connection_the_loop_dials() -> None:
    async with scripted(answers(reply(b'{"a":1}'))) as backend:
        async with fast_rig(kept=False, backends=at(backend.url)) as rig:
            rig.client.data_received(chat())
            assert (rig.active, rig.in_flight) == (1, 1)
            got = await until_answered(rig)
            assert got.startswith(b"HTTP/1.1 200 OK\r\n")
            assert got.endswith(b'\r\n\r\n{"a":1}')
            assert attempts(rig, AttemptResult.OK) == 1
            # From now on there is a connection.
            rig.client.data_received(chat())
            assert (await until_answered(rig)).endswith(b'{"a":1}')
            assert backend.connections == 1
            assert len(backend.requests) == 2
            assert rig.in_flight == 0


async def test_a_kept_connection_that_died_costs_one_fresh_one_and_no_retry() -> None:
    script = in_turn(breaks_after(reply(b"{}")), answers(reply(b"{}")))
    async with scripted(script) as backend:
        async with fast_rig(kept=False, backends=at(backend.url)) as rig:
            rig.client.data_received(chat())
            await until_answered(rig)
            connection = next(iter(rig.router.state.upstream._lanes["b1"].conns), None)
            rig.client.data_received(chat())
            if connection is not None:
                connection.connection_lost(ConnectionResetError())
            assert (await until_answered(rig)).startswith(b"HTTP/1.1 200 ")
            assert attempts(rig, AttemptResult.OK) == 2
            assert attempts(rig, AttemptResult.FAILED) == 0
            assert rig.router.state.dispatch.budget._slots[-1].retries == 0


async def test_a_failure_that_ends_it_is_answered_here() -> None:
    async with scripted(breaks_after()) as backend:
        async with fast_rig(
            "retry: {max_attempts: 2, initial_delay: 1ms}", kept=False, backends=at(backend.url)
        ) as rig:
            rig.client.data_received(chat())
            got = await until_answered(rig)
            assert got.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
            assert b'"code":"upstream_error"' in got
            assert len(backend.requests) == 2
            assert attempts(rig, AttemptResult.FAILED) == 2
            assert rig.in_flight == 0
            # The connection goes on.
            rig.client.data_received(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(0.01)
            assert rig.wire.take().startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_leaves_cancels_it() -> None:
    async with scripted(answers(reply(b"{}"), delay=5.0)) as backend:
        async with fast_rig(kept=False, backends=at(backend.url)) as rig:
            rig.client.data_received(chat())
            async with asyncio.timeout(3):
                while not backend.requests:
                    await asyncio.sleep(0.005)
            rig.client.connection_lost(None)
            await asyncio.sleep(0.01)
            assert (rig.active, rig.in_flight) == (0, 0)
            assert attempts(rig, AttemptResult.CLIENT_GONE) == 1
