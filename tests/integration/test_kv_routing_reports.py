"""What users of other KV-aware routers met, the router's half: rows K4, K16, K17 and K18.

The index alone under two million prefixes is in tests/unit/router/kv_index/test_index.py.
"""

import itertools
import time

import pytest

from continuum_router.backends.holding import Tier
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import KeyTag, KeyText, PrefixKey, derive
from support.edge import Edge, edge_config, running
from support.scripted_backend import answers, reply, scripted
from support.sse_listener import Listener, applied, listening

SOURCES = ("b1", "b2")
DECISIONS = "continuum_kv_index_routing_decisions_total"


def key(system: str) -> PrefixKey:
    return derive("m", KeyText(tag=KeyTag.SYSTEM, text=system), 1024)


def body(system: str) -> dict[str, object]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "And now?"}]
    return {"model": "m", "messages": messages}


def config(listener: Listener, *sources: str, **index: object) -> str:
    rows = "".join(
        f"\n    - {{backend_name: {name}, endpoint: '{listener.url}/events/{name}'}}"
        for name in sources or SOURCES
    )
    values = "".join(f"\n  {name}: {value}" for name, value in index.items())
    return f"""
selection_strategy: RoundRobin
prefix_routing: {{enabled: true}}
kv_cache_index:
  enabled: true{values}
  event_sources:{rows}
"""


def created(system: str, tokens: int) -> KvEvent:
    return KvEvent(action=KvAction.CREATED, prefix=key(system), tokens=tokens)


async def route(edge: Edge, system: str) -> tuple[str, str]:
    """Which backend answered, and which way of choosing it."""
    answer = await edge.post(body(system))
    assert answer.status == 200
    way = answer.headers["x-continuum-route"].partition(";")[0]
    return answer.headers["x-continuum-backend"], way


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after further stores"])
async def test_k4_a_cleared_engine_loses_all_its_prefixes_and_no_other_does(late: bool) -> None:
    """User report K4: what the listener makes of AllBlocksCleared is one record, and it is enough.

    ``late``: an idle engine tells it when it next does something, after others have moved on.
    """
    async with (
        scripted(answers(reply())) as one,
        scripted(answers(reply())) as two,
        listening(*SOURCES) as listener,
        running(edge_config([one.url, two.url], config(listener))) as edge,
    ):
        only, shared, other = "only b2 has it", "both have it", "only b1 has it"
        listener.say("b2", created(only, 256), 1)
        listener.say("b2", created(shared, 512), 2)
        listener.say("b1", created(shared, 400), 1)
        listener.say("b1", created(other, 64), 2)
        await applied(edge, "b2", KvAction.CREATED, 2)
        await applied(edge, "b1", KvAction.CREATED, 2)
        assert await route(edge, only) == ("b2", "kv_aware")
        assert await route(edge, shared) == ("b2", "kv_aware")
        assert edge.sample("continuum_kv_index_entries") == 4
        if late:
            listener.say("b1", created("another", 32), 3)
            await applied(edge, "b1", KvAction.CREATED, 3)

        listener.say("b2", KvEvent(action=KvAction.PURGED), 3)
        await applied(edge, "b2", KvAction.PURGED)
        assert edge.sample("continuum_kv_index_entries") == 2 + late
        assert await route(edge, shared) == ("b1", "kv_aware")
        assert await route(edge, other) == ("b1", "kv_aware")
        assert {await route(edge, only) for _ in range(4)} == {
            ("b1", "round_robin"),
            ("b2", "round_robin"),
        }
        listener.say("b2", created(only, 256), 4)
        await applied(edge, "b2", KvAction.CREATED, 3)
        assert await route(edge, only) == ("b2", "kv_aware")


async def test_k16_an_entry_of_a_backend_that_is_none_costs_no_request() -> None:
    """User report K16: the index may name whom it likes; only candidates are looked at."""
    prompt = "held by a stranger"
    async with (
        scripted(answers(reply())) as one,
        scripted(answers(reply())) as two,
        listening(*SOURCES) as listener,
        running(edge_config([one.url, two.url], config(listener))) as edge,
    ):
        edge.router.state.kv.set("gone", key(prompt), 9999, Tier.GPU_HOT, time.monotonic())
        assert {await route(edge, prompt) for _ in range(4)} == {
            ("b1", "round_robin"),
            ("b2", "round_robin"),
        }
        listener.say("b1", created(prompt, 16), 1)
        await applied(edge, "b1", KvAction.CREATED)
        answer = await edge.post(body(prompt))
        assert answer.headers["x-continuum-route"] == "kv_aware; tier=gpu_hot; score=1.000; held=16"


@pytest.mark.parametrize(
    "order", list(itertools.permutations([("b1", 64), ("b2", 512), ("b3", 256)]))
)
async def test_k17_the_longest_match_wins_in_whatever_order_it_was_told(order) -> None:
    """User report K17."""
    prompt, names = "three have it", ("b1", "b2", "b3")
    async with (
        scripted(answers(reply())) as one,
        scripted(answers(reply())) as two,
        scripted(answers(reply())) as three,
        listening(*names) as listener,
        running(edge_config([one.url, two.url, three.url], config(listener, *names))) as edge,
    ):
        for name, tokens in order:
            listener.say(name, created(prompt, tokens), 1)
            await applied(edge, name, KvAction.CREATED)
        answer = await edge.post(body(prompt))
        assert answer.headers["x-continuum-backend"] == "b2"
        assert answer.headers["x-continuum-route"].endswith("held=512")


async def test_k18_a_router_keeps_to_its_cap_whatever_is_told() -> None:
    """User report K18, over real streams: 10,000 prefixes told, 1,000 kept, the newest in force."""
    async with (
        scripted(answers(reply())) as one,
        scripted(answers(reply())) as two,
        listening(*SOURCES) as listener,
        running(edge_config([one.url, two.url], config(listener, max_entries=1000))) as edge,
    ):
        for number in range(1, 5001):
            for name in SOURCES:
                listener.say(name, created(f"{name} {number}", 64), number)
        for name in SOURCES:
            await applied(edge, name, KvAction.CREATED, 5000)
        assert 900 <= edge.sample("continuum_kv_index_prefixes") <= 1000
        assert edge.sample("continuum_kv_index_evictions_total") >= 9000
        assert await route(edge, "b1 5000") == ("b1", "kv_aware")
        assert (await route(edge, "b1 1"))[1] == "round_robin"
