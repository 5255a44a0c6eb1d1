"""User report O1: one dead provider blocks the model list on each call; UIs show an empty list."""

import asyncio
import time

from support.edge import edge_config, running
from support.scripted_backend import Peer, reply, scripted

LIST = b'{"object":"list","data":[{"id":"found","object":"model","created":3,"owned_by":"vllm"}]}'


async def test_o1_a_blackholed_backend_neither_delays_the_list_nor_empties_it() -> None:
    hole = asyncio.Event()
    swallowed = asyncio.Event()

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            if hole.is_set():
                swallowed.set()
                await peer.until_client_leaves()
                return
            await peer.send(reply(LIST))

    async with scripted(script) as backend:
        entry = f"backends: [{{name: b1, url: '{backend.url}'}}]"
        more = (
            "model_aggregation: {cache_ttl: 200ms, request_timeout: 100ms, max_retries: 0, "
            "background_refresh: {check_interval: 50ms}}\nhealth_checks: {enabled: false}"
        )
        async with running(edge_config(entry, more)) as edge:
            assert (await edge.post({}, path="/v1/models/refresh")).status == 200
            hole.set()
            await asyncio.wait_for(swallowed.wait(), 5)
            slowest = 0.0
            until = time.monotonic() + 0.8
            while time.monotonic() < until:
                before = time.monotonic()
                data = (await edge.get("/v1/models")).json["data"]
                slowest = max(slowest, time.monotonic() - before)
                assert isinstance(data, list)
                assert [entry["id"] for entry in data] == ["found"]
                await asyncio.sleep(0.02)
            assert slowest < 0.05
            assert edge.sample("model_transient_errors_total", backend="b1") >= 1
