"""The awaitable form of an answer."""

import asyncio

import pytest

from continuum_router.backends.exchange import BodyState, UpstreamReply
from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.reply import HIGH_WATER, QueuedReply
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    hangs,
    reply,
    scripted,
    streams,
)
from support.upstream_calls import RecordingSink, counts, pool, request, until


async def test_head_and_body_of_a_plain_answer():
    wire = reply(b'{"a":1}', status="429 Too Many Requests", headers=["Retry-After: 7"])
    async with scripted(answers(wire)) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            assert (got.status, got.head.reason) == (429, "Too Many Requests")
            assert got.headers == (("Retry-After", "7"),)
            assert got.head.header("retry-after") == "7"
            assert got.head.body_length == 7
            assert not got.reused
            assert await got.read(7) == b'{"a":1}'
            assert got.state is BodyState.COMPLETE


async def test_chunks_come_as_they_arrive():
    async with scripted(streams("a", "b", gap=0.02)) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            assert got.head.body_length is None
            assert got.state is BodyState.OPEN
            chunks = [piece async for piece in got.chunks()]
            assert got.state is BodyState.COMPLETE
    assert chunks == [b"data: a\n\n", b"data: b\n\n", b"data: [DONE]\n\n"]


async def test_what_waits_is_joined_and_iteration_goes_on_where_it_stopped():
    wire = chunked_head() + chunk(b"ab") + chunk(b"cd")
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(wire)
        await gate.wait()
        await peer.send(chunk(b"ef") + LAST_CHUNK)

    async with scripted(script) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            async for piece in got.chunks():
                assert piece == b"abcd"
                break
            assert got.ready() == b""
            gate.set()
            assert [piece async for piece in got.chunks()] == [b"ef"]
            assert got.ready() is None


async def test_korean_text_byte_by_byte_is_identical():
    text = "안녕하세요 🙂 世界".encode() * 3
    wire = chunked_head() + b"".join(chunk(text[i : i + 1]) for i in range(len(text))) + LAST_CHUNK
    pieces = [wire[i : i + 1] for i in range(len(wire))]
    async with scripted(answers(*pieces, gap=0)) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            assert await got.read(1000) == text


async def test_a_break_is_raised_after_everything_that_came():
    wire = chunked_head() + chunk(b"one") + chunk(b"two")
    async with scripted(breaks_after(wire)) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            assert await anext(got.chunks()) == b"onetwo"
            with pytest.raises(AttemptFailure) as caught:
                await anext(got.chunks())
            assert got.state is BodyState.FAILED
    assert (caught.value.stage, caught.value.cause) == (Stage.STREAMING, Cause.CUT)


@pytest.mark.parametrize(
    "wire", [reply(b"x" * 11), chunked_head() + chunk(b"x" * 11)], ids=["length", "chunked"]
)
async def test_a_body_over_the_limit_is_not_read(wire):
    async with scripted(hangs(wire)) as backend, pool() as upstream:
        got = await upstream.send(backend.backend(), request(), connect_timeout=2)
        with pytest.raises(ValueError, match="longer than allowed"):
            await got.read(10)
        assert got.state is BodyState.ABORTED
        await until(lambda: counts(upstream)["active"] == 0)


async def test_leaving_the_block_ends_the_call():
    async with scripted(hangs(chunked_head(), chunk(b"x"))) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            assert counts(upstream) == {"active": 1, "idle": 0, "waiting": 0}
        assert got.state is BodyState.ABORTED
        assert counts(upstream) == {"active": 0, "idle": 0, "waiting": 0}
        await until(lambda: len(backend.left) == 1)
        with pytest.raises(AttemptFailure) as caught:
            got.ready()
        assert caught.value.cause is Cause.ABORTED


async def test_a_complete_body_that_nobody_read_gives_the_connection_back():
    async with scripted(answers(reply(b"x" * 100))) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2):
            await until(lambda: counts(upstream)["idle"] == 1)
        assert counts(upstream)["idle"] == 1
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            assert got.reused
    assert backend.connections == 1


