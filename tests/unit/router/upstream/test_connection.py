"""One connection, its sink and its owner, against a scripted backend."""

import asyncio
import socket

import pytest

from continuum_router.errors import Cause
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.dial import dial
from continuum_router.upstream.response_head import HeadReader
from continuum_shared.config.kinds import BackendUrl
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    ScriptedBackend,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    hangs,
    reply,
    scripted,
)
from support.upstream_calls import RecordingOwner, RecordingSink, request, until


async def connect(backend: ScriptedBackend) -> tuple[Connection, RecordingOwner]:
    deadline = asyncio.get_running_loop().time() + 2
    connection = await dial(
        BackendUrl.parse(backend.url), HeadReader(), tls=None, deadline=deadline
    )
    owner = RecordingOwner()
    connection.owner = owner
    return connection, owner


async def call(backend: ScriptedBackend, *, method: str = "POST", wire: bool = False):
    """One call on a new connection; sink and owner once it has ended."""
    connection, owner = await connect(backend)
    sink = RecordingSink(wire=wire)
    connection.start(request(method=method), sink)
    async with asyncio.timeout(5):
        await sink.finished.wait()
    connection.abort()
    return sink, owner


ONE = chunk(b"hello")
GOOD = {
    "length": ("POST", [reply(b"hello")], b"hello", ["released", "lost"], 5),
    "length 0": ("POST", [reply(b"")], b"", ["released", "lost"], 0),
    "chunked": ("POST", [chunked_head(), ONE, LAST_CHUNK], b"hello", ["released", "lost"], None),
    "until close": (
        "POST",
        [b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"],
        b"hello",
        ["lost"],
        None,
    ),
    "close asked for": (
        "POST",
        [reply(b"hello", headers=["Connection: close"])],
        b"hello",
        ["lost"],
        5,
    ),
    "HEAD": (
        "HEAD",
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"],
        b"",
        ["released", "lost"],
        0,
    ),
    "204": ("POST", [b"HTTP/1.1 204 No Content\r\n\r\n"], b"", ["released", "lost"], 0),
    "304": (
        "POST",
        [b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"],
        b"",
        ["released", "lost"],
        0,
    ),
    "interim heads": (
        "POST",
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", reply(b"hi")],
        b"hi",
        ["released", "lost"],
        2,
    ),
    "bytes after the answer": ("POST", [reply(b"hello") + b"X"], b"hello", ["lost"], 5),
    "the peer's idle limit": (
        "POST",
        [reply(b"hi", headers=["Keep-Alive: timeout=3"])],
        b"hi",
        ["released 3", "lost"],
        2,
    ),
}


@pytest.mark.parametrize("name", GOOD)
async def test_answers(name):
    method, pieces, body, owner_log, length = GOOD[name]
    async with scripted(answers(*pieces, times=1)) as backend:
        sink, owner = await call(backend, method=method)
    status = {"204": 204, "304": 304}.get(name, 200)
    middle = ["body"] if body else []
    assert sink.log == ["sent", ("head", status, length), *middle, "end"]
    assert sink.body == body
    assert owner.log == owner_log


@pytest.mark.parametrize("name", GOOD)
async def test_answers_byte_by_byte(name):
    method, pieces, body, _, _ = GOOD[name]
    if name == "bytes after the answer":
        pieces = pieces[:1]
    wire = b"".join(pieces)
    async with scripted(answers(*[wire[i : i + 1] for i in range(len(wire))], gap=0, times=1)) as b:
        sink, _ = await call(b, method=method)
    assert sink.failure is None
    assert sink.body == body


async def test_a_sink_may_have_whole_event_chunks_as_they_came():
    event = chunk(b"data: 1\n\n")
    pieces = [chunked_head(), event, event[:4], event[4:], event + event, event + LAST_CHUNK]
    async with scripted(answers(*pieces, gap=0.02)) as backend:
        sink, owner = await call(backend, wire=True)
    assert [entry for entry in sink.log if entry[0] == "chunks"] == [
        ("chunks", event, 9),
        ("chunks", event + event, 18),
    ]
    assert sink.body == b"data: 1\n\n" * 2
    assert sink.log[-1] == "end"
    assert owner.log == ["released", "lost"]


async def test_calls_follow_each_other_on_one_connection():
    async with scripted(answers(reply(b"hello"))) as backend:
        connection, owner = await connect(backend)
        for number in range(3):
            assert connection.usable
            sink = RecordingSink()
            connection.start(request(b"%d" % number), sink)
            assert not connection.usable
            assert connection.reused == (number > 0)
            await sink.finished.wait()
            assert sink.body == b"hello"
        connection.abort()
    assert backend.connections == 1
    assert [seen.body for seen in backend.requests] == [b"0", b"1", b"2"]
    assert owner.log == ["released"] * 3 + ["lost"]


async def test_a_second_call_at_the_same_time_is_a_defect():
    async with scripted(hangs()) as backend:
        connection, _ = await connect(backend)
        connection.start(request(), RecordingSink())
        with pytest.raises(RuntimeError):
            connection.start(request(), RecordingSink())
        connection.abort()


BAD = {
    "closed before a byte": ([], False, ("awaiting_head", "closed"), False),
    "reset before a byte": ([], True, ("awaiting_head", "reset"), False),
    "closed in the head": ([b"HTTP/1.1 200 OK\r\nCon"], False, ("awaiting_head", "closed"), True),
    "closed after an interim head": (
        [b"HTTP/1.1 100 Continue\r\n\r\n"],
        False,
        ("awaiting_head", "closed"),
        True,
    ),
    "no HTTP": ([b"hello\r\n\r\n"], False, ("awaiting_head", "bad_head"), True),
    "switching protocols": (
        [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
        False,
        ("awaiting_head", "bad_head"),
        True,
    ),
    "head too large": (
        [b"HTTP/1.1 200 OK\r\nA: ", b"x" * 70_000],
        False,
        ("awaiting_head", "head_too_large"),
        True,
    ),
    "endless interim heads": (
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 2000],
        False,
        ("awaiting_head", "head_too_large"),
        True,
    ),
    "short body": ([reply(b"hello")[:-1]], False, ("streaming", "cut"), True),
    "reset in the body": ([reply(b"hello")[:-1]], True, ("streaming", "reset"), True),
    "cut in a chunk": ([chunked_head(), ONE[:-3]], False, ("streaming", "cut"), True),
    "no last chunk": ([chunked_head(), ONE], False, ("streaming", "cut"), True),
    "broken chunk": ([chunked_head(), ONE, b"zz\r\n"], False, ("streaming", "bad_framing"), True),
}


@pytest.mark.parametrize("name", BAD)
async def test_failures(name):
    pieces, reset, where, began = BAD[name]
    # The pause lets a reset arrive after the bytes, not in their stead.
    async with scripted(breaks_after(*pieces, reset=reset, gap=0.02)) as backend:
        sink, owner = await call(backend)
    assert sink.log[-1] == ("failed", *where)
    assert sink.failure is not None
    assert (sink.failure.began, sink.failure.reused) == (began, False)
    assert owner.log == ["lost"]


async def test_what_came_before_a_broken_chunk_is_delivered():
    async with scripted(answers(chunked_head() + ONE + b"zz\r\n")) as backend:
        sink, _ = await call(backend)
    assert sink.body == b"hello"
    assert sink.log[-1] == ("failed", "streaming", "bad_framing")


async def test_a_kept_connection_that_dies_unused_says_so():
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(b"1"))
        await peer.request()
        peer.reset()

    async with scripted(script) as backend:
        connection, owner = await connect(backend)
        first, second = RecordingSink(), RecordingSink()
        connection.start(request(), first)
        await first.finished.wait()
        connection.start(request(), second)
        await second.finished.wait()
    assert second.failure is not None
    assert second.failure.lost_unused
    assert owner.log == ["released", "lost"]


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
async def test_an_idle_connection_notices_its_end(reset):
    async with scripted(breaks_after(reply(b"1"), reset=reset, gap=0)) as backend:
        connection, owner = await connect(backend)
        sink = RecordingSink()
        connection.start(request(), sink)
        await sink.finished.wait()
        await until(lambda: owner.log == ["released", "lost"])
        assert not connection.usable
        late = RecordingSink()
        connection.start(request(), late)
    assert late.log == [("failed", "sending", "closed")]
    assert late.failure is not None
    assert late.failure.lost_unused


async def test_bytes_that_belong_to_no_call_end_the_connection():
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(b"1"), b"HTTP/1.1 408 Request Timeout\r\n\r\n", gap=0.01)
        await peer.until_client_leaves()

    async with scripted(script) as backend:
        connection, owner = await connect(backend)
        sink = RecordingSink()
        connection.start(request(), sink)
        await sink.finished.wait()
        await until(lambda: not connection.usable)
        await until(lambda: len(backend.left) == 1)
    assert owner.log == ["released", "lost"]


