"""The official openai client, unchanged, both ways in: every endpoint, errors, its own retries."""

import asyncio
import base64
import json
import struct
from collections.abc import Callable

import openai
import pytest

from continuum_router.config.root import Config
from support.edge import Edge, running
from support.faults import dead_port
from support.scripted_backend import (
    Script,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    hangs,
    in_turn,
    reply,
    scripted,
    sse,
    streams,
)
from support.ways import WAYS, way_config

USER: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
VECTOR = base64.b64encode(struct.pack("<3f", 0.5, -1.0, 2.0)).decode()
EMBEDDINGS = json.dumps(
    {
        "object": "list",
        "model": "real",
        "data": [{"object": "embedding", "index": 0, "embedding": VECTOR}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
).encode()
RESPONSE = (
    b'{"id":"resp_1","object":"response","created_at":1,"status":"completed","model":"real",'
    b'"output":[{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":'
    b'[{"type":"output_text","text":"hello","annotations":[]}]}],"parallel_tool_calls":true,'
    b'"tool_choice":"auto","tools":[]}'
)
CALL = {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"at":"9"}'}}


def _completion(**message: object) -> bytes:
    said = {"role": "assistant", "content": None, **message}
    return json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "real",
            "choices": [{"index": 0, "finish_reason": "stop", "message": said}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
    ).encode()


def _chunk(delta: dict[str, object] | None, **more: object) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "real"}
    return json.dumps({**head, "choices": choices, **more})


TEXT_STREAM = (
    _chunk({"role": "assistant", "content": "안"}),
    _chunk({"content": "녕"}),
    _chunk(None, usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}),
)


def _config(url: str, fast: bool, more: str = "", **server: object) -> Config:
    entry = f"backends: [{{name: b1, url: '{url}', models: [real], aliases: {{m: real}}}}]\n"
    return way_config(entry, fast, more, **server)


def _client(edge: Edge, *, max_retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=edge.url + "/v1", api_key="k", max_retries=max_retries)


# -- chats -----------------------------------------------------------------------------------


@WAYS
async def test_a_chat(fast: bool) -> None:
    async with scripted(answers(reply(_completion(content="안녕")))) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            found = await client.chat.completions.create(model="m", messages=USER, temperature=0)
    assert (found.choices[0].message.content, found.model) == ("안녕", "m")
    assert found.usage is not None
    assert found.usage.total_tokens == 5
    (seen,) = backend.requests
    assert json.loads(seen.body) == {"model": "real", "messages": USER, "temperature": 0}
    assert seen.header("authorization") == "Bearer k"


@WAYS
async def test_a_stream(fast: bool) -> None:
    async with scripted(streams(*TEXT_STREAM, gap=0.01)) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            stream = await client.chat.completions.create(
                model="m", messages=USER, stream=True, stream_options={"include_usage": True}
            )
            parts = [part async for part in stream]
            async with client.chat.completions.stream(model="m", messages=USER) as events:
                final = await events.get_final_completion()
    assert [part.choices[0].delta.content for part in parts[:2]] == ["안", "녕"]
    assert {part.model for part in parts} == {"m"}
    assert parts[2].usage is not None
    assert final.choices[0].message.content == "안녕"


@WAYS
async def test_the_answer_as_it_came_and_a_streamed_answer(fast: bool) -> None:
    """with_raw_response and with_streaming_response, whose headers show who served."""
    async with scripted(answers(reply(_completion(content="x")))) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            chats = client.chat.completions
            raw = await chats.with_raw_response.create(model="m", messages=USER)
            assert raw.headers["x-continuum-backend"] == "b1"
            assert len(raw.headers["x-continuum-request-id"]) == 32
            assert raw.http_response.http_version == "HTTP/1.1"
            assert raw.parse().choices[0].message.content == "x"
            async with chats.with_streaming_response.create(model="m", messages=USER) as streamed:
                lines = [line async for line in streamed.iter_lines()]
            assert json.loads("".join(lines))["model"] == "m"


@WAYS
async def test_leaving_a_stream_leaves_the_backend(fast: bool) -> None:
    pieces = (chunked_head(), chunk(sse(TEXT_STREAM[0])))
    async with scripted(hangs(*pieces)) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            stream = await client.chat.completions.create(model="m", messages=USER, stream=True)
            async for _ in stream:
                break
            await stream.close()
            async with asyncio.timeout(1):
                while not backend.left:
                    await asyncio.sleep(0.01)


TOOLS: list[openai.types.chat.ChatCompletionToolUnionParam] = [
    {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}
]


