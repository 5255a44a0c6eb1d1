"""The official openai client, unchanged: the endpoints beside chats and completions."""

import base64
import struct

import openai
import pytest

from support.edge import edge_config, running
from support.scripted_backend import answers, reply, scripted, streams

VECTOR = base64.b64encode(struct.pack("<3f", 0.5, -1.0, 2.0)).decode()
EMBEDDINGS = (
    (
        '{"object":"list","model":"real","data":[{"object":"embedding","index":0,"embedding":"VECTOR"}],'
        '"usage":{"prompt_tokens":1,"total_tokens":1}}'
    )
    .replace("VECTOR", VECTOR)
    .encode()
)
RESPONSE = (
    b'{"id":"resp_1","object":"response","created_at":1,"status":"completed","model":"real",'
    b'"output":[{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":'
    b'[{"type":"output_text","text":"hello","annotations":[]}]}],"parallel_tool_calls":true,'
    b'"tool_choice":"auto","tools":[]}'
)


def _entry(url: str) -> str:
    return f"backends: [{{name: b1, url: '{url}', models: [real], aliases: {{m: real}}}}]"


def _client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0)


async def test_embeddings() -> None:
    async with scripted(answers(reply(EMBEDDINGS))) as backend:
        async with running(edge_config(_entry(backend.url))) as edge, _client(edge.url) as client:
            found = await client.embeddings.create(model="m", input="x")
    assert found.model == "m"
    assert found.data[0].embedding == [0.5, -1.0, 2.0]


async def test_responses() -> None:
    async with scripted(answers(reply(RESPONSE))) as backend:
        async with running(edge_config(_entry(backend.url))) as edge, _client(edge.url) as client:
            first = await client.responses.create(model="m", input="hi")
            assert (first.output_text, first.model) == ("hello", "m")
            await client.responses.create(model="m", input="x", previous_response_id=first.id)
            again = await client.responses.retrieve(first.id)
            assert again.id == "resp_1"
    assert backend.requests[2].line == "GET /v1/responses/resp_1 HTTP/1.1"


async def test_streamed_responses() -> None:
    created = '{"type":"response.created","sequence_number":0,"response":R}'
    created = created.replace("R}", RESPONSE.decode() + "}")
    delta = (
        '{"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_1",'
        '"output_index":0,"content_index":0,"delta":"hel","logprobs":[]}'
    )
    async with scripted(streams(created, delta, done=False)) as backend:
        async with running(edge_config(_entry(backend.url))) as edge, _client(edge.url) as client:
            stream = await client.responses.create(model="m", input="hi", stream=True)
            events = [event async for event in stream]
    assert [event.type for event in events] == ["response.created", "response.output_text.delta"]
    assert events[0].response.model == "m"


async def test_models() -> None:
    async with running(edge_config(_entry("http://127.0.0.1:1"))) as edge:
        async with _client(edge.url) as client:
            names = [model.id async for model in client.models.list()]
    assert names == ["m", "real"]


async def test_transcriptions_and_speech() -> None:
    async with scripted(answers(reply(b'{"text":"spoken"}'))) as backend:
        async with running(edge_config(_entry(backend.url))) as edge, _client(edge.url) as client:
            heard = await client.audio.transcriptions.create(
                model="m", file=("a.wav", b"RIFF" * 500)
            )
            assert heard.text == "spoken"
            said = await client.audio.speech.create(model="m", input="x", voice="v")
            assert said.content == b'{"text":"spoken"}'
    form, speech = backend.requests
    assert b'name="model"\r\n\r\nreal\r\n' in form.body
    assert b'"model":"real"' in speech.body


async def test_images() -> None:
    body = b'{"created":1,"data":[{"b64_json":"%b"}]}' % (b"QUJD" * 300_000)
    async with scripted(answers(reply(body))) as backend:
        async with running(edge_config(_entry(backend.url))) as edge, _client(edge.url) as client:
            made = await client.images.generate(model="m", prompt="x")
    assert made.data is not None
    assert made.data[0].b64_json == "QUJD" * 300_000


async def test_an_unknown_model_is_the_clients_not_found() -> None:
    async with running(edge_config(_entry("http://127.0.0.1:1"))) as edge:
        async with _client(edge.url) as client:
            with pytest.raises(openai.NotFoundError) as caught:
                await client.embeddings.create(model="nope", input="x")
    assert caught.value.code == "model_not_found"