async def test_an_abort_after_the_end_does_not_touch_the_next_call():
    async with scripted(answers(reply(b"x"))) as backend, pool() as upstream:
        first = await upstream.send(backend.backend(), request(), connect_timeout=2)
        await until(lambda: counts(upstream)["idle"] == 1)
        second = await upstream.send(backend.backend(), request(), connect_timeout=2)
        first.abort()
        assert await second.read(10) == b"x"
        assert second.reused


async def test_abort_wakes_a_reader():
    async with scripted(hangs(chunked_head())) as backend, pool() as upstream:
        got = await upstream.send(backend.backend(), request(), connect_timeout=2)
        reading = asyncio.create_task(got.read(10))
        await asyncio.sleep(0)
        got.abort()
        with pytest.raises(AttemptFailure) as caught:
            await reading
        assert (caught.value.stage, caught.value.cause) == (Stage.STREAMING, Cause.ABORTED)


async def test_a_slow_reader_slows_the_backend_and_loses_nothing():
    total = 12_000_000
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(chunked_head())
        piece = b"z" * 60_000
        for _ in range(total // len(piece)):
            await peer.send(chunk(piece))
            sent += len(piece)
        await peer.send(LAST_CHUNK)

    async with scripted(script) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            await until(lambda: sent > HIGH_WATER)
            await asyncio.sleep(0.1)
            assert sent < total
            size = 0
            largest = 0
            async for piece in got.chunks():
                size += len(piece)
                largest = max(largest, len(piece))
    assert size == total
    # One read beyond the mark at most; a read of asyncio is up to 256 KiB.
    assert largest <= HIGH_WATER + 256 * 1024


async def test_one_reader_at_a_time():
    async with scripted(hangs(chunked_head())) as backend, pool() as upstream:
        with await upstream.send(backend.backend(), request(), connect_timeout=2) as got:
            reading = asyncio.create_task(got.read(10))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError):
                await got.read(10)
        with pytest.raises(AttemptFailure):
            await reading


async def test_the_shape_is_the_one_the_edge_knows():
    async with scripted(answers(reply())) as backend, pool() as upstream:
        got: UpstreamReply = await upstream.send(backend.backend(), request(), connect_timeout=2)
        with got as same:
            assert same is got


async def test_an_answer_whose_start_another_sink_has_heard():
    pieces = [chunked_head(), chunk(b"one"), chunk(b"two"), LAST_CHUNK]
    async with scripted(answers(*pieces, gap=0.02)) as backend, pool() as upstream:
        sink = RecordingSink()
        lane = upstream._lane(backend.backend())
        connection = await lane.get(connect_timeout=2, fresh=True, tls=None)
        connection.start(request(), sink)
        await until(lambda: sink.body == b"one")
        assert sink.facts is not None
        got = QueuedReply.take_over(connection, sink.facts, None, [b"one"], reused=True)
        assert (got.status, got.reused, got.state) == (200, True, BodyState.OPEN)
        assert await got.read(100) == b"onetwo"
        assert sink.body == b"one"
        assert connection.usable
        connection.abort()


async def test_one_that_has_ended_already():
    async with scripted(answers(reply(b"{}"))) as backend, pool() as upstream:
        sink = RecordingSink()
        lane = upstream._lane(backend.backend())
        connection = await lane.get(connect_timeout=2, fresh=True, tls=None)
        connection.start(request(), sink)
        await sink.finished.wait()
        connection.abort()
    assert sink.facts is not None
    whole = QueuedReply.take_over(None, sink.facts, 2, [b"{}"], reused=False)
    assert await whole.read(100) == b"{}"
    cut = QueuedReply.take_over(None, sink.facts, 2, [b"{"], reused=False)
    cut.on_failure(AttemptFailure(Stage.STREAMING, Cause.CUT))
    with pytest.raises(AttemptFailure):
        await cut.read(100)