async def test_abort_is_silent_and_reaches_the_backend():
    async with scripted(hangs(chunked_head(), ONE)) as backend:
        connection, owner = await connect(backend)
        sink = RecordingSink()
        connection.start(request(), sink)
        await until(lambda: sink.body == b"hello")
        connection.abort()
        connection.abort()
        await until(lambda: len(backend.left) == 1)
    assert sink.log == ["sent", ("head", 200, None), "body"]
    assert owner.log == ["lost"]


async def test_a_sink_may_abort_from_within():
    class Fickle(RecordingSink):
        def on_head(self, facts, length):
            super().on_head(facts, length)
            connection.abort()

    async with scripted(answers(reply(b"hello")[:-1], b"o", gap=0.02)) as backend:
        connection, owner = await connect(backend)
        sink = Fickle()
        connection.start(request(), sink)
        await until(lambda: owner.log == ["lost"])
        await asyncio.sleep(0)
    assert sink.log == ["sent", ("head", 200, 5)]


async def test_fail_tells_the_sink():
    async with scripted(hangs()) as backend:
        connection, owner = await connect(backend)
        sink = RecordingSink()
        connection.start(request(), sink)
        connection.fail(Cause.ABORTED)
    assert sink.log == ["sent", ("failed", "awaiting_head", "aborted")]
    assert owner.log == ["lost"]


