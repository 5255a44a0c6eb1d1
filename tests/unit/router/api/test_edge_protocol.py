"""The client's connection: whose bytes they are, and what happens between two requests."""

import asyncio
import socket

from continuum_router.api.edge_protocol import HOLD_LIMIT
from support import edge as edges
from support.edge import BODY, running
from support.fast_rig import FastRig, Wire, chat, fast_rig
from support.scripted_backend import answers, reply, scripted

HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def by_aiohttp(rig: FastRig) -> int:
    return rig.router._server.requests_count


async def turn() -> None:
    await asyncio.sleep(0.01)


async def test_both_kinds_of_requests_take_turns_on_one_connection() -> None:
    async with fast_rig() as rig:
        for number in range(1, 4):
            rig.ask(chat()).data_received(reply(b"{}"))
            assert rig.wire.take().endswith(b"{}")
            rig.sent()
            rig.client.data_received(HEALTH)
            await turn()
            assert rig.wire.take().startswith(b"HTTP/1.1 200 OK")
            assert by_aiohttp(rig) == number


async def test_a_request_that_comes_with_its_connection_is_taken() -> None:
    """aiohttp's own task has not begun then; a busy loop makes that the usual case."""
    async with fast_rig() as rig:
        wire, client = Wire(), rig.router._server()
        client.connection_made(wire)
        client.data_received(chat())
        rig.asked().data_received(reply(b"{}"))
        assert wire.take().endswith(b"{}")
        await turn()
        rig.sent()
        client.data_received(HEALTH)
        client.data_received(chat())
        await turn()
        assert by_aiohttp(rig) == 2, "behind one of aiohttp's it has to be known that it is done"
        rig.asked().data_received(reply(b"{}"))
        await turn()
        client.connection_lost(None)


async def test_a_request_sent_ahead_waits_for_the_one_before() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat())
        rig.client.data_received(HEALTH)
        await turn()
        assert by_aiohttp(rig) == 0
        backend.data_received(reply(b'{"first":1}'))
        await turn()
        got = rig.wire.take()
        assert got.index(b"first") < got.rindex(b"HTTP/1.1 200 OK")
        assert by_aiohttp(rig) == 1


