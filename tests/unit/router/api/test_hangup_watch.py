"""Whether a peer has left is told by the kernel, bytes that nobody has read aside."""

import asyncio
import socket

import pytest

from continuum_router.api.hangup_watch import LOOK_SECONDS, HangupWatch, hung_up


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
