"""One timer for the limits of all requests."""

import asyncio

from continuum_router.api.deadline_sweep import SWEEP_SECONDS, DeadlineSweep
from support.virtual_time import now, on_virtual_time


class Call:
    def __init__(self, due: float, sweep: DeadlineSweep | None = None) -> None:
        self.due = due
        self.sweep = sweep
        self.expired: list[float] = []

    def expire(self, at: float) -> None:
        self.expired.append(round(at, 6))
        if self.sweep is not None:
            self.sweep.drop(self)
        else:
            self.due = at + 100.0


def new_sweep() -> DeadlineSweep:
    return DeadlineSweep(asyncio.get_running_loop().time)


@on_virtual_time
async def test_a_limit_is_noticed_at_its_time() -> None:
    sweep = new_sweep()
    call = Call(1.1, sweep)
    sweep.add(call)
    await asyncio.sleep(5)
    assert len(call.expired) == 1
    assert 1.1 <= call.expired[0] <= 1.1 + SWEEP_SECONDS
    assert len(sweep) == 0


@on_virtual_time
async def test_a_short_limit_does_not_wait_for_the_next_look() -> None:
    sweep = new_sweep()
    long, short = Call(60.0), Call(0.05)
    sweep.add(long)
    sweep.add(short)
    await asyncio.sleep(0.06)
    assert short.expired == [0.05]
    sweep.close()


@on_virtual_time
async def test_a_limit_that_moves_on_does_not_pass() -> None:
    sweep = new_sweep()
    call = Call(0.5)
    sweep.add(call)
    for _ in range(20):
        await asyncio.sleep(0.2)
        call.due = now() + 0.5
    assert call.expired == []
    await asyncio.sleep(1)
    assert len(call.expired) == 1
    sweep.close()


@on_virtual_time
async def test_what_is_dropped_is_not_looked_at_and_nobody_wakes_for_nothing() -> None:
    sweep = new_sweep()
    call = Call(0.3)
    sweep.add(call)
    sweep.drop(call)
    sweep.drop(call)
    await asyncio.sleep(2)
    assert call.expired == []
    later = Call(now() + 0.1, sweep)
    sweep.add(later)
    await asyncio.sleep(1)
    assert len(later.expired) == 1


@on_virtual_time
async def test_closing_ends_it() -> None:
    sweep = new_sweep()
    call = Call(0.1)
    sweep.add(call)
    sweep.close()
    await asyncio.sleep(1)
    assert (call.expired, len(sweep)) == ([], 0)
