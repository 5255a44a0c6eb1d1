"""Shared bytes reach the transport as they are; a full connection is waited for, not for ever."""

import asyncio
from dataclasses import dataclass, field

import pytest
from aiohttp.http import HttpVersion10, HttpVersion11

from continuum_kv_listener.event_writer import WAITING_BYTES, EventWriter


@dataclass
class Pipe:
    """A transport that keeps what it is given; ``waiting`` is what the peer has not taken."""

    pieces: list[bytes] = field(default_factory=list)
    waiting: int = 0
    closing: bool = False

    def writelines(self, pieces) -> None:
        self.pieces.extend(pieces)

    def write(self, piece) -> None:
        self.pieces.append(piece)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.closing


@dataclass
class Request:
    transport: Pipe | None
    version: object = HttpVersion11


@dataclass
class Response:
    """What goes aiohttp's way: the first piece and the end."""

    sent: list[bytes] = field(default_factory=list)
    ended: bool = False

    async def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def write_eof(self) -> None:
        self.ended = True


def writer(pipe: Pipe | None, patience: float = 5.0, version=HttpVersion11):
    response = Response()
    return EventWriter(Request(pipe, version), response, patience=patience), response


async def test_subscribers_are_given_one_object():
    data = b"x" * 20_000
    pipes = [Pipe() for _ in range(3)]
    for pipe in pipes:
        made, response = writer(pipe)
        await made.write(b"greeting")
        await made.write(data)
        await made.end(b"bye")
        assert (response.sent, response.ended) == ([b"greeting"], True)
        assert pipe.pieces == [b"4e20\r\n", data, b"\r\n", b"3\r\n", b"bye", b"\r\n"]
    assert all(pipe.pieces[1] is data for pipe in pipes)


async def test_an_old_client_gets_no_chunks():
    pipe = Pipe()
    made, _ = writer(pipe, version=HttpVersion10)
    await made.write(b"greeting")
    await made.write(b"data")
    assert pipe.pieces == [b"data"]


async def test_a_full_connection_is_waited_for():
    pipe = Pipe()
    made, _ = writer(pipe)
    await made.write(b"greeting")
    pipe.waiting = WAITING_BYTES + 1
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(made.write(b"data"))
        await asyncio.sleep(0.01)
        assert not writing.done()
        pipe.waiting = WAITING_BYTES // 2
    assert writing.done()


async def test_who_does_not_read_runs_out_of_patience():
    pipe = Pipe()
    made, _ = writer(pipe, patience=0.02)
    await made.write(b"greeting")
    pipe.waiting = WAITING_BYTES + 1
    with pytest.raises(TimeoutError):
        await made.write(b"data")


@pytest.mark.parametrize("gone", [None, Pipe(closing=True)], ids=["lost", "closing"])
async def test_a_client_that_is_gone(gone):
    made, _ = writer(gone)
    await made.write(b"greeting")
    with pytest.raises(ConnectionResetError):
        await made.write(b"data")
