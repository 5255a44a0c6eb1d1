"""What is particular to the pull form; what every feed does is in tests/contract."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from continuum_router.kv_index.feeds import (
    FeedAccess,
    FeedError,
    FeedFault,
    SseFeed,
    TlsFiles,
    event_session,
)
from continuum_shared.config.kinds import Secret
from support.feeds import SseServer, stream


async def failure(url, **kwargs):
    async with event_session() as session:
        with pytest.raises(FeedError) as raised:
            async with SseFeed(session, url, **kwargs).open(None) as pieces:
                await anext(pieces)
    return raised.value.fault, raised.value.status


async def answered(response):
    async def serve(request):
        return response

    async with SseServer(serve) as server:
        return await failure(server.url)


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (204, FeedFault.STATUS),
        (401, FeedFault.UNAUTHORIZED),
        (403, FeedFault.UNAUTHORIZED),
        (404, FeedFault.STATUS),
        (500, FeedFault.STATUS),
        (503, FeedFault.REFUSED),
    ],
)
async def test_another_status_is_a_failure(status, fault):
    assert await answered(web.Response(status=status)) == (fault, status)


async def test_the_token_is_shown_and_never_in_an_error():
    async with (
        SseServer(lambda r: stream(r)) as server,
        event_session() as session,
        SseFeed(session, server.url, access=FeedAccess(token=Secret("t0k"))).open(None),
    ):
        pass
    assert server.requests[0]["authorization"] == "Bearer t0k"
    assert str(FeedError(FeedFault.UNAUTHORIZED, 401)) == "unauthorized 401"


async def test_files_that_cannot_be_read_are_a_tls_fault():
    def make():
        raise TlsFiles("tls.ca_file: no such file or directory")

    async with event_session() as session:
        feed = SseFeed(session, "https://127.0.0.1:1/events", access=FeedAccess(tls=make))
        with pytest.raises(FeedError) as raised:
            async with feed.open(None):
                pass
    assert str(raised.value) == "tls tls.ca_file: no such file or directory"


async def test_redirects_are_not_followed():
    async def serve(request):
        return web.Response(status=307, headers={"Location": server.url})

    async with SseServer(serve) as server:
        assert await failure(server.url) == (FeedFault.STATUS, 307)
        assert len(server.requests) == 1


async def test_another_content_type_is_a_failure():
    body = web.Response(body=b"<html>", content_type="text/html")
    assert await answered(body) == (FeedFault.CONTENT_TYPE, None)


async def test_a_charset_in_the_content_type_is_fine():
    async def serve(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(b": x\n\n")
        return response

    async with (
        SseServer(serve) as server,
        event_session() as session,
        SseFeed(session, server.url).open(None) as pieces,
    ):
        assert await anext(pieces) == b": x\n\n"


async def test_what_is_asked_for():
    async with (
        SseServer(lambda r: stream(r)) as server,
        event_session() as session,
        SseFeed(session, server.url).open("e-1"),
    ):
        pass
    asked = server.requests[0]
    assert asked["accept"] == "text/event-stream"
    assert asked["accept-encoding"] == "identity"
    assert asked["last-event-id"] == "e-1"
    assert "cookie" not in asked


async def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    assert await failure(f"http://127.0.0.1:{port}/events") == (FeedFault.CONNECT, None)


@asynccontextmanager
async def raw_server(talk):
    """A TCP server for one connection; leaving waits until that has been closed."""
    closed = asyncio.Event()

    async def handle(reader, writer):
        await talk(reader, writer)
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield f"http://{host}:{port}/events"
        await closed.wait()


async def test_a_server_that_never_answers():
    async def hold(reader, writer):
        await reader.read()

    async with raw_server(hold) as url:
        assert await failure(url, idle_timeout=0.2) == (FeedFault.TIMEOUT, None)


async def test_a_server_that_speaks_another_protocol():
    async def babble(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        await writer.drain()

    async with raw_server(babble) as url:
        assert await failure(url) == (FeedFault.CUT, None)


async def test_a_server_that_accepts_and_closes_is_not_away():
    # Away listeners are looked at every second; this one must be spared by growing delays (C31).
    async def close(reader, writer):
        await reader.readuntil(b"\r\n\r\n")

    async with raw_server(close) as url:
        assert await failure(url) == (FeedFault.CUT, None)


async def test_a_server_without_tls_is_not_away():
    async def babble(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with raw_server(babble) as url:
        assert await failure(url.replace("http:", "https:")) == (FeedFault.TLS, None)


def test_an_error_says_no_more_than_its_reason():
    assert str(FeedError(FeedFault.STATUS, 503)) == "status 503"
    assert str(FeedError(FeedFault.CUT)) == "cut"
