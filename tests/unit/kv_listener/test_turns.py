import asyncio

import pytest

from continuum_kv_listener.turns import MOST_TURNS, TURN_SECONDS, Turns


@pytest.mark.parametrize(
    ("took", "given"),
    [(0.0, 0), (0.9, 0), (1.0, 1), (4.5, 4), (1000.0, MOST_TURNS)],
)
async def test_as_many_turns_are_given_as_were_taken(took, given):
    now = 10.0
    turns = Turns(lambda: now)
    others = 0

    async def other():
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(other())
    await asyncio.sleep(0)
    others = 0
    now += took * TURN_SECONDS + 1e-9
    assert await turns.breathe() is (given > 0)
    assert others == given
    assert await turns.breathe() is False
    task.cancel()


async def test_waiting_is_no_work():
    now = 0.0
    turns = Turns(lambda: now)
    now = 100.0
    turns.begin()
    assert await turns.breathe() is False
