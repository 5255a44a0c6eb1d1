"""User report S14: an alias in request and answer, the real name at the backend."""

import json

import pytest

from continuum_router.config.root import Config
from continuum_router.request import Endpoint, parse_generate
from continuum_shared.prefix_key import KeyTag, KeyText, derive
from support.edge import CHAT, Answer, Edge, edge_config, running
from support.scripted_backend import (
    LAST_CHUNK,
    answers,
    chunk,
    chunked_head,
    reply,
    scripted,
    streams,
)

REAL = "org/real-model"


def _config(*urls: str, more: str = "") -> Config:
    entries = "".join(
        f"- {{name: b{n}, url: '{url}', models: ['{REAL}'], aliases: {{gpt: '{REAL}'}}}}\n"
        for n, url in enumerate(urls, 1)
    )
    return edge_config("backends:\n" + entries, more)


async def _chat(edge: Edge, model: str = "gpt", **more: object) -> Answer:
    return await edge.post({"model": model, "messages": [{"role": "user"}], **more})


async def test_a_plain_answer() -> None:
    body = b'{"id":"1","model":"org/real-model","choices":[{"message":{"content":"\\"model\\""}}]}'
    async with scripted(answers(reply(body))) as backend:
        async with running(_config(backend.url)) as edge:
            raw = b'{"messages":[{"role":"user","content":"model"}],\n "model" : "gpt", "x":1.0}'
            answer = await edge.post(raw=raw)
            assert answer.body == body.replace(REAL.encode(), b"gpt")
            assert answer.headers["Content-Length"] == str(len(answer.body))
    (seen,) = backend.requests
    assert seen.body == raw.replace(b'"gpt"', b'"org/real-model"')
    assert seen.header("content-length") == str(len(seen.body))


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
async def test_each_chunk_of_a_stream(size: int) -> None:
    event = '{"id":"c","model":"org/real-model","choices":[{"delta":{"content":"한"}}]}'
    wire = f"data: {event}\n\n".encode() * 3 + b"data: [DONE]\n\n"
    parts = [wire[i : i + size] for i in range(0, len(wire), size)]
    script = answers(chunked_head(), *(chunk(part) for part in parts), LAST_CHUNK, gap=0)
    async with scripted(script) as backend:
        async with running(_config(backend.url)) as edge:
            answer = await _chat(edge, stream=True)
            assert answer.body == wire.replace(REAL.encode(), b"gpt")


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/responses"])
async def test_the_real_name_changes_nothing(path: str) -> None:
    body = b'{"model":"something else"}'
    async with scripted(answers(reply(body))) as backend:
        async with running(_config(backend.url)) as edge:
            answer = await edge.post({"model": REAL, "messages": [{}]}, path=path)
            assert answer.body == body
            alias = await edge.post({"model": "gpt", "messages": [{}]}, path=path)
            assert alias.json == {"model": "gpt"}


async def test_the_answer_can_keep_the_real_name() -> None:
    off = "server: {listen: '127.0.0.1:0', rewrite_response_model: false}"
    async with scripted(answers(reply(b'{"model":"org/real-model"}'))) as backend:
        async with running(_config(backend.url, more=off)) as edge:
            assert (await _chat(edge)).json == {"model": REAL}
    assert json.loads(backend.requests[0].body)["model"] == REAL


async def test_events_of_a_response_are_renamed_inside() -> None:
    events = ['{"type":"response.created","response":{"id":"r","model":"org/real-model"}}']
    async with scripted(streams(*events)) as backend:
        async with running(_config(backend.url)) as edge:
            body = {"model": "gpt", "input": "x", "stream": True}
            answer = await edge.post(body, path="/v1/responses")
            assert answer.body.startswith(b"data: " + events[0].replace(REAL, "gpt").encode())


async def test_an_answer_that_is_no_json_is_left_alone() -> None:
    async with scripted(answers(reply(b'"model":"x"', headers=["Content-Type: a/b"]))) as backend:
        async with running(_config(backend.url)) as edge:
            assert (await _chat(edge)).body == b'"model":"x"'


async def test_each_backend_gets_its_own_name() -> None:
    text = (
        "backends: [{{name: a, url: '{}', aliases: {{gpt: one}}, models: [one]}},"
        " {{name: b, url: '{}', aliases: {{gpt: two}}, models: [two]}}]"
    )
    async with scripted(answers(reply())) as one, scripted(answers(reply())) as two:
        async with running(edge_config(text.format(one.url, two.url))) as edge:
            for _ in range(2):
                assert (await _chat(edge)).status == 200
    assert [json.loads(b.requests[0].body)["model"] for b in (one, two)] == ["one", "two"]


async def test_the_list_has_aliases() -> None:
    async with running(_config("http://127.0.0.1:1", "http://127.0.0.1:2")) as edge:
        listed = (await edge.get("/v1/models")).json["data"]
    assert [entry["id"] for entry in listed] == ["gpt", REAL]


async def test_an_alias_is_tried_only_where_it_is_known() -> None:
    """A backend without a list takes any model, but not the alias of another one."""
    text = (
        "backends: [{{name: a, url: '{}', aliases: {{gpt: one}}, models: [one]}},"
        " {{name: b, url: '{}'}}]"
    )
    async with scripted(answers(reply())) as one, scripted(answers(reply())) as two:
        async with running(edge_config(text.format(one.url, two.url))) as edge:
            for _ in range(4):
                answer = await _chat(edge)
                assert answer.headers["x-continuum-backend"] == "a"
    assert all(b"/v1/models" in seen.head for seen in two.requests)


async def test_an_adapter_is_a_model() -> None:
    """LoRA adapters are models by name: listed, routed, and aliased like any other."""
    text = (
        "backends: [{{name: base, url: '{}', models: [m]}},"
        " {{name: lora, url: '{}', models: [m, m-sql], aliases: {{sql: m-sql}}}}]"
    )
    async with scripted(answers(reply(b'{"model":"m-sql"}'))) as one:
        async with running(edge_config(text.format("http://127.0.0.1:1", one.url))) as edge:
            for name in ("m-sql", "sql"):
                answer = await _chat(edge, name)
                assert answer.headers["x-continuum-backend"] == "lora"
                assert answer.json == {"model": name}
    assert [json.loads(seen.body)["model"] for seen in one.requests] == ["m-sql", "m-sql"]


async def test_the_index_is_asked_under_the_real_name() -> None:
    """Decisions A1: the listener knows only the real name, and an alias finds what it announced."""
    more = "prefix_routing: {enabled: true}\n"
    async with scripted(answers(reply())) as backend:
        async with running(_config(backend.url, more=more)) as edge:
            rules = edge.router.runtime.current.request_rules
    assert rules.aliases == {"gpt": REAL}
    raw = b'{"model":"gpt","messages":[{"role":"user","content":"hi"}]}'
    key = derive(REAL, KeyText(tag=KeyTag.FIRST_MESSAGE, text="hi"), 1024)
    assert parse_generate(Endpoint.CHAT, raw, rules).prefix == key
