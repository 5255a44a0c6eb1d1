"""The client's side on aiohttp's own server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from continuum_router.api.client_sink import WebSink
from continuum_router.errors import ClientGone
from support.edge import raw_exchange

Play = Callable[[WebSink], Awaitable[None]]


@asynccontextmanager
async def _serving(play: Play, *, closing: bool = False) -> AsyncIterator[int]:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        sink = WebSink(request, more_headers=lambda: [("X-More", "1")], closing=lambda: closing)
        assert not sink.started
        await play(sink)
        assert sink.response is not None
        return sink.response

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_whole_answer() -> None:
    async def play(sink: WebSink) -> None:
        await sink.send(418, [("X-A", "1"), ("X-A", "2")], b"body")
        assert (sink.started, sink.status) == (True, 418)

    async with _serving(play) as port:
        got = await raw_exchange(port, GET)
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 418 ")
    assert body == b"body"
    for line in (b"X-A: 1", b"X-A: 2", b"X-More: 1", b"Content-Length: 4"):
        assert line in head.split(b"\r\n")


async def test_a_body_in_pieces_with_and_without_a_known_length() -> None:
    for length in (None, 4):

        async def play(sink: WebSink, length: int | None = length) -> None:
            await sink.start(200, [], length)
            await sink.write(b"ab")
            await sink.write(b"cd")
            await sink.finish()

        async with _serving(play) as port:
            got = await raw_exchange(port, GET)
        body = b"abcd" if length else b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"
        assert got.endswith(b"\r\n\r\n" + body)


async def test_http_1_0_gets_no_chunks() -> None:
    async def play(sink: WebSink) -> None:
        await sink.start(200, [], None)
        await sink.write(b"abcd")
        await sink.finish()

    async with _serving(play) as port:
        got = await raw_exchange(port, b"GET / HTTP/1.0\r\n\r\n")
    assert got.endswith(b"\r\n\r\nabcd")
    assert b"chunked" not in got.lower()


async def test_closing() -> None:
    async def play(sink: WebSink) -> None:
        await sink.send(200, [], b"x")

    async with _serving(play, closing=True) as port:
        got = await raw_exchange(port, GET * 2)
    assert got.count(b"HTTP/1.1 200") == 1
    assert b"\r\nConnection: close\r\n" in got


async def test_finish_and_close_ends_in_good_order() -> None:
    async def play(sink: WebSink) -> None:
        await sink.start(200, [], None)
        await sink.write(b"a")
        await sink.finish_and_close()

    async with _serving(play) as port:
        got = await raw_exchange(port, GET * 2)
    assert got.count(b"HTTP/1.1 200") == 1
    assert got.endswith(b"1\r\na\r\n0\r\n\r\n")


async def test_cut_ends_in_no_good_order() -> None:
    async def play(sink: WebSink) -> None:
        await sink.start(200, [], None)
        await sink.write(b"a")
        await asyncio.sleep(0.05)
        sink.cut()

    async with _serving(play) as port:
        got = await raw_exchange(port, GET)
    assert got.endswith(b"1\r\na\r\n")


async def test_writing_to_a_client_that_left() -> None:
    told = asyncio.Event()

    async def play(sink: WebSink) -> None:
        await sink.start(200, [], None)
        try:
            while True:
                await sink.write(b"x" * 1000)
                await asyncio.sleep(0.001)
        except ClientGone:
            told.set()
            raise ConnectionResetError from None

    async with _serving(play) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        async with asyncio.timeout(2):
            await told.wait()


async def test_congestion_is_seen() -> None:
    seen: list[bool] = []

    async def play(sink: WebSink) -> None:
        await sink.start(200, [], None)
        seen.append(sink.congested)
        task = asyncio.create_task(sink.write(b"x" * 20_000_000))
        await asyncio.sleep(0.05)
        seen.append(sink.congested)
        await task
        await sink.finish()

    async with _serving(play) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await asyncio.sleep(0.2)
        await _drain(reader)
        writer.close()
    assert seen == [False, True]


async def _drain(reader: asyncio.StreamReader) -> None:
    total = 0
    while total < 20_000_000:
        total += len(await reader.read(1 << 20))
