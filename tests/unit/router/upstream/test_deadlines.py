"""Which limit is armed when, on a real loop with short limits."""

import asyncio

import pytest

from continuum_router.errors import Cause
from continuum_router.upstream.deadlines import Deadlines, Limit, Limits
from support.virtual_time import now, on_virtual_time

SHORT, LONG = 0.03, 5.0


async def _passes(deadlines: Deadlines) -> Limit:
    with pytest.raises(TimeoutError):
        async with deadlines:
            await asyncio.sleep(1)
    assert deadlines.expired
    return deadlines.armed


async def test_total() -> None:
    deadlines = Deadlines(Limits(total=SHORT))
    assert await _passes(deadlines) is Limit.TOTAL
    assert not deadlines.backend_owes


@pytest.mark.parametrize("kind", ["first", "chunk"])
async def test_the_armed_limit_ends_the_wait(kind: str) -> None:
    limits = Limits(total=LONG, first_byte=SHORT, chunk_interval=SHORT)
    deadlines = Deadlines(limits)
    with pytest.raises(TimeoutError):
        async with deadlines:
            deadlines.await_first() if kind == "first" else deadlines.await_chunk()
            await asyncio.sleep(1)
    assert deadlines.backend_owes
    assert deadlines.armed is (Limit.FIRST_BYTE if kind == "first" else Limit.CHUNK_INTERVAL)


async def test_a_limit_beyond_the_total_is_the_total() -> None:
    deadlines = Deadlines(Limits(total=SHORT, first_byte=LONG))
    with pytest.raises(TimeoutError):
        async with deadlines:
            deadlines.await_first()
            assert deadlines.backend_owes
            await asyncio.sleep(1)
    assert deadlines.armed is Limit.TOTAL


@pytest.mark.parametrize("none", [None, 0.0])
async def test_no_limit_leaves_the_total(none: float | None) -> None:
    deadlines = Deadlines(Limits(total=LONG, first_byte=none, chunk_interval=none))
    async with deadlines:
        deadlines.await_chunk()
        assert deadlines.armed is Limit.TOTAL
        deadlines.await_first()
        assert deadlines.armed is Limit.TOTAL


async def test_each_chunk_gives_new_time_and_the_client_has_as_much_as_it_wants() -> None:
    deadlines = Deadlines(Limits(total=LONG, chunk_interval=SHORT))
    async with deadlines:
        for _ in range(4):
            deadlines.await_chunk()
            await asyncio.sleep(SHORT * 0.6)
        deadlines.await_nothing()
        await asyncio.sleep(SHORT * 3)
    assert not deadlines.expired


async def test_what_is_no_data_event_gives_no_new_time() -> None:
    deadlines = Deadlines(Limits(total=LONG, first_byte=SHORT * 2))
    with pytest.raises(TimeoutError):
        async with deadlines:
            deadlines.await_first()
            for _ in range(100):
                await asyncio.sleep(SHORT * 0.5)
                deadlines.await_nothing()
                deadlines.still_await_first()
    assert deadlines.armed is Limit.FIRST_BYTE


async def test_a_new_attempt_gets_its_own_first_byte() -> None:
    deadlines = Deadlines(Limits(total=LONG, first_byte=SHORT * 2))
    async with deadlines:
        for _ in range(3):
            deadlines.await_first()
            await asyncio.sleep(SHORT)
    assert not deadlines.expired


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def work() -> None:
        async with Deadlines(Limits(total=LONG)):
            await asyncio.sleep(1)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_is_a_cancellation() -> None:
    async def work() -> None:
        async with Deadlines(Limits(total=SHORT)):
            try:
                await asyncio.sleep(1)
            finally:
                task.cancel()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_inside_is_passed_on_and_the_task_is_clean() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with Deadlines(Limits(total=LONG)):
            raise ValueError("mine")
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


@on_virtual_time
async def test_time_that_has_passed_already_counts() -> None:
    with pytest.raises(TimeoutError):
        async with Deadlines(Limits(total=10.0), spent=4.0):
            await asyncio.sleep(60)
    assert now() == 6.0
    for spent, left in ((1.0, 2.0), (9.0, 0.0)):
        start = now()
        deadlines = Deadlines(Limits(total=60.0, first_byte=3.0))
        with pytest.raises(TimeoutError):
            async with deadlines:
                deadlines.await_first(spent=spent)
                await asyncio.sleep(50)
        assert deadlines.armed is Limit.FIRST_BYTE
        assert round(now() - start, 6) == left


async def test_time_left_counts_down() -> None:
    deadlines = Deadlines(Limits(total=10.0))
    assert 9.5 < deadlines.time_left <= 10.0


def test_causes() -> None:
    assert [limit.cause for limit in Limit] == [
        Cause.FIRST_BYTE_TIMEOUT,
        Cause.CHUNK_INTERVAL_TIMEOUT,
        Cause.TOTAL_TIMEOUT,
    ]


async def _forgiven(deadlines: Deadlines) -> bool:
    """Wait until a limit passes, then try to go on."""
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        return deadlines.forgive()
    raise AssertionError("no limit has passed")


async def test_a_limit_that_is_forgiven_leaves_the_total() -> None:
    deadlines = Deadlines(Limits(total=3 * SHORT, first_byte=SHORT))
    with pytest.raises(TimeoutError):
        async with deadlines:
            for _ in range(2):
                deadlines.await_first()
                assert await _forgiven(deadlines)
                assert not deadlines.expired
            deadlines.await_first()
            await asyncio.sleep(1)
    assert deadlines.armed is Limit.TOTAL
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_total_is_not_forgiven() -> None:
    deadlines = Deadlines(Limits(total=SHORT))
    with pytest.raises(TimeoutError):
        async with deadlines:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                assert not deadlines.forgive()
                raise


async def test_nothing_to_forgive() -> None:
    deadlines = Deadlines(Limits(total=LONG))
    async with deadlines:
        assert not deadlines.forgive()


async def test_other_limits_and_the_same_end() -> None:
    deadlines = Deadlines(Limits(total=LONG, first_byte=LONG))
    end = deadlines.time_left
    deadlines.change(Limits(total=99 * LONG, first_byte=SHORT))
    deadlines.await_first()
    assert deadlines.armed is Limit.FIRST_BYTE
    assert deadlines.time_left <= end
