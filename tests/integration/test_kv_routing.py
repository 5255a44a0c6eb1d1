"""Events in, KV-aware routing out: the router's half of the main job, over a real event stream."""

from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import KeyTag, KeyText, derive
from support.edge import edge_config, running
from support.scripted_backend import answers, reply, scripted
from support.sse_listener import Listener, applied, listening

SYSTEM = "You are a helpful assistant."
KEY = derive("m", KeyText(tag=KeyTag.SYSTEM, text=SYSTEM), 1024)
DECISIONS = "continuum_kv_index_routing_decisions_total"


def _body(number: int, **more: object) -> dict[str, object]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"question {number}"},
    ]
    return {"model": "m", "messages": messages, **more}


def _config(listener: Listener, strategy: str = "RoundRobin") -> str:
    return f"""
selection_strategy: {strategy}
prefix_routing: {{enabled: true}}
kv_cache_index:
  enabled: true
  event_sources:
    - {{backend_name: b1, endpoint: '{listener.url}/events/b1'}}
    - {{backend_name: b2, endpoint: '{listener.url}/events/b2'}}
"""


async def test_the_holder_is_chosen_until_it_holds_no_more() -> None:
    async with (
        scripted(answers(reply())) as one,
        scripted(answers(reply())) as two,
        listening("b1", "b2") as listener,
        running(edge_config([one.url, two.url], _config(listener))) as edge,
    ):
        before = await edge.post(_body(0))
        assert before.headers["x-continuum-route"] == "round_robin"
        assert edge.sample(DECISIONS, decision="fallback", tier="none") == 1

        listener.say("b2", KvEvent(action=KvAction.CREATED, prefix=KEY, tokens=256), 1)
        await applied(edge, "b2", KvAction.CREATED)
        held = [await edge.post(_body(number)) for number in range(1, 6)]
        assert {answer.headers["x-continuum-backend"] for answer in held} == {"b2"}
        assert held[0].headers["x-continuum-route"] == (
            "kv_aware; tier=gpu_hot; score=1.000; held=256"
        )
        assert edge.sample(DECISIONS, decision="kv_aware", tier="gpu_hot") == 5
        assert edge.sample("continuum_kv_index_overlap_score_count") == 5

        listener.say("b2", KvEvent(action=KvAction.EVICTED, prefix=KEY), 2)
        await applied(edge, "b2", KvAction.EVICTED)
        after = await edge.post(_body(9))
        assert after.headers["x-continuum-route"] == "round_robin"
        assert edge.sample(DECISIONS, decision="fallback", tier="none") == 2


async def test_a_request_with_its_own_salt_does_not_ask_the_index() -> None:
    async with (
        scripted(answers(reply())) as one,
        scripted(answers(reply())) as two,
        listening("b1", "b2") as listener,
        running(edge_config([one.url, two.url], _config(listener, "PrefixAwareHash"))) as edge,
    ):
        listener.say("b1", KvEvent(action=KvAction.CREATED, prefix=KEY, tokens=64), 1)
        await applied(edge, "b1", KvAction.CREATED)
        assert (await edge.post(_body(1))).headers["x-continuum-route"].startswith("kv_aware")
        salted = await edge.post(_body(1, cache_salt="mine"))
        assert salted.headers["x-continuum-route"] == "prefix_hash"
        assert edge.sample(DECISIONS, decision="kv_aware", tier="gpu_hot") == 1
        assert edge.sample(DECISIONS, decision="fallback", tier="none") == 0
        assert edge.sample("continuum_prefix_routing_requests_total", strategy="prefix_hash") == 1
    assert b'"cache_salt": "mine"' in (one.requests + two.requests)[-1].body


async def test_a_dead_holder_costs_no_request() -> None:
    async with (
        scripted(answers(reply())) as two,
        listening("b1", "b2") as listener,
        running(
            edge_config(
                ["http://127.0.0.1:1", two.url],
                _config(listener) + "retry: {initial_delay: 5ms}",
            )
        ) as edge,
    ):
        listener.say("b1", KvEvent(action=KvAction.CREATED, prefix=KEY, tokens=64), 1)
        await applied(edge, "b1", KvAction.CREATED)
        answer = await edge.post(_body(1))
        assert answer.status == 200
        assert answer.headers["x-continuum-backend"] == "b2"
        assert edge.sample(DECISIONS, decision="kv_aware", tier="gpu_hot") == 1
        assert edge.sample(DECISIONS, decision="fallback", tier="none") == 1
