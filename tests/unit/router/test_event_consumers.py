"""Consumers follow the configuration: what is as before is left alone."""

import asyncio
import random

from aiohttp import web

from continuum_router.backends.holding import Tier
from continuum_router.event_consumers import EventConsumers
from continuum_router.kv_index.consumer import ConsumerMetrics
from continuum_router.kv_index.index import MemoryKvIndex
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from continuum_shared.tasks import Supervisor
from support.edge import edge_config
from support.feeds import SseServer, stream

KEY = PrefixKey(bytes(32))


def config(*sources: str, more: str = ""):  # type: ignore[no-untyped-def]
    listed = ", ".join(sources)
    kv = f"kv_cache_index: {{enabled: true, event_sources: [{listed}]}}"
    return edge_config(
        ["http://h:1", "http://h:2"], f"prefix_routing: {{enabled: true{more}}}\n{kv}"
    )


async def test_start_keep_change_and_end() -> None:
    index, supervisor = MemoryKvIndex(max_entries=100, ttl=60.0), Supervisor("test")
    consumers = EventConsumers(
        index, ConsumerMetrics(Metrics()), supervisor, clock=lambda: 0.0, rng=random.Random(1)
    )

    async def serve(request: web.Request) -> web.StreamResponse:
        response = await stream(request, b": hello\n\n")
        await asyncio.sleep(60)
        return response

    async def asked(server: SseServer, count: int) -> None:
        async with asyncio.timeout(3):
            while len(server.requests) < count:
                await asyncio.sleep(0.01)

    async with SseServer(serve) as one, SseServer(serve) as two:
        first = f"{{backend_name: b1, endpoint: '{one.url}'}}"
        second = f"{{backend_name: b2, endpoint: '{two.url}'}}"
        await consumers.adopt(config(first, second))
        await asked(one, 1)
        await asked(two, 1)
        assert supervisor.names() == ["kv-events:b1", "kv-events:b2"]
        for name in ("b1", "b2"):
            index.set(name, KEY, 5, Tier.GPU_HOT, 0.0)

        await consumers.adopt(config(second, first))
        assert supervisor.names() == ["kv-events:b1", "kv-events:b2"]
        assert (len(one.requests), len(two.requests)) == (1, 1)

        await consumers.adopt(config(f"{{backend_name: b1, endpoint: '{two.url}'}}"))
        await asked(two, 2)
        assert supervisor.names() == ["kv-events:b1"]
        assert "b2" not in index.holdings(KEY, 0.0), "what its source had told is gone"

        await consumers.adopt(config(more=", max_prefix_length: 99"))
        assert supervisor.names() == []
    await supervisor.stop()
    await consumers.close()


async def test_without_an_index_there_are_none() -> None:
    supervisor = Supervisor("test")
    consumers = EventConsumers(
        MemoryKvIndex(max_entries=100, ttl=60.0),
        None,
        supervisor,
        clock=lambda: 0.0,
        rng=random.Random(1),
    )
    await consumers.adopt(config("{backend_name: b1, endpoint: 'http://h:1/events/b1'}"))
    assert supervisor.names() == []
    await consumers.close()
