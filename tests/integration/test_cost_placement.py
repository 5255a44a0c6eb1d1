"""Cost mode through the router, both ways in: it needs no event source, and believes one."""

import asyncio
from collections import Counter

from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import KeyTag, KeyText, derive
from support.edge import edge_config, running
from support.scripted_backend import answers, reply, scripted
from support.sse_listener import applied, listening

SYSTEM = "You are a helpful assistant. " * 80
KEY = derive("m", KeyText(tag=KeyTag.SYSTEM, text=SYSTEM), 1024)
DECISIONS = "continuum_kv_index_routing_decisions_total"
ANSWER = (
    b'{"id":"x","object":"chat.completion","choices":[],"usage":{"prompt_tokens":900,'
    b'"completion_tokens":1,"total_tokens":901,"prompt_tokens_details":{"cached_tokens":0}}}'
)


def more(rest: str = "") -> str:
    return f"""
kv_cache_index: {{enabled: true, scoring: {{mode: cost}}{rest}}}
"""


def body(session: int, turns: int) -> dict[str, object]:
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{session}/{turn} " + "word " * 300})
        messages.append({"role": "assistant", "content": "answer " * 100})
    messages.append({"role": "user", "content": "and now?"})
    return {"model": "m", "messages": messages}


async def test_conversations_stay_where_they_are_without_any_event() -> None:
    async with (
        scripted(answers(reply(ANSWER))) as one,
        scripted(answers(reply(ANSWER))) as two,
        running(edge_config([one.url, two.url], more())) as edge,
    ):
        first = await edge.post(body(0, 1))
        assert first.headers["x-continuum-route"].startswith("least_work; wait=0; own=")
        assert edge.sample(DECISIONS, decision="fallback", tier="none") == 1
        home = first.headers["x-continuum-backend"]
        for turns in range(2, 6):
            answer = await edge.post(body(0, turns))
            assert answer.headers["x-continuum-backend"] == home
            assert answer.headers["x-continuum-route"].startswith("kv_aware; tier=gpu_hot; score=")
        assert edge.sample(DECISIONS, decision="kv_aware", tier="gpu_hot") == 4
        assert edge.sample("continuum_kv_index_overlap_score_count") == 4
        await edge.settled()
        lanes = edge.router.state.routing.ledger
        assert [(len(lanes.lane(n)), lanes.lane(n).context) for n in ("b1", "b2")] == [(0, 0)] * 2
        # usage has taught that 900 tokens are what the last prompt had
        assert edge.router.state.routing.cost._ratios.ratio("m") != 0.25


async def test_a_burst_spreads() -> None:
    async with (
        scripted(answers(reply(ANSWER), delay=0.2)) as one,
        scripted(answers(reply(ANSWER), delay=0.2)) as two,
        running(edge_config([one.url, two.url], more())) as edge,
    ):
        found = await asyncio.gather(*(edge.post(body(0, 1)) for _ in range(16)))
        spread = Counter(answer.headers["x-continuum-backend"] for answer in found)
        assert len(spread) == 2
        assert min(spread.values()) >= 5


async def test_an_evicted_prefix_is_believed() -> None:
    async with (
        scripted(answers(reply(ANSWER))) as one,
        scripted(answers(reply(ANSWER))) as two,
        listening("b1", "b2") as listener,
    ):
        sources = ", ".join(
            f"{{backend_name: {name}, endpoint: '{listener.url}/events/{name}'}}"
            for name in ("b1", "b2")
        )
        config = edge_config([one.url, two.url], more(f", event_sources: [{sources}]"))
        async with running(config) as edge:
            home = (await edge.post(body(0, 1))).headers["x-continuum-backend"]
            again = await edge.post(body(0, 1))
            assert again.headers["x-continuum-route"].startswith("kv_aware")
            listener.say(home, KvEvent(action=KvAction.CREATED, prefix=KEY, tokens=900), 1)
            listener.say(home, KvEvent(action=KvAction.EVICTED, prefix=KEY), 2)
            await applied(edge, home, KvAction.EVICTED)
            after = await edge.post(body(0, 1))
            assert after.headers["x-continuum-route"].startswith("least_work; wait=0; own=")


async def test_a_prompt_of_more_than_a_mebibyte_is_placed_by_what_is_held() -> None:
    async with (
        scripted(answers(reply(ANSWER))) as one,
        scripted(answers(reply(ANSWER))) as two,
        running(edge_config([one.url, two.url], more())) as edge,
    ):
        long = body(0, 1)
        long["messages"][0]["content"] = "x" * (1 << 20)
        first = await edge.post(long)
        again = await edge.post(long)
        assert again.headers["x-continuum-backend"] == first.headers["x-continuum-backend"]
        assert again.headers["x-continuum-route"].startswith("kv_aware")


async def test_a_dead_backend_costs_no_request_and_holds_nothing() -> None:
    async with (
        scripted(answers(reply(ANSWER))) as two,
        running(
            edge_config(["http://127.0.0.1:1", two.url], more() + "retry: {initial_delay: 5ms}")
        ) as edge,
    ):
        for session in range(8):
            answer = await edge.post(body(session, 1))
            assert (answer.status, answer.headers["x-continuum-backend"]) == (200, "b2")
        names = edge.router.state.kv.pieces.names()
        counted = [
            edge.router.state.kv.pieces._shelves[name].count() for name in names if name == "b1"
        ]
        assert sum(counted) == 0
