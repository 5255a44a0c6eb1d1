"""A body that comes in pieces."""

import asyncio

from continuum_router.api.arriving import STALL_SECONDS, Arriving
from support.fast_rig import chat, fast_rig
from support.scripted_backend import reply


async def test_the_call_goes_off_when_the_body_is_whole() -> None:
    data = chat()
    head = data.index(b"\r\n\r\n") + 4
    async with fast_rig() as rig:
        rig.client.data_received(data[: head + 10])
        for at in range(head + 10, len(data), 97):
            assert rig.sent() == b""
            assert rig.active == 1
            rig.client.data_received(data[at : at + 97])
        assert rig.sent().endswith(data[head:])
        assert (rig.active, rig.in_flight) == (1, 1)


async def test_a_head_alone_is_enough_to_begin() -> None:
    data = chat()
    head = data.index(b"\r\n\r\n") + 4
    async with fast_rig() as rig:
        rig.client.data_received(data[:head])
        assert isinstance(rig.client._call, Arriving)
        backend = rig.ask(data[head:])
        backend.data_received(reply(b"{}"))
        assert rig.wire.take().endswith(b"\r\n\r\n{}")
        assert rig.router._server.requests_count == 0


async def test_what_turns_out_odd_is_given_back_whole() -> None:
    data = chat(model="nobody")
    async with fast_rig() as rig:
        rig.client.data_received(data[:-3])
        rig.client.data_received(data[-3:])
        await asyncio.sleep(0.01)
        assert rig.wire.take().startswith(b"HTTP/1.1 404 ")
        assert rig.active == 0
        assert rig.router._server.requests_count == 1


async def test_a_request_sent_ahead_is_answered_too() -> None:
    data = chat()
    async with fast_rig() as rig:
        rig.client.data_received(data[:-3])
        rig.client.data_received(data[-3:] + b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0.01)
        rig.asked().data_received(reply(b"{}"))
        await asyncio.sleep(0.01)
        got = rig.wire.take()
        assert got.count(b"HTTP/1.1 200 OK") == 2


async def test_a_silent_client_is_given_to_aiohttp() -> None:
    async with fast_rig() as rig:
        rig.client.data_received(chat()[:-3])
        call = rig.client._call
        assert isinstance(call, Arriving)
        assert call.due - rig.router.state.dispatch.clock() <= STALL_SECONDS
        call.expire(call.due)
        await asyncio.sleep(0.01)
        assert rig.active == 1
        assert rig.router._server.requests_count == 1
        rig.client.data_received(chat()[-3:])
        await asyncio.sleep(0.01)
        rig.asked().data_received(reply(b"{}"))
        await asyncio.sleep(0.01)
        assert rig.wire.take().endswith(b"\r\n\r\n{}")


async def test_a_client_that_leaves() -> None:
    async with fast_rig() as rig:
        rig.client.data_received(chat()[:-3])
        rig.client.connection_lost(None)
        assert (rig.active, rig.in_flight) == (0, 0)
