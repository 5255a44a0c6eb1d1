import asyncio

import pytest

from continuum_router.backends.holding import Tier
from continuum_router.kv_index.index import MemoryKvIndex
from continuum_router.kv_index.sweep import sweep
from support.backends import prefix


async def test_expired_entries_go_without_a_lookup():
    index = MemoryKvIndex(max_entries=100, ttl=10.0)
    index.set("a", prefix("p"), 1, Tier.GPU_HOT, 0.0)
    now = 0.0
    counts = []

    async def sleep(seconds):
        nonlocal now
        assert seconds == 4.0
        counts.append(index.stats().entry_count)
        now += seconds
        if now > 16:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await sweep(index, lambda: now, interval=4.0, sleep=sleep)
    # looked at 4, 8 and 12 seconds
    assert counts == [1, 1, 1, 0, 0]
