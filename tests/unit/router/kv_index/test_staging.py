import asyncio

from continuum_router.backends.holding import Tier
from continuum_router.kv_index.staging import Staging
from support.backends import prefix

HOT, WARM = Tier.GPU_HOT, Tier.STORAGE_WARM
P, Q = prefix("p"), prefix("q")


async def test_it_is_complete_with_the_announced_number_of_records():
    staging = Staging(3, 60.0, lambda: None)
    assert staging.put(P, 5, HOT) is False
    assert staging.skip() is False
    assert staging.put(Q, None, WARM) is True
    assert staging.records == {P: (5, HOT), Q: (None, WARM)}
    staging.close()


async def test_a_prefix_that_is_gone_again_is_not_kept():
    staging = Staging(9, 60.0, lambda: None)
    staging.put(P, 5, HOT)
    assert staging.tier(P) is HOT
    staging.put(P, None, None)
    staging.put(Q, None, None)
    assert staging.tier(P) is None
    assert staging.records == {}
    staging.close()


async def test_an_absent_count_keeps_the_one_before():
    staging = Staging(9, 60.0, lambda: None)
    staging.put(P, 5, HOT)
    staging.put(P, None, WARM)
    assert staging.records == {P: (5, WARM)}
    staging.close()


async def test_it_gives_up_when_records_are_missing():
    gave_up = asyncio.Event()
    staging = Staging(2, 0.0, gave_up.set)
    staging.put(P, 5, HOT)
    await asyncio.wait_for(gave_up.wait(), 5)


async def test_closed_it_does_not_give_up():
    gave_up = asyncio.Event()
    Staging(2, 0.0, gave_up.set).close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not gave_up.is_set()
