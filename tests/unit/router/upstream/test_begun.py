"""The loop goes on with an attempt that was begun elsewhere."""

import asyncio

import pytest

from continuum_router.errors import AttemptFailure, Cause, Stage, UpstreamFailed, UpstreamTimeout
from continuum_router.routing.selector import Choice
from continuum_router.routing.strategies import Rule
from continuum_router.upstream.begun import Begun
from continuum_router.upstream.outcome import Ended
from continuum_router.upstream.retry import RetryPolicy
from support.dispatch import Bench, FakeReply, backend, bench, nothing_left
from support.virtual_time import on_virtual_time

LOST_UNUSED = AttemptFailure(Stage.AWAITING_HEAD, Cause.CLOSED, reused=True)


def begun(used: Bench, *, ago: float = 0.0, sent: bool = True, **more: object) -> Begun:
    """An attempt on b1, begun and sent so many seconds ago."""
    state = used.dispatcher.state
    chosen = used.dispatcher.pool.backends[0]
    return Begun(
        choice=Choice(backend=chosen, rule=Rule.ROUND_ROBIN),
        lease=state.fleet.lease(chosen.name).begin(),
        started=state.clock() - ago,
        sent_at=state.clock() - ago if sent else None,
        **more,  # type: ignore[arg-type]
    )


def requests_noted(used: Bench) -> int:
    return sum(slot.requests for slot in used.dispatcher.state.budget._slots)


async def test_an_answer_is_relayed_without_another_call() -> None:
    answer = FakeReply(200, b"{}")
    used = bench()
    with nothing_left(used, answer):
        await used.run(begun=begun(used, reply=answer))
    assert used.transport.sent == []
    assert (used.sink.status, used.sink.body) == (200, b"{}")
    assert (used.outcome.attempts, used.outcome.ended) == (1, Ended.COMPLETE)
    assert used.results == {"ok": 1}
    assert requests_noted(used) == 0


async def test_what_was_not_sent_yet_is_sent_to_the_backend_that_was_chosen() -> None:
    answer = FakeReply(200, b"{}")
    used = bench(answer)
    with nothing_left(used, answer):
        await used.run(begun=begun(used, sent=False))
    assert used.transport.sent[0][:2] == ("b1", False)
    assert used.results == {"ok": 1}


async def test_a_kept_connection_that_died_unused_is_replaced_uncounted() -> None:
    answer = FakeReply(200, b"{}")
    used = bench(answer)
    with nothing_left(used, answer):
        await used.run(begun=begun(used, failure=LOST_UNUSED))
    assert used.transport.sent[0][:2] == ("b1", True)
    assert (used.outcome.attempts, used.results) == (1, {"ok": 1})


async def test_not_where_replay_is_off() -> None:
    used = bench(backends=[backend("b1", replay_allowed=False)])
    with nothing_left(used), pytest.raises(UpstreamFailed):
        await used.run(begun=begun(used, failure=LOST_UNUSED))
    assert used.transport.sent == []
    assert used.results == {"failed": 1}


async def test_another_failure_is_the_first_of_its_tries() -> None:
    answer = FakeReply(200, b"{}")
    used = bench(answer)
    failure = AttemptFailure(Stage.AWAITING_HEAD, Cause.RESET)
    with nothing_left(used, answer):
        await used.run(begun=begun(used, failure=failure))
    assert (used.outcome.attempts, used.results) == (2, {"ok": 1, "failed": 1})


async def test_a_retryable_status_is_tried_again() -> None:
    busy, answer = FakeReply(503), FakeReply(200, b"{}")
    used = bench(answer)
    with nothing_left(used, busy, answer):
        await used.run(begun=begun(used, reply=busy))
    assert (used.outcome.attempts, used.results) == (2, {"ok": 1, "busy": 1})


async def test_a_limit_that_has_passed_ends_it() -> None:
    used = bench()
    failure = AttemptFailure(Stage.AWAITING_HEAD, Cause.FIRST_BYTE_TIMEOUT)
    with nothing_left(used), pytest.raises(UpstreamTimeout):
        await used.run(stream=True, begun=begun(used, failure=failure))
    assert used.outcome.ended is Ended.DEADLINE
    assert used.results == {"failed": 1}


async def test_unless_a_slow_backend_is_to_be_left() -> None:
    answer = FakeReply(200, b"{}")
    used = bench(answer)
    used.change(retry=RetryPolicy(initial_delay=0.001, on_timeout=True))
    failure = AttemptFailure(Stage.AWAITING_HEAD, Cause.FIRST_BYTE_TIMEOUT)
    with nothing_left(used, answer):
        await used.run(begun=begun(used, failure=failure))
    assert used.results == {"ok": 1, "failed": 1}


@on_virtual_time
async def test_the_time_that_has_passed_counts() -> None:
    await asyncio.sleep(10)
    for ago, left in ((0.0, 4.0), (1.5, 2.5)):
        used = bench()
        hangs = FakeReply(200, asyncio.Event(), headers=(("Content-Type", "text/event-stream"),))
        start = asyncio.get_running_loop().time()
        with nothing_left(used, hangs), pytest.raises(UpstreamTimeout):
            await used.run(stream=True, begun=begun(used, ago=ago, reply=hangs))
        assert asyncio.get_running_loop().time() - start == pytest.approx(left)