async def test_bytes_sent_ahead_are_bounded_and_go_on_when_it_is_their_turn() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat())
        rig.client.data_received(HEALTH * (HOLD_LIMIT // len(HEALTH)))
        assert not rig.wire.paused
        rig.client.data_received(HEALTH)
        rig.client.data_received(HEALTH)
        assert rig.wire.paused
        backend.data_received(reply(b"{}"))
        await asyncio.sleep(0.5)
        assert not rig.wire.paused
        assert rig.wire.take().count(b"HTTP/1.1 200 OK") == HOLD_LIMIT // len(HEALTH) + 3


async def test_behind_a_request_that_came_in_pieces_the_next_is_taken() -> None:
    async with fast_rig() as rig:
        rig.client.data_received(HEALTH[:10])
        rig.client.data_received(HEALTH[10:])
        await turn()
        rig.wire.take()
        rig.ask(chat()).data_received(reply(b"{}"))
        assert by_aiohttp(rig) == 1
        assert rig.wire.take().endswith(b"{}")


async def test_not_behind_half_a_request() -> None:
    async with fast_rig() as rig:
        rig.client.data_received(HEALTH[:-2])
        rig.client.data_received(chat())
        await turn()
        assert rig.sent() == b""
        assert rig.active == 0


async def test_bytes_that_are_no_http_get_the_usual_answer() -> None:
    async with fast_rig() as rig:
        rig.client.data_received(b"\x16\x03\x01\r\n\r\n")
        await turn()
        got = rig.wire.take()
        assert got.startswith(b"HTTP/1.1 400 ")
        assert b'"code":"malformed_request"' in got
        assert rig.wire.closed


async def test_an_idle_connection_is_closed_after_its_last_use() -> None:
    async with fast_rig() as rig:
        loop = asyncio.get_running_loop()
        rig.ask(chat()).data_received(reply(b"{}"))
        rig.client._next_keepalive_close_time = loop.time() - 1.0
        rig.client._process_keepalive()
        assert not rig.wire.closed
        assert rig.client._next_keepalive_close_time > loop.time() + 70
        rig.client._last = loop.time() - 100.0
        rig.client._next_keepalive_close_time = loop.time() - 1.0
        rig.client._process_keepalive()
        assert rig.wire.closed


async def test_half_a_head_does_not_keep_a_connection() -> None:
    async with fast_rig() as rig:
        rig.client.data_received(HEALTH[:9])
        await turn()
        rig.client._next_keepalive_close_time = asyncio.get_running_loop().time() - 1.0
        rig.client._process_keepalive()
        assert rig.wire.closed


async def test_damage_behind_an_answer_is_no_error_of_ours() -> None:
    """Nobody reads that body any more: aiohttp skips it until the connection ends."""
    async with fast_rig() as rig:
        rig.client.data_received(
            b"POST /none HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1"
        )
        await turn()
        assert rig.wire.take().startswith(b"HTTP/1.1 404 ")
        assert not rig.wire.closed
        rig.client.data_received(b"\n")
        await turn()
        assert rig.wire.closed
        assert rig.wire.take() == b""


async def test_damage_in_a_body_that_nobody_reads_ends_the_connection() -> None:
    async with fast_rig() as rig:
        rig.client.data_received(HEALTH[:-2] + b"Transfer-Encoding: chunked\r\n\r\n1\n")
        await turn()
        got = rig.wire.take()
        assert got.startswith(b"HTTP/1.1 200 OK")
        assert b"\r\nConnection: close\r\n" in got
        assert rig.wire.closed


async def test_a_connection_in_use_is_not_idle() -> None:
    async with fast_rig() as rig:
        rig.ask(chat())
        rig.client._next_keepalive_close_time = asyncio.get_running_loop().time() - 1.0
        rig.client._process_keepalive()
        assert not rig.wire.closed


async def test_the_end_of_the_server_waits_for_the_request_under_way() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat())
        ending = asyncio.ensure_future(rig.client.shutdown(1.0))
        await turn()
        assert not ending.done()
        backend.data_received(reply(b"{}"))
        await ending
        assert rig.wire.take().endswith(b"{}")
        assert rig.wire.closed


async def test_and_ends_it_when_that_takes_too_long() -> None:
    async with fast_rig() as rig:
        rig.ask(chat())
        await rig.client.shutdown(0.01)
        assert rig.wire.closed
        assert (rig.active, rig.in_flight) == (0, 0)


async def test_an_answer_of_a_draining_server_says_close_and_closes() -> None:
    async with fast_rig() as rig:
        backend = rig.ask(chat())
        rig.router.runtime.draining = True
        backend.data_received(reply(b"{}"))
        assert b"\r\nConnection: close\r\n" in rig.wire.take()
        assert rig.wire.closed


async def test_nagle_is_off_on_both_sides() -> None:
    """A small chunk that waits for an acknowledgement costs 40 ms (design/data-plane.md)."""
    async with scripted(answers(reply(b"{}"))) as backend:
        async with running(edges.edge_config([backend.url])) as edge:
            assert (await edge.post(BODY)).status == 200
            kept = [lane.idle[0] for lane in edge.router.state.upstream._lanes.values()]
            sides = [*edge.router._server.connections, *kept]
            assert len(sides) == 2
            for side in sides:
                transport = getattr(side, "transport", None) or side._transport
                sock = transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_not_while_the_client_does_not_read_what_it_was_answered() -> None:
    """Such a request waits in aiohttp's handler; here its answer would only join the others."""
    async with fast_rig() as rig:
        rig.client.pause_writing()
        rig.client.data_received(chat())
        assert rig.client._call is None
        await turn()
        assert by_aiohttp(rig) == 1
        rig.client.resume_writing()
