"""The loop over fakes: who is tried, what is counted, what comes of it."""

import asyncio

import pytest

from continuum_router.errors import (
    AttemptFailure,
    Cause,
    ClientGone,
    ModelNotFound,
    NoBackend,
    Overloaded,
    Stage,
    UpstreamFailed,
    UpstreamTimeout,
)
from continuum_router.upstream.deadlines import Limits
from continuum_router.upstream.outcome import Ended
from continuum_router.upstream.retry import RetryPolicy
from continuum_router.upstream.usage import Usage
from support.dispatch import SSE_HEADERS, FakeReply, backend, bench, chat, nothing_left

REFUSED = AttemptFailure(Stage.CONNECTING, Cause.REFUSED)
RESET = AttemptFailure(Stage.AWAITING_HEAD, Cause.RESET)
LOST = AttemptFailure(Stage.AWAITING_HEAD, Cause.CLOSED, reused=True)
CUT = AttemptFailure(Stage.STREAMING, Cause.CUT)
EVENT = b'data: {"a":1}\n\n'


async def test_a_plain_answer() -> None:
    used = bench(FakeReply(200, b'{"usage":{"prompt_tokens":3}}'))
    await used.run()
    assert (used.sink.status, used.sink.end) == (200, "finished")
    outcome = used.outcome
    assert (outcome.backend, outcome.attempts, outcome.ended) == ("b1", 1, Ended.COMPLETE)
    assert outcome.usage == Usage(prompt_tokens=3)
    assert outcome.ttft is not None
    assert used.results == {"ok": 1}
    assert used.served == [("b1", bytes(chat().prefix or b""))]
    assert used.fleet.latency("b1") is not None


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_answer_is_relayed_and_warms_nothing(status: int) -> None:
    used = bench(FakeReply(status, b"{}"))
    await used.run()
    assert used.sink.status == status
    assert used.served == []
    assert used.results == {"client_error" if status < 500 else "failed": 1}


async def test_the_lease_lasts_until_the_body_has_ended() -> None:
    hold = asyncio.Event()
    reply = FakeReply(200, EVENT, hold, EVENT, headers=SSE_HEADERS)
    used = bench(reply)
    task = asyncio.create_task(used.run(stream=True))
    await reply.waiting.wait()
    assert dict(used.fleet.loads) == {"b1": 1, "b2": 0}
    hold.set()
    await task
    assert dict(used.fleet.loads) == {"b1": 0, "b2": 0}


async def test_connect_failures_go_elsewhere_and_avoid_who_is_unreachable() -> None:
    three = [backend("b1"), backend("b2"), backend("b3")]
    used = bench(REFUSED, REFUSED, FakeReply(200, b"{}"), backends=three)
    await used.run()
    assert sorted(used.transport.names) == ["b1", "b2", "b3"]
    assert (used.outcome.attempts, used.results) == (3, {"failed": 2, "ok": 1})


async def test_one_backend_is_tried_again_when_it_is_the_only_one() -> None:
    used = bench(REFUSED, FakeReply(200, b"{}"), backends=[backend("b1")])
    await used.run()
    assert used.transport.names == ["b1", "b1"]


async def test_giving_up_tells_the_client_and_keeps_the_cause_for_the_log() -> None:
    used = bench(REFUSED, REFUSED, REFUSED)
    with pytest.raises(UpstreamFailed):
        await used.run()
    assert used.outcome.ended is Ended.FAILED
    assert used.outcome.cause is Cause.REFUSED
    assert used.outcome.attempts == 3
    assert used.sink.status is None


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        (Cause.CONNECT_TIMEOUT, UpstreamTimeout),
        (Cause.POOL_FULL, Overloaded),
        (Cause.DNS, UpstreamFailed),
    ],
)
async def test_what_the_last_failure_becomes(cause: Cause, error: type[Exception]) -> None:
    used = bench(AttemptFailure(Stage.CONNECTING, cause))
    used.change(retry=RetryPolicy(max_attempts=1))
    with pytest.raises(error):
        await used.run()
    kind = "router_error" if cause is Cause.POOL_FULL else "failed"
    assert used.results == {kind: 1}


async def test_a_kept_connection_lost_is_replaced_under_the_same_attempt() -> None:
    used = bench(LOST, FakeReply(200, b"{}"))
    await used.run()
    assert [(name, fresh) for name, fresh, _ in used.transport.sent] == [
        ("b1", False),
        ("b1", True),
    ]
    assert (used.outcome.attempts, used.results) == (1, {"ok": 1})


async def test_it_is_replaced_once() -> None:
    used = bench(LOST, LOST, FakeReply(200, b"{}"))
    await used.run()
    assert [(name, fresh) for name, fresh, _ in used.transport.sent] == [
        ("b1", False),
        ("b1", True),
        ("b2", False),
    ]


async def test_replay_forbidden() -> None:
    used = bench(LOST, backends=[backend("b1", replay_allowed=False), backend("b2")])
    with pytest.raises(UpstreamFailed):
        await used.run()
    assert used.transport.names == ["b1"]


