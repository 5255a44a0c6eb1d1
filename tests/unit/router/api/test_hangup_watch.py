"""Whether a peer has left is told by the kernel, bytes that nobody has read aside."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from aiohttp.http import HttpVersion, HttpVersion10, HttpVersion11

from continuum_router.api.hangup_watch import (
    INTERIM,
    LOOK_SECONDS,
    HangupWatch,
    hung_up,
    may_be_knocked_at,
)


@pytest.mark.parametrize("unread", [b"", b"the next request"])
def test_hung_up(unread: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(unread)
        assert not hung_up(ours.fileno())
        theirs.close()
        assert hung_up(ours.fileno())


async def test_a_peer_that_leaves_while_nothing_is_read() -> None:
    watch, lost = HangupWatch(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Paused(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.set()

    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(Paused, sock=ours)
    transport.pause_reading()
    watch.start(transport, loop)
    watch.start(transport, loop)
    theirs.sendall(b"unread")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lost.wait(), 2.5 * LOOK_SECONDS)
    theirs.close()
    await asyncio.wait_for(lost.wait(), 1.0)


async def test_the_watch_ends_when_reading_goes_on() -> None:
    watch, loop = HangupWatch(), asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    transport.pause_reading()
    watch.start(transport, loop)
    transport.resume_reading()
    await asyncio.sleep(1.5 * LOOK_SECONDS)
    assert not transport.is_closing()
    transport.abort()
    theirs.close()


# -- clients whose end waits behind what they have sent -----------------------------------------


class _Asked(dict[str, object]):
    """What the watch looks at of a request."""

    def __init__(
        self, version: HttpVersion = HttpVersion11, *, whole: bool = False, answered: int = 0
    ) -> None:
        super().__init__()
        self.version = version
        self.content = SimpleNamespace(is_eof=lambda: whole)
        self.writer = SimpleNamespace(output_size=answered)


@pytest.mark.parametrize(
    ("asked", "may"),
    [
        (_Asked(), True),
        (_Asked(HttpVersion10), False),
        (_Asked(whole=True), False),
        (_Asked(answered=1), False),
    ],
)
def test_who_may_be_knocked_at(asked: _Asked, may: bool) -> None:
    assert may_be_knocked_at(asked) is may  # type: ignore[arg-type]


@dataclass
class _Stuck:
    """A client whose sending has come to a stop, watched."""

    client: socket.socket
    asked: _Asked
    lost: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def _stuck(knocks: tuple[float, ...]) -> AsyncIterator[_Stuck]:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    made = _Stuck(client, _Asked())
    client.setblocking(False)

    class Paused(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            made.lost.set()

    transport, _ = await loop.create_connection(Paused, sock=ours)
    transport.pause_reading()
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.2):
                await loop.sock_sendall(client, bytes(1_000_000))
    watch = HangupWatch(knocks)
    watch.start(transport, loop, lambda: made.asked)  # type: ignore[arg-type,return-value]
    try:
        yield made
    finally:
        client.close()
        transport.abort()


async def test_a_client_that_left_behind_megabytes_answers_a_knock_with_a_reset() -> None:
    """User report S1, for an upload that the backend does not take."""
    async with _stuck((2 * LOOK_SECONDS,)) as stuck:
        stuck.client.close()
        with pytest.raises(TimeoutError):  # its end has not arrived
            await asyncio.wait_for(stuck.lost.wait(), 1.5 * LOOK_SECONDS)
        await asyncio.wait_for(stuck.lost.wait(), 4 * LOOK_SECONDS)


async def test_a_living_client_gets_no_more_knocks_than_it_can_bear() -> None:
    loop = asyncio.get_running_loop()
    async with _stuck((0.0, LOOK_SECONDS)) as stuck:
        await asyncio.sleep(4.5 * LOOK_SECONDS)
        assert await loop.sock_recv(stuck.client, 1000) == INTERIM * 2
        assert not stuck.lost.is_set()


async def test_a_client_that_has_sent_everything_is_not_knocked_at() -> None:
    loop = asyncio.get_running_loop()
    async with _stuck((0.0,)) as stuck:
        stuck.asked = _Asked(whole=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_recv(stuck.client, 1000), 2.5 * LOOK_SECONDS)
