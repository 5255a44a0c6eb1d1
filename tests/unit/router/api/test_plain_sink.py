"""Answers written straight on the connection."""

import pytest

from continuum_router.api.answer_head import HttpDate
from continuum_router.api.plain_sink import PlainSink
from continuum_router.errors import ClientGone

DATE = b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"


class Client:
    """A client's connection."""

    def __init__(self, *, there: bool = True, paused: bool = False) -> None:
        self.there = there
        self.writing_paused = paused
        self.got = b""
        self.drains = 0
        self.broken = False

    def send(self, data: bytes) -> bool:
        self.got += data
        return self.there

    async def drained(self) -> None:
        self.drains += 1
        if not self.there:
            raise ConnectionResetError

    def break_off(self) -> None:
        self.broken = True


def sink_to(client: Client, *, closing: bool = False) -> PlainSink:
    return PlainSink(
        client,
        date=HttpDate(lambda: 0.0),
        more_headers=lambda: [("X-More", "1")],
        closing=lambda: closing,
    )


async def test_a_whole_answer_is_one_write() -> None:
    client = Client()
    sink = sink_to(client)
    assert not sink.started
    await sink.send(418, [("Content-Type", "text/plain")], b"tea")
    assert client.got == (
        b"HTTP/1.1 418 I'm a Teapot\r\nContent-Type: text/plain\r\nX-More: 1\r\n"
        b"Content-Length: 3\r\n" + DATE + b"\r\ntea"
    )
    assert (sink.started, sink.status, sink.closes) == (True, 418, False)


async def test_a_status_without_a_body_gets_none() -> None:
    client = Client()
    await sink_to(client).send(204, [], b"never")
    assert client.got == b"HTTP/1.1 204 No Content\r\nX-More: 1\r\n" + DATE + b"\r\n"


async def test_an_error_tells_its_type_last() -> None:
    client = Client()
    sink_to(client).refuse(502, [("Retry-After", "1")], b"{}")
    assert client.got == (
        b"HTTP/1.1 502 Bad Gateway\r\nRetry-After: 1\r\nX-More: 1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n" + DATE + b"\r\n{}"
    )


async def test_a_body_in_pieces() -> None:
    for length, body in ((None, b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), (3, b"abc")):
        client = Client()
        sink = sink_to(client)
        await sink.start(200, [("Content-Type", "x")], length)
        await sink.write(b"ab")
        await sink.write(b"")
        await sink.write(b"c")
        await sink.finish()
        assert client.got.partition(b"\r\n\r\n")[2] == body
        assert not sink.closes


async def test_closing_is_said_and_done() -> None:
    client = Client()
    sink = sink_to(client, closing=True)
    await sink.send(200, [], b"")
    assert b"Connection: close\r\n" in client.got
    assert sink.closes
    late = sink_to(Client())
    await late.start(200, [], None)
    await late.finish_and_close()
    assert late.closes


async def test_a_slow_client_is_waited_for() -> None:
    client = Client(paused=True)
    sink = sink_to(client)
    assert sink.congested
    await sink.start(200, [], None)
    assert client.drains == 0
    await sink.write(b"x")
    assert client.drains == 1


async def test_a_client_that_has_left() -> None:
    with pytest.raises(ClientGone):
        await sink_to(Client(there=False)).send(200, [], b"")
    client = Client(paused=True)
    sink = sink_to(client)
    await sink.start(200, [], None)
    client.there = False
    with pytest.raises(ClientGone):
        await sink.write(b"x")


async def test_cutting_breaks_the_connection() -> None:
    client = Client()
    sink = sink_to(client)
    await sink.start(200, [], None)
    sink.cut()
    assert (client.broken, sink.closes) == (True, True)
