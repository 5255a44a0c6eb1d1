"""One request on the fast path, from its dispatch to its books."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from continuum_router.api.fast_call import FastCall
from continuum_router.backends.fleet import AttemptResult
from continuum_router.upstream.deadlines import Limit
from support.fast_rig import FastRig, chat, fast_rig
from support.scripted_backend import LAST_CHUNK, chunk, chunked_head, reply, sse

ANSWER = b'{"id":"1","usage":{"prompt_tokens":3}}'
HEAD_LINES = (b"HTTP/1.1 200 OK", b"Content-Type: application/json")


def attempts(rig: FastRig, result: AttemptResult) -> int:
    return rig.router.state.dispatch.metrics._attempts[result].value


async def test_a_plain_answer_is_one_write_each_way() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat())
        wires = [wire for _, wire in rig.backends.values() if wire.pieces]
        assert len(wires[0].pieces) == 1
        head, _, body = rig.sent().partition(b"\r\n\r\n")
        assert body == chat().partition(b"\r\n\r\n")[2]
        assert b"\r\nContent-Length: %d" % len(body) in head
        assert b"\r\nAccept-Encoding: identity" in head
        assert b"Authorization: Bearer sk-1" in head
        backend.data_received(reply(ANSWER))
        assert len(rig.wire.pieces) == 1
        lines, _, body = rig.wire.take().partition(b"\r\n\r\n")
        first, kind, request_id, cache, name, route, length, date = lines.split(b"\r\n")
        assert (first, kind) == HEAD_LINES
        assert request_id.startswith(b"x-continuum-request-id: ")
        assert len(request_id) == len(b"x-continuum-request-id: ") + 32
        assert cache == b"X-Cache: BYPASS"
        assert name in (b"x-continuum-backend: b1", b"x-continuum-backend: b2")
        assert route == b"x-continuum-route: prefix_hash"
        assert length == b"Content-Length: %d" % len(ANSWER)
        assert date.startswith(b"Date: ")
        assert body == ANSWER
        assert (rig.active, rig.in_flight) == (0, 0)
        assert attempts(rig, AttemptResult.OK) == 1


async def test_routing_headers_can_be_off() -> None:
    async with fast_rig() as rig:
        object.__setattr__(rig.router.runtime.current, "routing_headers", False)
        rig.ask(chat()).data_received(reply(ANSWER))
        assert b"x-continuum-backend" not in rig.wire.take()


async def test_a_stream_goes_on_as_it_comes() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=True))
        rig.sent()
        first, second = chunk(sse("1")), chunk(sse("2"))
        backend.data_received(chunked_head())
        assert rig.wire.pieces == []
        backend.data_received(first)
        head, _, body = rig.wire.take().partition(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        assert body == first
        backend.data_received(second * 2)
        assert rig.wire.take() == second * 2
        assert (rig.active, rig.in_flight) == (1, 1)
        backend.data_received(chunk(sse("[DONE]")) + LAST_CHUNK)
        assert rig.wire.take() == chunk(sse("[DONE]")) + LAST_CHUNK
        assert (rig.active, rig.in_flight) == (0, 0)


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with fast_rig() as rig:
        for _ in range(3):
            rig.ask(chat()).data_received(reply(ANSWER))
            rig.sent()
            assert rig.wire.take().endswith(ANSWER)
        assert attempts(rig, AttemptResult.OK) == 3
        assert rig.router._server.requests_count == 0


async def test_a_client_that_leaves_ends_the_call_to_the_backend() -> None:
    for stream, so_far in ((False, b""), (True, chunked_head() + chunk(sse("1")))):
        async with fast_rig() as rig:
            backend = rig.ask(chat(stream=stream))
            if so_far:
                backend.data_received(so_far)
            rig.client.connection_lost(None)
            assert not backend.usable
            assert (rig.active, rig.in_flight) == (0, 0)
            assert attempts(rig, AttemptResult.CLIENT_GONE) == 1


async def test_a_stream_that_breaks_ends_with_an_error_event_and_a_close() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=True))
        backend.data_received(chunked_head() + chunk(sse("1")))
        rig.wire.take()
        backend.eof_received()
        written = rig.wire.take()
        assert b'"code":"upstream_error"' in written
        assert written.endswith(LAST_CHUNK)
        assert rig.wire.closed
        assert (rig.active, rig.in_flight) == (0, 0)
        assert attempts(rig, AttemptResult.FAILED) == 1


async def test_a_slow_client_stops_its_backend_and_is_not_hurried() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=True))
        wire = next(wire for connection, wire in rig.backends.values() if connection is backend)
        backend.data_received(chunked_head() + chunk(sse("1")))
        call = rig.client._call
        assert call is not None
        hurried = call.due
        rig.client.pause_writing()
        assert wire.paused
        assert call.due > hurried
        rig.client.resume_writing()
        assert not wire.paused
        assert call.due <= hurried + 1.0
        backend.data_received(chunk(sse("2")) + LAST_CHUNK)
        assert rig.active == 0


async def test_near_the_end_of_its_time_a_stream_owes_only_that() -> None:
    """A chunk that comes in time is never too late by the wait of the chunk before (E11, E12)."""
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=True))
        call = rig.client._call
        assert isinstance(call, FastCall)
        end, interval = call._end, 30.0
        backend.data_received(chunked_head())
        for left, due, limit in (
            (40.0, end - 40.0 + interval, Limit.CHUNK_INTERVAL),
            (35.0, end - 35.0 + interval, Limit.CHUNK_INTERVAL),
            (20.0, end, Limit.TOTAL),
        ):
            call._way.clock = lambda now=end - left: now  # type: ignore[misc]
            backend.data_received(chunk(sse("1")))
            assert (call.due, call._limit) == (due, limit)


SLOW = {
    "a plain answer": (False, [reply(ANSWER)]),
    "the end of a stream": (True, [chunked_head(), chunk(sse("1")), chunk(sse("2")) + LAST_CHUNK]),
}


@contextlib.asynccontextmanager
async def unread(name: str) -> AsyncIterator[FastRig]:
    """An answer is written in full to a client that stops reading with it."""
    stream, pieces = SLOW[name]
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=stream))
        rig.sent()
        for piece in pieces[:-1]:
            backend.data_received(piece)
        rig.wire.write = lambda data: (  # type: ignore[method-assign]
            rig.wire.pieces.append(bytes(data)),
            rig.client.writing_paused or rig.client.pause_writing(),
        )
        backend.data_received(pieces[-1])
        assert backend.usable
        yield rig


@pytest.mark.parametrize("name", SLOW)
async def test_the_next_request_waits_until_the_client_has_read(name: str) -> None:
    async with unread(name) as rig:
        assert (rig.active, rig.in_flight) == (1, 1)
        rig.client.data_received(chat())
        assert rig.sent() == b""
        rig.client.resume_writing()
        assert attempts(rig, AttemptResult.OK) == 1
        assert rig.sent().endswith(chat().partition(b"\r\n\r\n")[2])
        assert (rig.active, rig.in_flight) == (1, 1)


@pytest.mark.parametrize("name", SLOW)
async def test_a_client_that_never_reads_is_cut_off(name: str) -> None:
    async with unread(name) as rig:
        call = rig.client._call
        assert isinstance(call, FastCall)
        assert call.due == call._end
        call.expire(call.due)
        assert rig.wire.closed
        assert (rig.active, rig.in_flight) == (0, 0)
        assert attempts(rig, AttemptResult.CLIENT_GONE) == 1


@pytest.mark.parametrize("name", SLOW)
async def test_a_client_may_leave_before_it_has_read(name: str) -> None:
    async with unread(name) as rig:
        rig.client.connection_lost(None)
        assert (rig.active, rig.in_flight) == (0, 0)
        assert attempts(rig, AttemptResult.CLIENT_GONE) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_that_passes_before_an_answer_is_a_504(stream: bool) -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=stream))
        call = rig.client._call
        assert call is not None
        call.expire(call.due)
        await asyncio.sleep(0.01)
        assert rig.wire.take().startswith(b"HTTP/1.1 504 ")
        assert not backend.usable
        assert (rig.active, rig.in_flight) == (0, 0)
        assert attempts(rig, AttemptResult.FAILED) == 1


async def test_a_limit_that_passes_in_a_stream_is_its_last_event() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=True))
        backend.data_received(chunked_head() + chunk(sse("1")))
        rig.wire.take()
        call = rig.client._call
        assert call is not None
        call.expire(call.due)
        assert b'"code":"upstream_timeout"' in rig.wire.take()
        assert rig.wire.closed
        assert attempts(rig, AttemptResult.FAILED) == 1


HANDED_OVER = {
    "an error status": (False, [reply(b"{}", status="500 X")], b"HTTP/1.1 500 "),
    "a chunked answer": (
        False,
        [chunked_head(headers=("Content-Type: a/b",)), chunk(b"xy"), LAST_CHUNK],
        b"HTTP/1.1 200 ",
    ),
    "no content": (False, [b"HTTP/1.1 204 No Content\r\n\r\n"], b"HTTP/1.1 204 "),
    "an error event": (
        True,
        [chunked_head() + chunk(b'data: {"error":{"code":422}}\n\n')],
        b"HTTP/1.1 422 ",
    ),
    "json for a stream": (True, [reply(ANSWER)], b"HTTP/1.1 200 "),
    "events for a plain request": (
        False,
        [chunked_head() + chunk(sse("1")) + LAST_CHUNK],
        b"HTTP/1.1 200 ",
    ),
    "a garbage head": (False, [b"NOPE\r\n\r\n"], b"HTTP/1.1 502 "),
}


@pytest.mark.parametrize("name", HANDED_OVER)
async def test_what_is_not_ordinary_goes_on_in_the_loop(name: str) -> None:
    stream, pieces, start = HANDED_OVER[name]
    async with fast_rig("retry: {max_attempts: 1}") as rig:
        backend = rig.ask(chat(stream=stream))
        for piece in pieces:
            backend.data_received(piece)
        assert rig.wire.pieces == []
        assert (rig.active, rig.in_flight) == (1, 1 if backend.usable or rig.in_flight else 0)
        await asyncio.sleep(0.02)
        assert rig.wire.take().startswith(start)
        assert (rig.active, rig.in_flight) == (0, 0)
        assert rig.router._server.requests_count == 0


async def test_leaving_before_the_loop_took_it_up_leaves_nothing_behind() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat())
        backend.data_received(reply(b"{}", status="500 X")[:-1])
        rig.client.connection_lost(None)
        assert (rig.active, rig.in_flight) == (0, 0)
        assert attempts(rig, AttemptResult.CLIENT_GONE) == 1
        assert not backend.usable
        await asyncio.sleep(0)
        assert attempts(rig, AttemptResult.CLIENT_GONE) == 1


async def test_the_home_of_a_response_is_remembered() -> None:
    async with fast_rig() as rig:
        raw = b'{"model":"m","input":"x"}'
        head = b"POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(raw)
        backend = rig.ask(head + raw)
        name = next(n for n, (connection, _) in rig.backends.items() if connection is backend)
        backend.data_received(reply(b'{"id":"resp_1","output":[]}'))
        assert rig.router.state.homes.home_of("resp_1") == name
        assert b"X-Cache" not in rig.wire.take()
