"""Cost mode in a whole router, without any event source (design/routing.md 6.2)."""

import json

from support.edge import CHAT, Edge, edge_config, running
from support.scripted_backend import Peer, Script, scripted

COST = "kv_cache_index: {enabled: true, scoring: {mode: cost}}"
TEXT = "You are a careful assistant. " * 400


def counting(usages: list[int]) -> Script:
    """Answers chats, as streams where asked, and says how many tokens were cached."""

    async def script(peer: Peer) -> None:
        while (seen := await peer.request()) is not None:
            cached = usages.pop(0) if usages else 0
            usage = {
                "prompt_tokens": 3000,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
            if json.loads(seen.body).get("stream"):
                body = b"".join(
                    b"data: %b\n\n" % part
                    for part in (
                        b'{"choices":[{"index":0,"delta":{"content":"a"}}]}',
                        json.dumps({"choices": [], "usage": usage}).encode(),
                        b"[DONE]",
                    )
                )
                kind = b"text/event-stream"
            else:
                body = json.dumps({"object": "chat.completion", "choices": [], "usage": usage})
                body, kind = body.encode(), b"application/json"
            head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
            await peer.send(head % (kind, len(body)) + body)

    return script


def chat(text: str, question: str, **more: object) -> dict[str, object]:
    messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
    return {"model": "m", "messages": messages, **more}


async def ask(edge: Edge, body: dict[str, object]) -> tuple[str, str]:
    answer = await edge.post(body, path=CHAT)
    assert answer.status == 200
    route = answer.headers["x-continuum-route"].partition(";")[0]
    return answer.headers["x-continuum-backend"], route


async def test_what_was_sent_somewhere_is_held_there_at_once() -> None:
    async with scripted(counting([])) as one, scripted(counting([])) as two:
        async with running(edge_config([one.url, two.url], COST)) as edge:
            first, route = await ask(edge, chat(TEXT, "one"))
            assert route == "least_work"
            for number in range(6):
                again = chat(TEXT, f"and {number}", stream=number % 2 == 0)
                assert await ask(edge, again) == (first, "kv_aware")
            other, route = await ask(edge, chat("Another one. " * 900, "x"))
            assert (route, other != first) == ("least_work", True)
            assert edge.in_flight() == 0
            assert (
                edge.sample(
                    "continuum_kv_index_routing_decisions_total",
                    decision="kv_aware",
                    tier="gpu_hot",
                )
                == 6
            )


async def test_a_prompt_that_was_computed_anew_is_held_again() -> None:
    async with scripted(counting([0, 0, 0])) as one:
        async with running(edge_config([one.url], COST)) as edge:
            await ask(edge, chat(TEXT, "one"))
            _, route = await ask(edge, chat(TEXT, "two"))
            assert route == "kv_aware"
            # It was computed anew just now, so it is held again.
            _, route = await ask(edge, chat(TEXT, "three"))
            assert route == "kv_aware"
