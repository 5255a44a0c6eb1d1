"""What is particular to the WebSocket form; what every feed does is in tests/contract."""

import pytest
from aiohttp import web

from continuum_router.kv_index.feeds import FeedAccess, FeedError, FeedFault, event_session
from continuum_router.kv_index.ws_feed import MAX_MESSAGE, WsFeed
from continuum_shared.config.kinds import Secret
from support.feeds import SseServer


async def failure(serve) -> tuple[FeedFault, int | None]:
    async with SseServer(serve) as server, event_session() as session:
        feed = WsFeed(session, server.url.replace("http:", "ws:"))
        with pytest.raises(FeedError) as raised:
            async with feed.open(None) as pieces:
                await anext(pieces)
    return raised.value.fault, raised.value.status


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (200, FeedFault.STATUS),
        (401, FeedFault.UNAUTHORIZED),
        (404, FeedFault.STATUS),
        (503, FeedFault.REFUSED),
    ],
)
async def test_no_upgrade(status, fault):
    async def serve(request):
        return web.Response(status=status)

    assert await failure(serve) == (fault, status)


async def test_redirects_are_not_followed():
    asked = []

    async def serve(request):
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/events"})

    assert await failure(serve) == (FeedFault.STATUS, 307)
    assert asked == ["/events"]


def talking(talk):
    async def serve(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await talk(socket)
        await socket.close()
        return socket

    return serve


async def test_binary_messages_are_no_stream():
    assert await failure(talking(lambda s: s.send_bytes(b": x\n\n"))) == (
        FeedFault.CONTENT_TYPE,
        None,
    )


async def test_a_message_without_end_is_cut_off():
    large = "x" * (MAX_MESSAGE + 1)
    assert await failure(talking(lambda s: s.send_str(large))) == (FeedFault.CUT, None)


async def test_a_close_with_a_fault_is_a_cut():
    assert await failure(talking(lambda s: s.close(code=1011))) == (FeedFault.CUT, None)


async def test_what_is_asked_for():
    async def nothing(socket):
        """Close at once."""

    async with SseServer(talking(nothing)) as server, event_session() as session:
        access = FeedAccess(token=Secret("t0k"))
        feed = WsFeed(session, server.url.replace("http:", "ws:"), access=access)
        async with feed.open("e-1") as pieces:
            assert [piece async for piece in pieces] == []
        asked = server.requests[0]
        assert (asked["upgrade"], asked["last-event-id"]) == ("websocket", "e-1")
        assert asked["authorization"] == "Bearer t0k"
        assert await feed.reachable()
