"""Another model when a model's tries are used up (J11): when, with what body, and when not."""

import asyncio
from dataclasses import replace

import orjson
import pytest

from continuum_router.backends.holding import Holding, Tier
from continuum_router.errors import (
    AttemptFailure,
    Cause,
    ModelNotFound,
    Stage,
    UpstreamFailed,
    UpstreamTimeout,
)
from continuum_router.upstream.call_limits import CallLimits
from continuum_router.upstream.deadlines import Limits
from continuum_router.upstream.outcome import Ended
from continuum_router.upstream.retry import RetryPolicy
from support.dispatch import SSE_HEADERS, Answer, Bench, FakeReply, backend, bench, chat
from support.virtual_time import now, on_virtual_time

REFUSED = AttemptFailure(Stage.CONNECTING, Cause.REFUSED)
RESET = AttemptFailure(Stage.AWAITING_HEAD, Cause.RESET)
HALF_HEAD = AttemptFailure(Stage.AWAITING_HEAD, Cause.CUT, began=True)
CUT = AttemptFailure(Stage.STREAMING, Cause.CUT)
EVENT = b'data: {"a":1}\n\n'


def _two(*answers: Answer, chain: tuple[str, ...] = ("n",), **policy: object) -> Bench:
    """b1 serves m, b2 serves n and o; m falls back along `chain`."""
    members = [backend("b1"), backend("b2", models=frozenset({"n", "o"}))]
    used = bench(*answers, backends=members)
    used.change(
        fallbacks={"m": chain},
        retry=RetryPolicy(initial_delay=0.0, **policy),  # type: ignore[arg-type]
    )
    return used


def _models(used: Bench) -> list[str]:
    return [orjson.loads(request.body)["model"] for _, _, request in used.transport.sent]


@pytest.mark.parametrize("failure", [REFUSED, RESET], ids=["refused", "reset"])
async def test_after_the_models_tries_the_next_one_is_asked(failure: AttemptFailure) -> None:
    used = _two(failure, failure, failure, FakeReply(200, b"{}"))
    await used.run()
    assert (used.sink.status, _models(used)) == (200, ["m", "m", "m", "n"])
    assert used.transport.names == ["b1", "b1", "b1", "b2"]
    outcome = used.outcome
    assert (outcome.model_used, outcome.attempts, outcome.backend) == ("n", 4, "b2")
    assert used.served == [("b2", bytes(chat(model="n").prefix or b""))]


async def test_the_next_model_has_tries_of_its_own() -> None:
    used = _two(*[RESET] * 6, chain=("n", "o"), max_attempts=2)
    with pytest.raises(UpstreamFailed):
        await used.run()
    assert _models(used) == ["m", "m", "n", "n", "o", "o"]
    assert used.outcome.model_used == "o"


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (429, 3), (500, 1), (501, 1), (408, 1)])
async def test_a_failed_answer_counts_too(status: int, tries: int) -> None:
    """Statuses worth a retry after all tries, other failures of a backend at once."""
    used = _two(*[FakeReply(status, b"x") for _ in range(tries)], FakeReply(200, b"{}"))
    await used.run(stream=True)
    assert (used.sink.status, _models(used)) == (200, ["m"] * tries + ["n"])


async def test_the_last_models_failed_answer_is_passed_on() -> None:
    used = _two(FakeReply(500, b"one"), FakeReply(500, b"two"))
    await used.run()
    assert (used.sink.status, used.sink.body) == (500, b"two")


async def test_an_error_as_first_event_counts_as_its_status() -> None:
    broken = FakeReply(200, b'data: {"error":{"code":500}}\n\n', headers=SSE_HEADERS)
    used = _two(broken, FakeReply(200, EVENT, headers=SSE_HEADERS))
    await used.run(stream=True)
    assert (used.sink.status, used.sink.body, _models(used)) == (200, EVENT, ["m", "n"])


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_clients_mistake_is_no_reason(status: int) -> None:
    used = _two(FakeReply(status, b"{}"))
    await used.run()
    assert (used.sink.status, _models(used)) == (status, ["m"])