async def test_a_busy_answer_is_taken_from_its_connection_and_tried_elsewhere() -> None:
    busy = FakeReply(503, b"x", b"y")
    used = bench(busy, FakeReply(200, b"{}"))
    with nothing_left(used, busy):
        await used.run()
    assert busy.state.value == "complete"
    assert (used.transport.names, used.results) == (["b1", "b2"], {"busy": 1, "ok": 1})


async def test_an_unfinished_busy_answer_is_aborted() -> None:
    busy = FakeReply(503, b"x", asyncio.Event())
    used = bench(busy, FakeReply(200, b"{}"))
    await used.run()
    assert busy.state.value == "aborted"


async def test_nothing_is_tried_again_after_bytes_were_relayed() -> None:
    used = bench(FakeReply(200, EVENT, CUT, headers=SSE_HEADERS))
    await used.run(stream=True)
    assert used.outcome.ended is Ended.UPSTREAM_CUT
    assert used.sink.end == "closed"
    assert used.sink.pieces[0] == EVENT
    assert b'"code":"upstream_error"' in used.sink.pieces[1]
    assert used.results == {"failed": 1}


async def test_a_stream_that_breaks_before_its_first_event_is_a_clean_error() -> None:
    used = bench(FakeReply(200, b": ping\n\n", CUT, headers=SSE_HEADERS))
    with pytest.raises(UpstreamFailed):
        await used.run(stream=True)
    assert used.sink.status is None
    assert used.transport.names == ["b1"]


SHORT = Limits(total=0.05)


async def test_the_total_passes_while_the_head_is_awaited() -> None:
    used = bench(asyncio.Event())
    used.change(standard=SHORT)
    with nothing_left(used), pytest.raises(UpstreamTimeout):
        await used.run()
    assert (used.outcome.ended, used.outcome.cause) == (Ended.DEADLINE, Cause.TOTAL_TIMEOUT)
    assert used.results == {"failed": 1}


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        (Limits(total=5, first_byte=0.05), Cause.FIRST_BYTE_TIMEOUT),
        (Limits(total=0.05, first_byte=5), Cause.TOTAL_TIMEOUT),
    ],
)
async def test_first_byte_before_anything_is_relayed(limits: Limits, cause: Cause) -> None:
    reply = FakeReply(200, b": ping\n\n", asyncio.Event(), headers=SSE_HEADERS)
    used = bench(reply)
    used.change(streaming=limits)
    with nothing_left(used, reply), pytest.raises(UpstreamTimeout):
        await used.run(stream=True)
    assert used.outcome.cause is cause
    assert used.results == {"failed": 1}


async def test_chunk_interval_after_bytes_were_relayed() -> None:
    reply = FakeReply(200, EVENT, asyncio.Event(), headers=SSE_HEADERS)
    used = bench(reply)
    used.change(streaming=Limits(total=5, chunk_interval=0.05))
    with nothing_left(used, reply):
        await used.run(stream=True)
    assert (used.outcome.ended, used.outcome.cause) == (
        Ended.DEADLINE,
        Cause.CHUNK_INTERVAL_TIMEOUT,
    )
    assert b'"status":504' in used.sink.pieces[1]
    assert used.sink.end == "closed"


async def test_a_total_that_a_slow_client_uses_up_is_not_the_backends_fault() -> None:
    used = bench(FakeReply(200, EVENT, EVENT, headers=SSE_HEADERS))
    used.sink.blocked = asyncio.Event()
    used.sink.congested = True
    used.change(streaming=Limits(total=0.05, chunk_interval=0.01))
    await used.run(stream=True)
    assert used.sink.end == "cut"
    assert used.results == {"client_gone": 1}
    assert used.fleet.success_rate("b1") == 1.0


async def test_a_client_that_leaves_is_nobodys_failure() -> None:
    reply = FakeReply(200, EVENT, EVENT, headers=SSE_HEADERS)
    used = bench(reply)
    used.sink.gone_after = 1
    with nothing_left(used, reply), pytest.raises(ClientGone):
        await used.run(stream=True)
    assert used.results == {"client_gone": 1}
    assert used.fleet.success_rate("b1") == 1.0


async def test_an_unknown_model() -> None:
    used = bench()
    with pytest.raises(ModelNotFound):
        await used.run(model="other")
    assert used.results == {}


async def test_no_backend_at_all() -> None:
    used = bench(backends=[backend("b1", enabled=False), backend("b2", internal=True)])
    with pytest.raises(NoBackend):
        await used.run()


async def test_untried_backends_are_preferred_when_asked() -> None:
    busy = [FakeReply(503, b"x") for _ in range(3)]
    three = [backend("b1"), backend("b2"), backend("b3")]
    used = bench(*busy, backends=three)
    used.change(retry=RetryPolicy(initial_delay=0.001, prefer_untried_backends=True))
    await used.run()
    assert sorted(used.transport.names) == ["b1", "b2", "b3"]
    assert used.sink.status == 503


async def test_the_error_event_of_the_last_try_reaches_the_client_as_a_status() -> None:
    def broken() -> FakeReply:
        return FakeReply(200, b'data: {"error":{"code":503}}\n\n', headers=SSE_HEADERS)

    used = bench(broken(), broken(), broken())
    await used.run(stream=True)
    assert (used.sink.status, used.sink.body) == (503, b'{"error":{"code":503}}')
    assert used.results == {"busy": 3}
    assert used.served == []