@WAYS
async def test_tools(fast: bool) -> None:
    """A call, its result sent back, and the same call in pieces of a stream."""
    calls = [
        _chunk({"tool_calls": [{"index": 0, **CALL, "function": {"name": "tide"}}]}),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]}),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"9"}'}}]}),
    ]
    script = in_turn(
        answers(reply(_completion(tool_calls=[CALL])), times=1),
        answers(reply(_completion(content="high"))),
    )
    async with scripted(script) as backend, scripted(streams(*calls)) as streaming:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            create = client.chat.completions.create
            asked = await create(model="m", messages=USER, tools=TOOLS, tool_choice="auto")
            (call,) = asked.choices[0].message.tool_calls or ()
            assert call.model_dump()["function"] == CALL["function"]
            result = {"role": "tool", "tool_call_id": call.id, "content": "4 m"}
            told = await create(
                model="m",
                messages=[*USER, asked.choices[0].message.to_dict(), result],  # type: ignore[list-item]
                tools=TOOLS,
            )
            assert told.choices[0].message.content == "high"
        async with running(_config(streaming.url, fast)) as edge, _client(edge) as client:
            found = await client.chat.completions.create(
                model="m", messages=USER, tools=TOOLS, stream=True
            )
            deltas = [part.choices[0].delta.tool_calls or [] async for part in found]
    texts = [delta[0].function.arguments or "" for delta in deltas if delta[0].function]
    assert "".join(texts) == '{"at":"9"}'
    assert json.loads(backend.requests[1].body)["messages"][2] == result
    assert json.loads(streaming.requests[0].body)["tools"] == TOOLS


@WAYS
async def test_completions(fast: bool) -> None:
    body = b'{"id":"c","object":"text_completion","created":1,"model":"real","choices":[{"index":0,'
    body += b'"text":"x","finish_reason":"stop","logprobs":null}]}'
    async with scripted(answers(reply(body))) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            found = await client.completions.create(model="m", prompt="hi")
    assert (found.choices[0].text, found.model) == ("x", "m")


@WAYS
async def test_the_blocking_client(fast: bool) -> None:
    script = in_turn(
        answers(reply(_completion(content="x")), times=1),
        streams(*TEXT_STREAM),
    )

    def work(url: str) -> list[object]:
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            chat = client.chat.completions.create(model="m", messages=USER)
            stream = client.chat.completions.create(model="m", messages=USER, stream=True)
            texts = [part.choices[0].delta.content for part in stream if part.choices]
            try:
                client.chat.completions.create(model="no", messages=USER)
            except openai.NotFoundError as error:
                return [chat.choices[0].message.content, texts, error.code]
            return []

    async with scripted(script) as backend, running(_config(backend.url, fast)) as edge:
        found = await asyncio.to_thread(work, edge.url + "/v1")
    assert found == ["x", ["안", "녕"], "model_not_found"]


# -- the other endpoints -----------------------------------------------------------------------


@WAYS
async def test_embeddings(fast: bool) -> None:
    async with scripted(answers(reply(EMBEDDINGS))) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            found = await client.embeddings.create(model="m", input="x")
    assert found.model == "m"
    assert found.data[0].embedding == [0.5, -1.0, 2.0]


@WAYS
async def test_responses(fast: bool) -> None:
    async with scripted(answers(reply(RESPONSE))) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            first = await client.responses.create(model="m", input="hi")
            assert (first.output_text, first.model) == ("hello", "m")
            await client.responses.create(model="m", input="x", previous_response_id=first.id)
            again = await client.responses.retrieve(first.id)
            assert again.id == "resp_1"
            await client.responses.cancel(first.id)
            await client.responses.delete(first.id)
    assert [seen.line for seen in backend.requests[2:]] == [
        "GET /v1/responses/resp_1 HTTP/1.1",
        "POST /v1/responses/resp_1/cancel HTTP/1.1",
        "DELETE /v1/responses/resp_1 HTTP/1.1",
    ]


CREATED = '{"type":"response.created","sequence_number":0,"response":' + RESPONSE.decode() + "}"
DELTA = (
    '{"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_1",'
    '"output_index":0,"content_index":0,"delta":"hel","logprobs":[]}'
)


@WAYS
async def test_streamed_responses(fast: bool) -> None:
    async with scripted(streams(CREATED, DELTA, done=False)) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            stream = await client.responses.create(model="m", input="hi", stream=True)
            events = [event async for event in stream]
    assert [event.type for event in events] == ["response.created", "response.output_text.delta"]
    assert events[0].response.model == "m"


@WAYS
async def test_models(fast: bool) -> None:
    async with running(_config("http://127.0.0.1:1", fast)) as edge, _client(edge) as client:
        names = [model.id async for model in client.models.list()]
        assert names == ["m", "real"]
        assert (await client.models.retrieve("m")).id == "m"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


