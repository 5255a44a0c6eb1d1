"""Waiting on a ZMQ socket without zmq.asyncio."""

import asyncio

import pytest
import zmq

from continuum_kv_listener.sources.readable import wait_readable


@pytest.fixture
def pair():
    context = zmq.Context()
    left, right = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    left.bind("inproc://pair")
    right.connect("inproc://pair")
    yield left, right
    context.destroy(0)


async def test_true_at_once_when_something_is_there(pair):
    left, right = pair
    left.send(b"x")
    assert await wait_readable((right,)) is True


async def test_true_when_something_comes(pair):
    left, right = pair
    asyncio.get_running_loop().call_later(0.02, left.send, b"x")
    seen = False
    for _ in range(20):  # a first True may be a false alarm
        seen = await wait_readable((right,), 5) and bool(right.poll(0))
        if seen:
            break
    assert seen


async def test_false_after_the_timeout(pair):
    assert await asyncio.wait_for(drain_false_alarms(pair[1]), 5) is False


async def drain_false_alarms(socket) -> bool:
    """A new connection is itself a reason to look; after that nothing comes."""
    while await wait_readable((socket,), 0.05):
        pass
    return False


async def test_nothing_to_watch_is_a_plain_sleep():
    assert await wait_readable((), 0.01) is False


async def test_a_cancelled_wait_leaves_no_reader(pair):
    _, right = pair
    task = asyncio.get_running_loop().create_task(wait_readable((right,)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert asyncio.get_running_loop().remove_reader(right.get(zmq.FD)) is False