async def test_an_answer_before_the_request_is_sent_counts_but_ends_the_connection():
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(reply(b"too large", status="413 Content Too Large"))
        await asyncio.sleep(5)

    big = request(b"x" * 16_000_000)
    async with scripted(script) as backend:
        connection, owner = await connect(backend)
        sink = RecordingSink()
        connection.start(big, sink)
        assert sink.log == []
        await sink.finished.wait()
    assert sink.log == [("head", 413, 9), "body", "end"]
    assert owner.log == ["lost"]


async def test_sent_is_told_when_the_last_byte_has_left():
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await gate.wait()
        assert await peer.request() is not None
        await peer.send(reply(b"ok"))

    async with scripted(script) as backend:
        connection, _ = await connect(backend)
        sink = RecordingSink()
        connection.start(request(b"x" * 16_000_000), sink)
        await asyncio.sleep(0.05)
        assert sink.log == []
        gate.set()
        await sink.finished.wait()
        connection.abort()
    assert sink.log == ["sent", ("head", 200, 2), "body", "end"]
    assert len(backend.requests[0].body) == 16_000_000


async def test_a_paused_connection_reads_no_further_and_is_whole_after_resuming():
    total = 8_000_000

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(b"y" * total))

    async with scripted(script) as backend:
        connection, owner = await connect(backend)
        sink = RecordingSink()
        connection.start(request(), sink)
        await until(lambda: bool(sink.body))
        connection.pause()
        connection.pause()
        await asyncio.sleep(0.05)
        held = len(sink.body)
        await asyncio.sleep(0.05)
        assert len(sink.body) == held < total
        connection.resume()
        await sink.finished.wait()
        assert len(sink.body) == total
        connection.abort()
    assert owner.log == ["released", "lost"]


async def test_nagle_is_off():
    async with scripted(hangs()) as backend:
        connection, _ = await connect(backend)
        transport = connection._transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        connection.abort()