@WAYS
async def test_audio(fast: bool) -> None:
    async with scripted(answers(reply(b'{"text":"spoken"}'))) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            voice = ("a.wav", b"RIFF" * 500)
            heard = await client.audio.transcriptions.create(model="m", file=voice)
            assert heard.text == "spoken"
            said = await client.audio.speech.create(model="m", input="x", voice="v")
            assert said.content == b'{"text":"spoken"}'
            streaming = client.audio.speech.with_streaming_response
            async with streaming.create(model="m", input="x", voice="v") as speech:
                assert b"".join([piece async for piece in speech.iter_bytes()]) == said.content
    form, first, second = backend.requests
    assert b'name="model"\r\n\r\nreal\r\n' in form.body
    assert b'"model":"real"' in first.body
    assert first.body == second.body


@WAYS
async def test_images(fast: bool) -> None:
    body = b'{"created":1,"data":[{"b64_json":"%b"}]}' % (b"QUJD" * 300_000)
    async with scripted(answers(reply(body))) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            made = await client.images.generate(model="m", prompt="x")
            picture = ("a.png", b"\x89PNG" * 1000, "image/png")
            edited = await client.images.edit(model="m", image=picture, prompt="x")
    for found in (made, edited):
        assert found.data is not None
        assert found.data[0].b64_json == "QUJD" * 300_000
    assert backend.requests[1].line == "POST /v1/images/edits HTTP/1.1"
    assert b'name="model"\r\n\r\nreal\r\n' in backend.requests[1].body


FILE = b'{"id":"file-1","object":"file","bytes":4,"created_at":1,"filename":"a","purpose":"batch",'
FILE += b'"status":"processed"}'


@WAYS
async def test_files_where_their_paths_are_listed(fast: bool) -> None:
    listed = b'{"object":"list","data":[%b],"has_more":false}' % FILE
    script = in_turn(
        answers(reply(FILE), times=1),
        answers(reply(listed), times=1),
        answers(reply(b"abcd", headers=["Content-Type: application/octet-stream"])),
    )
    async with scripted(script) as backend:
        config = _config(backend.url, fast, passthrough_paths="[/v1/files, '/v1/files/*']")
        async with running(config) as edge, _client(edge) as client:
            made = await client.files.create(file=("a", b"abcd"), purpose="batch")
            assert [entry.id async for entry in client.files.list()] == [made.id]
            assert (await client.files.content(made.id)).content == b"abcd"
    assert b'name="purpose"\r\n\r\nbatch\r\n' in backend.requests[0].body
    assert backend.requests[2].line == "GET /v1/files/file-1/content HTTP/1.1"


@WAYS
async def test_what_is_not_served_is_the_clients_not_found(fast: bool) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            for call in (
                lambda: client.files.create(file=("a", b"abcd" * 50_000), purpose="batch"),
                lambda: client.files.retrieve("file-1"),
                lambda: client.moderations.create(input="x"),
                lambda: client.batches.cancel("b"),
                lambda: client.embeddings.create(model="nope", input="x"),
            ):
                with pytest.raises(openai.NotFoundError) as caught:
                    await call()  # type: ignore[no-untyped-call]
                error = caught.value
                known = error.response.headers["x-continuum-request-id"]
                assert isinstance(error.body, dict)
                assert (error.type, error.body["request_id"]) == ("invalid_request_error", known)
    assert backend.requests == []


# -- errors ------------------------------------------------------------------------------------

CLASSES: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    408: openai.APIStatusError,
    409: openai.ConflictError,
    413: openai.APIStatusError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}


@WAYS
@pytest.mark.parametrize("status", CLASSES)
async def test_each_status_of_a_backend_is_its_exception(fast: bool, status: int) -> None:
    body = b'{"error":{"message":"as it is","type":"t","param":"p","code":"c"}}'
    headers = ("Content-Type: application/json", "Retry-After: 60", "x-request-id: req_7")
    async with scripted(answers(reply(body, status=f"{status} X", headers=headers))) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            for stream in (False, True):
                with pytest.raises(CLASSES[status]) as caught:
                    await client.chat.completions.create(model="m", messages=USER, stream=stream)
                error = caught.value
                assert (error.status_code, error.body) == (status, json.loads(body)["error"])
                assert (error.code, error.param, error.type) == ("c", "p", "t")
                assert error.request_id == "req_7"
                assert error.response.headers["retry-after"] == "60"


