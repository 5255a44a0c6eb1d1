"""Affinity of /v1/responses: what continues a response goes to the backend that made it."""

import json

import pytest

from support.edge import Edge, edge_config, running
from support.scripted_backend import answers, reply, scripted, streams

PATH = "/v1/responses"


def _two(one: str, two: str) -> object:
    return edge_config([one, two])


async def _ask(edge: Edge, **more: object) -> str:
    answer = await edge.post({"model": "m", "input": "hi", **more}, path=PATH)
    assert answer.status == 200
    return answer.headers["x-continuum-backend"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_stays_where_it_began(stream: bool) -> None:
    def script(name: str) -> object:
        body = f'{{"id":"resp_{name}","object":"response","model":"m"}}'
        if stream:
            return streams(f'{{"type":"response.created","response":{body}}}')
        return answers(reply(body.encode()))

    async with scripted(script("one")) as one, scripted(script("two")) as two:
        async with running(_two(one.url, two.url)) as edge:
            assert [await _ask(edge, stream=stream) for _ in range(2)] == ["b1", "b2"]
            for name, home in (("one", "b1"), ("two", "b2")):
                for _ in range(3):
                    asked = await _ask(edge, stream=stream, previous_response_id=f"resp_{name}")
                    assert asked == home
            strangers = {await _ask(edge, previous_response_id="resp_unknown") for _ in range(2)}
            assert strangers == {"b1", "b2"}
    sent = json.loads(one.requests[1].body)
    assert sent["previous_response_id"] == "resp_one"


async def test_a_stored_response_is_fetched_from_its_home() -> None:
    body = b'{"id":"resp_1","object":"response"}'
    async with scripted(answers(reply(body))) as one, scripted(answers(reply())) as two:
        async with running(_two(one.url, two.url)) as edge:
            assert await _ask(edge) == "b1"
            for method, path in (
                ("GET", "/resp_1?stream=false"),
                ("GET", "/resp_1/input_items"),
                ("POST", "/resp_1/cancel"),
                ("DELETE", "/resp_1"),
            ):
                async with edge.session.request(method, edge.url + PATH + path) as answer:
                    assert answer.status == 200
                    assert answer.headers["x-continuum-backend"] == "b1"
            unknown = await edge.get(PATH + "/resp_2")
            assert (unknown.status, unknown.error["code"]) == (404, "response_not_found")
    assert [seen.line.rsplit(" ", 1)[0] for seen in one.requests[1:]] == [
        "GET /v1/responses/resp_1?stream=false",
        "GET /v1/responses/resp_1/input_items",
        "POST /v1/responses/resp_1/cancel",
        "DELETE /v1/responses/resp_1",
    ]
    assert two.requests == []


async def test_one_backend_is_every_home() -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            assert (await edge.get(PATH + "/resp_9")).status == 200


async def test_an_id_that_is_none_is_refused() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        answer = await edge.post({"model": "m", "previous_response_id": 7}, path=PATH)
    assert (answer.status, answer.error["param"]) == (400, "previous_response_id")


async def test_the_prefix_of_responses_counts() -> None:
    """Decisions A5: requests with the same instructions go to the same backend."""
    more = "selection_strategy: PrefixAwareHash\nprefix_routing: {enabled: true}"
    async with scripted(answers(reply())) as one, scripted(answers(reply())) as two:
        async with running(edge_config([one.url, two.url], more)) as edge:
            homes = {
                text: {await _ask(edge, instructions=text, input=str(n)) for n in range(4)}
                for text in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
            }
    assert all(len(found) == 1 for found in homes.values())
    assert set.union(*homes.values()) == {"b1", "b2"}
