"""The task that drops expired entries which no lookup meets."""

import asyncio
from collections.abc import Awaitable, Callable

from continuum_router.kv_index.index import KvIndex

SWEEP_INTERVAL = 1.0


async def sweep(
    index: KvIndex,
    clock: Callable[[], float],
    *,
    interval: float = SWEEP_INTERVAL,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Expire a bounded part of ``index`` every ``interval`` seconds, for ever.

    ``clock`` must be the one whose times the index was given.
    """
    while True:
        await sleep(interval)
        index.expire(clock())
