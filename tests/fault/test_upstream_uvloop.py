"""The same upstream behaviour on uvloop, whose transports differ in when they write and pause."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_shared.config.kinds import BackendUrl
from support.faults import dead_port
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    closes_idle,
    hangs,
    reply,
    scripted,
    streams,
)
from support.source_tree import ROOT
from support.upstream_calls import counts, pool, request, until

CERTIFICATE = ROOT / "tests/fixtures/tls/cert.pem"


async def plain_and_stream() -> None:
    async with scripted(answers(reply(b"one"))) as backend, pool() as upstream:
        for _ in range(3):
            with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
                assert await got.read(10) == b"one"
        assert backend.connections == 1
    async with scripted(streams("a", gap=0.005)) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            assert await got.read(100) == b"data: a\n\ndata: [DONE]\n\n"


async def sent_is_told_late_for_a_large_body() -> None:
    gate = asyncio.Event()
    sent: list[float] = []

    async def script(peer: Peer) -> None:
        await gate.wait()
        await peer.request()
        await peer.send(reply(b"ok"))
        await peer.until_client_leaves()

    async with scripted(script) as backend, pool() as upstream:
        call = asyncio.ensure_future(
            upstream.send(
                backend.backend(),
                request(b"x" * 16_000_000),
                connect_timeout=2,
                on_sent=lambda: sent.append(1),
            )
        )
        await asyncio.sleep(0.05)
        assert sent == []
        gate.set()
        with await call as got:
            assert await got.read(10) == b"ok"
        assert sent == [1]
        assert counts(upstream)["idle"] == 1


async def slow_reader() -> None:
    wire = [chunked_head(), *[chunk(b"z" * 60_000)] * 100, LAST_CHUNK]
    async with scripted(answers(*wire)) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            await asyncio.sleep(0.05)
            sizes = [len(piece) async for piece in got.chunks()]
    assert sum(sizes) == 6_000_000
    assert max(sizes) <= 1024 * 1024


async def cancel_reaches_the_backend() -> None:
    async with scripted(hangs(chunked_head(), chunk(b"x"))) as backend, pool() as upstream:
        got = await upstream.send(backend.backend(), request(), connect_timeout=2)
        reading = asyncio.ensure_future(got.read(10))
        await asyncio.sleep(0.02)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert counts(upstream)["active"] == 0
        await until(lambda: len(backend.left) == 1, within=1)


async def breaks_are_named() -> None:
    for reset, cause in ((False, Cause.CUT), (True, Cause.RESET)):
        script = breaks_after(chunked_head() + chunk(b"1"), reset=reset, gap=0.02)
        async with scripted(script) as backend, pool() as upstream:
            got = await upstream.send(backend.backend(), request(), connect_timeout=2)
            with got, pytest.raises(AttemptFailure) as caught:
                await got.read(10)
        assert (caught.value.stage, caught.value.cause) == (Stage.STREAMING, cause)


async def idle_end_is_noticed() -> None:
    async with scripted(closes_idle(0.02, reply())) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2):
            await until(lambda: counts(upstream)["idle"] == 1)
        await until(lambda: counts(upstream)["idle"] == 0)


async def tls() -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    big = b"k" * 3_000_000
    async with (
        scripted(answers(reply(big)), tls=serving) as backend,
        pool(tls=lambda _: trusting) as upstream,
    ):
        for _ in range(2):
            with await upstream.send(backend.backend(), request(big), connect_timeout=2) as got:
                assert await got.read(len(big)) == big
        assert backend.connections == 1


async def by_name() -> None:
    """The socket comes from the race of addresses; plain, with TLS, and with nobody there."""
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    for server in (None, serving):
        async with (
            scripted(answers(reply(b"one")), tls=server) as backend,
            pool(tls=lambda _: trusting) as upstream,
        ):
            url = BackendUrl.parse(backend.url.replace("127.0.0.1", "localhost"))
            with await upstream.send(backend.backend(url=url), request(), connect_timeout=2) as got:
                assert await got.read(10) == b"one"
    with dead_port() as port:
        url = BackendUrl.parse(f"http://localhost:{port}")
        async with pool() as upstream:
            with pytest.raises(AttemptFailure) as caught:
                await upstream.send(backend.backend(url=url), request(), connect_timeout=2)
    assert (caught.value.stage, caught.value.cause) == (Stage.CONNECTING, Cause.REFUSED)


@pytest.mark.parametrize(
    "scenario",
    [
        plain_and_stream,
        sent_is_told_late_for_a_large_body,
        slow_reader,
        cancel_reaches_the_backend,
        breaks_are_named,
        idle_end_is_noticed,
        tls,
        by_name,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_on_uvloop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