SHORT = "timeouts: {request: {standard: {total: 300ms}, streaming: {first_byte: 300ms}}}"
OWN: dict[str, tuple[int, type[openai.APIStatusError], str, dict[str, object]]] = {
    "bad field": (400, openai.BadRequestError, "invalid_type", {"extra_body": {"stream": 1}}),
    "no messages": (400, openai.BadRequestError, "invalid_value", {"messages": []}),
    "other model": (404, openai.NotFoundError, "model_not_found", {"model": "other"}),
    "too large": (413, openai.APIStatusError, "request_too_large", {"user": "x" * 5000}),
    "refused": (502, openai.InternalServerError, "upstream_error", {"model": "dead"}),
    "silent": (504, openai.InternalServerError, "upstream_timeout", {}),
    "silent stream": (504, openai.InternalServerError, "upstream_timeout", {"stream": True}),
}


@WAYS
@pytest.mark.parametrize("name", OWN)
async def test_each_error_of_the_router_is_its_exception(fast: bool, name: str) -> None:
    status, expected, code, more = OWN[name]
    with dead_port() as port:
        async with scripted(hangs()) as backend:
            entries = (
                f"backends: [{{name: b1, url: '{backend.url}', models: [m]}},"
                f" {{name: b2, url: 'http://127.0.0.1:{port}', models: [dead]}}]\n"
            )
            config = way_config(entries, fast, SHORT, max_body_bytes="4KiB")
            async with running(config) as edge, _client(edge) as client:
                asked = {"model": "m", "messages": USER, **more}
                with pytest.raises(expected) as caught:
                    await client.chat.completions.create(**asked)  # type: ignore[call-overload]
    error = caught.value
    assert (error.status_code, error.code) == (status, code)
    assert isinstance(error.body, dict)
    assert error.body["request_id"] == error.response.headers["x-continuum-request-id"]


@WAYS
@pytest.mark.parametrize("kind", ["chat", "responses"])
async def test_a_stream_that_breaks_is_an_error(fast: bool, kind: str) -> None:
    first = TEXT_STREAM[0] if kind == "chat" else CREATED
    script = breaks_after(chunked_head(), chunk(sse(first)), gap=0.01, reset=True)
    async with scripted(script) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            if kind == "chat":
                asked = client.chat.completions.create(model="m", messages=USER, stream=True)
            else:
                asked = client.responses.create(model="m", input="x", stream=True)  # type: ignore[assignment]
            count = 0
            with pytest.raises(openai.APIError, match="usable answer"):
                async for _ in await asked:
                    count += 1
    assert count == 1
    assert len(backend.requests) == 1


# -- timeouts and retries of its own -----------------------------------------------------------


@WAYS
@pytest.mark.parametrize("stream", [False, True])
async def test_its_timeout_leaves_the_backend(fast: bool, stream: bool) -> None:
    async with scripted(hangs()) as backend:
        async with running(_config(backend.url, fast)) as edge, _client(edge) as client:
            with pytest.raises(openai.APITimeoutError):
                await client.chat.completions.create(
                    model="m", messages=USER, stream=stream, timeout=0.1
                )
            async with asyncio.timeout(1):
                while not backend.left:
                    await asyncio.sleep(0.01)
            await edge.settled()
            assert edge.in_flight() == 0


QUICK = ("Content-Type: application/json", "retry-after-ms: 1")


def _failing(status: int) -> Callable[[], Script]:
    return lambda: answers(reply(b"{}", status=f"{status} X", headers=QUICK), times=1)


@WAYS
@pytest.mark.parametrize("status", [408, 409, 500])
async def test_its_retries_reach_the_backend(fast: bool, status: int) -> None:
    """Statuses that are the client's to try again: the router makes one call for each of them."""
    failing = _failing(status)
    working = answers(reply(_completion(content="x")))
    async with scripted(in_turn(failing(), failing(), working)) as backend:
        async with running(_config(backend.url, fast)) as edge:
            async with _client(edge, max_retries=2) as client:
                found = await client.chat.completions.create(model="m", messages=USER)
    assert found.choices[0].message.content == "x"
    counts = [seen.header("x-stainless-retry-count") for seen in backend.requests]
    assert counts == ["0", "1", "2"]


@WAYS
async def test_its_retries_and_the_routers_multiply_only_as_far_as_both_allow(fast: bool) -> None:
    more = "retry: {max_attempts: 2, initial_delay: 1ms}"
    busy = answers(reply(b'{"error":{"message":"busy"}}', status="503 X", headers=QUICK))
    async with scripted(busy) as backend:
        async with running(_config(backend.url, fast, more)) as edge:
            async with _client(edge, max_retries=1) as client:
                with pytest.raises(openai.InternalServerError, match="busy"):
                    await client.chat.completions.create(model="m", messages=USER)
    counts = [seen.header("x-stainless-retry-count") for seen in backend.requests]
    assert counts == ["0", "0", "1", "1"]


@WAYS
async def test_a_router_that_is_not_there(fast: bool) -> None:
    async with running(_config("http://127.0.0.1:1", fast)) as edge:
        client = _client(edge)
    async with client:
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(model="m", messages=USER)
