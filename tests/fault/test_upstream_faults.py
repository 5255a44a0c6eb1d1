"""What real networks and servers do to kept connections (user reports S2, S3, S13)."""

import asyncio
import random

import pytest

from continuum_router.backends.kinds import BackendType
from continuum_router.backends.pool import Backend
from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_shared.config.kinds import BackendUrl
from support.faults import relayed
from support.scripted_backend import (
    Peer,
    Script,
    breaks_after,
    chunk,
    chunked_head,
    hangs,
    reply,
    scripted,
    streams,
)
from support.upstream_calls import counts, pool, request, until


def short_lived(after: float, *, reset: bool, after_line: bool) -> Script:
    """Closes a connection that was idle for `after`; or as soon as the next request line came."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        while True:
            try:
                async with asyncio.timeout(after):
                    if after_line:
                        await peer.reader.readuntil(b"\r\n")
                        break
                    if await peer.request() is None:
                        return
            except TimeoutError:
                break
            except asyncio.IncompleteReadError:
                return
            await peer.send(reply())
        if reset:
            peer.reset()

    return script


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("after_line", [False, True], ids=["idle", "after the request line"])
async def test_a_kept_connection_that_was_closed_costs_one_fresh_retry(reset, after_line):
    """S2: posts spaced around the server's idle limit; no error remains, none is run twice."""
    rng = random.Random(2)
    script = short_lived(0.02, reset=reset, after_line=after_line)
    retries = 0

    async def one(upstream, target) -> None:
        nonlocal retries
        try:
            got = await upstream.send(target, request(), connect_timeout=2)
        except AttemptFailure as failure:
            if not failure.lost_unused:
                raise
            retries += 1
            got = await upstream.send(target, request(), connect_timeout=2, fresh=True)
        with got:
            assert await got.read(10) == b"{}"

    async with scripted(script) as backend, pool() as upstream:
        target = backend.backend()

        async def stream_of_posts() -> None:
            for _ in range(40):
                await one(upstream, target)
                await asyncio.sleep(rng.uniform(0.015, 0.025))

        await asyncio.gather(*[stream_of_posts() for _ in range(10)])
        if not after_line:
            assert len(backend.requests) == 400
    if after_line:
        assert retries > 0


async def test_a_body_that_breaks_is_no_candidate_for_a_retry():
    """S3: after output has come, the failure is a streaming one, whatever the connection was."""
    wire = chunked_head() + chunk(b"1") + chunk(b"2") + chunk(b"3")
    async with scripted(breaks_after(wire, reset=True, gap=0.02)) as backend, pool() as upstream:
        got = await upstream.send(backend.backend(), request(), connect_timeout=2)
        with got, pytest.raises(AttemptFailure) as caught:
            await got.read(100)
    assert caught.value.stage is Stage.STREAMING
    assert not caught.value.lost_unused
    assert len(backend.requests) == 1


async def test_a_wedged_backend_does_not_touch_the_others():
    """S13: one backend takes requests and never answers, another works on."""
    async with (
        scripted(hangs()) as wedged,
        scripted(streams("x")) as well,
        pool() as upstream,
    ):
        stuck = [
            asyncio.create_task(
                upstream.send(wedged.backend("wedged"), request(), connect_timeout=2)
            )
            for _ in range(50)
        ]
        await until(lambda: len(wedged.requests) == 50)
        for _ in range(20):
            with await upstream.send(well.backend("well"), request(), connect_timeout=2) as got:
                assert await got.read(1000) == b"data: x\n\ndata: [DONE]\n\n"
        assert well.connections == 1
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        await until(lambda: len(wedged.left) == 50, within=1)
        assert counts(upstream) == {"active": 0, "idle": 1, "waiting": 0}


WIRE = len(chunked_head(headers=("Content-Type: text/event-stream",)))


@pytest.mark.parametrize(
    ("cut_after", "stage"),
    [(1, Stage.AWAITING_HEAD), (WIRE - 1, Stage.AWAITING_HEAD), (WIRE + 9, Stage.STREAMING)],
)
async def test_a_link_that_is_cut(cut_after, stage):
    async with scripted(streams("a", "b", "c", gap=0.01)) as backend:
        port = int(backend.url.rpartition(":")[2])
        async with relayed("127.0.0.1", port) as relay, pool() as upstream:
            relay.cut_after = cut_after
            target = Backend(name="b", type=BackendType.GENERIC, url=BackendUrl.parse(relay.url))

            async def whole() -> bytes:
                with await upstream.send(target, request(), connect_timeout=2) as got:
                    return await got.read(1000)

            with pytest.raises(AttemptFailure) as caught:
                await whole()
            assert caught.value.stage is stage
            assert caught.value.began
            assert caught.value.cause in {Cause.CLOSED, Cause.CUT, Cause.RESET}
            assert counts(upstream) == {"active": 0, "idle": 0, "waiting": 0}


async def test_a_link_that_refuses_and_recovers():
    async with scripted(streams("a")) as backend:
        port = int(backend.url.rpartition(":")[2])
        async with relayed("127.0.0.1", port) as relay, pool() as upstream:
            target = Backend(name="b", type=BackendType.GENERIC, url=BackendUrl.parse(relay.url))
            relay.refusing = True
            with pytest.raises(AttemptFailure) as caught:
                await upstream.send(target, request(), connect_timeout=2)
            assert not caught.value.began
            relay.refusing = False
            with await upstream.send(target, request(), connect_timeout=2) as got:
                assert await got.read(1000) == b"data: a\n\ndata: [DONE]\n\n"