async def test_a_long_retry_after_is_a_reason() -> None:
    busy = FakeReply(429, b"x", headers=(("Retry-After", "99"),))
    used = _two(busy, FakeReply(200, b"{}"))
    await used.run()
    assert _models(used) == ["m", "n"]


@pytest.mark.parametrize("failure", [HALF_HEAD, CUT], ids=["half a head", "cut"])
async def test_an_answer_that_broke_after_it_began_is_no_reason(failure: AttemptFailure) -> None:
    used = _two(FakeReply(200, b"{", failure) if failure is CUT else failure)
    with pytest.raises(UpstreamFailed):
        await used.run()
    assert _models(used) == ["m"]


async def test_nor_is_anything_after_bytes_were_relayed() -> None:
    used = _two(FakeReply(200, EVENT, CUT, headers=SSE_HEADERS))
    await used.run(stream=True)
    assert _models(used) == ["m"]
    assert b"upstream_error" in used.sink.body


async def test_an_empty_budget_ends_it() -> None:
    used = _two(RESET)
    for _ in range(10):
        assert used.dispatcher.state.budget.take(RetryPolicy().budget, asyncio_now())
    with pytest.raises(UpstreamFailed):
        await used.run()
    assert _models(used) == ["m"]


def asyncio_now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_model_without_backends_goes_straight_to_the_next_that_has_some() -> None:
    used = _two(FakeReply(200, b"{}"))
    used.change(fallbacks={"x": ("nobody", "n")})
    await used.run(model="x")
    assert (_models(used), used.outcome.model_used, used.outcome.attempts) == (["n"], "n", 1)


async def test_a_chain_that_nobody_serves_is_a_model_that_is_not_found() -> None:
    used = _two()
    used.change(fallbacks={"x": ("y", "z")})
    with pytest.raises(ModelNotFound):
        await used.run(model="x")


async def test_a_chain_is_not_followed_from_model_to_model() -> None:
    used = _two(RESET, RESET, max_attempts=1)
    used.change(fallbacks={"m": ("n",), "n": ("o",)})
    with pytest.raises(UpstreamFailed):
        await used.run()
    assert _models(used) == ["m", "n"]


async def test_the_index_is_asked_for_the_next_models_key() -> None:
    used = _two(RESET, FakeReply(200, b"{}"), max_attempts=1)
    asked: list[bytes] = []

    def holdings(prefix: bytes, _now: float) -> dict[str, Holding]:
        asked.append(prefix)
        return {"b2": Holding(tokens=16, tier=Tier.GPU_HOT)}

    used.change(state=replace(used.dispatcher.state, holdings=holdings))
    await used.run(holdings={})
    assert asked == [chat(model="n").prefix]


@on_virtual_time
async def test_each_model_has_its_own_first_byte_under_one_total() -> None:
    used = _two(asyncio.Event(), asyncio.Event(), max_attempts=1, on_timeout=True)
    plain = Limits(total=9.0)
    used.change(
        streaming=Limits(total=100.0, first_byte=20.0),
        model_limits={
            "n": CallLimits(
                standard=plain,
                streaming=Limits(total=999.0, first_byte=70.0),
                image_generation=plain,
            )
        },
    )
    with pytest.raises(UpstreamTimeout):
        await used.run(stream=True)
    assert (_models(used), now()) == (["m", "n"], 90.0)
    assert used.outcome.ended is Ended.DEADLINE


@on_virtual_time
async def test_a_total_that_has_passed_leaves_no_time_for_another_model() -> None:
    used = _two(asyncio.Event())
    with pytest.raises(UpstreamTimeout):
        await used.run()
    assert (_models(used), now()) == (["m"], 5.0)
