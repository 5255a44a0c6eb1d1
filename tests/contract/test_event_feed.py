"""What every EventFeed must do. Another transport is one more entry in ``TRANSPORTS``."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from continuum_router.kv_index.feeds import FeedError, FeedFault, SseFeed, event_session
from continuum_router.kv_index.ws_feed import WsFeed
from support.feeds import SseServer, over_web_socket, stream


class SseTransport:
    """A real server and the feed that pulls from it."""

    def __init__(self, server, session):
        self.feed = SseFeed(session, server.url, connect_timeout=5.0, idle_timeout=0.3)
        self._server = server

    def asked(self):
        return [headers.get("last-event-id") for headers in self._server.requests]


@asynccontextmanager
async def sse(serve):
    async with SseServer(serve) as server, event_session() as session:
        yield SseTransport(server, session)


class WsTransport:
    """The same server behind a WebSocket: what it would have written comes in text messages."""

    def __init__(self, server, session):
        url = server.url.replace("http:", "ws:")
        self.feed = WsFeed(session, url, connect_timeout=5.0, idle_timeout=0.3)
        self._server = server

    def asked(self):
        return [headers.get("last-event-id") for headers in self._server.requests]


@asynccontextmanager
async def ws(serve):
    async with SseServer(over_web_socket(serve)) as server, event_session() as session:
        yield WsTransport(server, session)


TRANSPORTS = {"sse": sse, "ws": ws}


@pytest.fixture(params=list(TRANSPORTS))
def transport(request):
    return TRANSPORTS[request.param]


async def read(feed, last_event_id=None):
    got = b""
    async with feed.open(last_event_id) as pieces:
        async for piece in pieces:
            got += piece
    return got


async def test_the_bytes_arrive_until_the_stream_ends(transport):
    async with transport(lambda r: stream(r, b": one\n\n", b"data: t", b"wo\n\n")) as t:
        assert await read(t.feed) == b": one\n\ndata: two\n\n"


async def test_bytes_arrive_as_they_are_sent(transport):
    go_on = asyncio.Event()

    async def serve(request):
        response = await stream(request, b": first\n\n")
        await go_on.wait()
        await response.write(b": second\n\n")
        return response

    async with transport(serve) as t, t.feed.open(None) as pieces:
        assert await anext(pieces) == b": first\n\n"
        go_on.set()
        assert await anext(pieces) == b": second\n\n"
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)


async def test_the_place_to_go_on_is_named(transport):
    async with transport(lambda r: stream(r)) as t:
        await read(t.feed)
        await read(t.feed, "epoch-7")
        assert t.asked() == [None, "epoch-7"]


async def test_silence_is_a_failure(transport):
    async def serve(request):
        response = await stream(request, b": hello\n\n")
        await asyncio.sleep(30)
        return response

    async with transport(serve) as t:
        with pytest.raises(FeedError) as raised:
            await read(t.feed)
        assert raised.value.fault is FeedFault.TIMEOUT


async def test_a_cut_is_a_failure(transport):
    async def serve(request):
        response = await stream(request, b": hello\n\n")
        request.transport.abort()
        return response

    async with transport(serve) as t:
        with pytest.raises(FeedError) as raised:
            await read(t.feed)
        assert raised.value.fault is FeedFault.CUT


async def test_leaving_closes_the_connection(transport):
    gone = asyncio.Event()

    async def serve(request):
        response = await stream(request, b": hello\n\n")
        try:
            await asyncio.sleep(30)
        finally:
            gone.set()
        return response

    async with transport(serve) as t:
        async with t.feed.open(None) as pieces:
            await anext(pieces)
        await asyncio.wait_for(gone.wait(), 5)


async def test_it_can_be_opened_again_after_a_failure(transport):
    async def serve(request):
        if not answered:
            answered.append(1)
            return web.Response(status=503)
        return await stream(request, b": ok\n\n")

    answered = []
    async with transport(serve) as t:
        with pytest.raises(FeedError):
            await read(t.feed)
        assert await read(t.feed) == b": ok\n\n"


async def test_reachable_tells_whether_somebody_listens(transport):
    async with transport(lambda r: stream(r, b"")) as t:
        assert await t.feed.reachable()
        assert t.asked() == []
    assert not await t.feed.reachable()
