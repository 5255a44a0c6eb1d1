"""A cancellation at every await that holds a lease: nothing stays counted, nothing stays open.

The loop of a request is driven step by step: it is cancelled at its first suspension, at its
second, and so on, until it ends by itself. Whatever the point, the books are balanced afterwards.
"""

import asyncio
from collections.abc import Callable

import pytest

from continuum_router.errors import AttemptFailure, Cause, RouterError, Stage
from continuum_router.upstream.retry import RetryPolicy
from support.dispatch import (
    SSE_HEADERS,
    Bench,
    FakeReply,
    bench,
    nothing_left,
)

EVENT = b'data: {"a":1}\n\n'
REFUSED = AttemptFailure(Stage.CONNECTING, Cause.REFUSED)
LOST = AttemptFailure(Stage.AWAITING_HEAD, Cause.CLOSED, reused=True)
CUT = AttemptFailure(Stage.STREAMING, Cause.CUT)


def _stream(*steps: bytes | AttemptFailure) -> FakeReply:
    return FakeReply(200, *steps, headers=SSE_HEADERS)


CASES: dict[str, tuple[bool, Callable[[], list[FakeReply | AttemptFailure]]]] = {
    "plain": (False, lambda: [FakeReply(200, b"a", b"b")]),
    "long plain": (False, lambda: [FakeReply(200, b"x" * 1_100_000, b"b")]),
    "stream": (True, lambda: [_stream(b": p\n\n", EVENT, EVENT)]),
    "retry after a refusal": (False, lambda: [REFUSED, FakeReply(200, b"a")]),
    "fresh connection": (False, lambda: [LOST, FakeReply(200, b"a")]),
    "busy, then well": (False, lambda: [FakeReply(503, b"a"), FakeReply(200, b"a")]),
    "error event, then well": (
        True,
        lambda: [_stream(b'data: {"error":{"code":503}}\n\n'), _stream(EVENT)],
    ),
    "broken stream": (True, lambda: [_stream(EVENT, CUT)]),
    "all dead": (False, lambda: [REFUSED, REFUSED, REFUSED]),
}


async def _cancel_after(used: Bench, steps: int, *, stream: bool) -> bool:
    """Run until the given suspension, cancel there. True when it ended before."""
    task = asyncio.create_task(used.run(stream=stream))
    for _ in range(steps):
        await asyncio.sleep(0)
        if task.done():
            break
    if not task.done():
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    except RouterError:
        return True
    return True


@pytest.mark.parametrize("name", CASES)
async def test_cancelled_at_every_suspension(name: str) -> None:
    stream, make = CASES[name]
    for steps in range(1, 400):
        answers = make()
        replies = [answer for answer in answers if isinstance(answer, FakeReply)]
        used = bench(*answers)
        used.change(retry=RetryPolicy(initial_delay=0.0))
        untouched = set(map(id, replies))
        with nothing_left(used):
            ended = await _cancel_after(used, steps, stream=stream)
        untouched &= {id(reply) for reply in used.transport.answers}
        left_open = [
            reply for reply in replies if reply.state == "open" and id(reply) not in untouched
        ]
        assert left_open == []
        assert sum(used.results.values()) == used.outcome.attempts
        for result in used.results:
            assert result != "ok" or ended or used.sink.started
        if ended:
            assert steps > 2
            return
    pytest.fail("the request never ended")


async def test_cancelled_while_the_client_reads_slowly() -> None:
    reply = _stream(EVENT, EVENT)
    used = bench(reply)
    used.sink.blocked = asyncio.Event()
    task = asyncio.create_task(used.run(stream=True))
    await used.sink.writing.wait()
    assert used.fleet.loads["b1"] == 1
    with nothing_left(used, reply):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert used.results == {"client_gone": 1}


async def test_cancelled_while_the_head_is_awaited() -> None:
    used = bench(asyncio.Event())
    task = asyncio.create_task(used.run())
    await used.transport.waiting.wait()
    with nothing_left(used):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert used.results == {"client_gone": 1}
    assert used.fleet.success_rate("b1") == 1.0
