"""The official anthropic client at the router: what it gets from `/v1/messages`, and its errors."""

import asyncio
import json

import anthropic
import pytest

from support.edge import Edge, running
from support.faults import dead_port
from support.scripted_backend import (
    LAST_CHUNK,
    Script,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    hangs,
    in_turn,
    reply,
    scripted,
)
from support.ways import WAYS, way_config

MESSAGES: list[anthropic.types.MessageParam] = [{"role": "user", "content": "hi"}]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "안녕"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
LISTED = "[/v1/messages, '/v1/messages/*']"


def _event(kind: str, **more: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()


STREAM = [
    _event("message_start", message={**MESSAGE, "content": [], "stop_reason": None}),
    _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    _event("content_block_delta", index=0, delta={"type": "text_delta", "text": "안녕"}),
    _event("content_block_stop", index=0),
    _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
    _event("message_stop"),
]


def _client(edge: Edge, *, max_retries: int = 0) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=edge.url, api_key="k", max_retries=max_retries)


async def _create(client: anthropic.AsyncAnthropic, **more: object) -> anthropic.types.Message:
    asked = {"model": "m", "max_tokens": 5, "messages": MESSAGES, **more}
    return await client.messages.create(**asked)  # type: ignore[call-overload,no-any-return]


def _streaming(*events: bytes) -> Script:
    return answers(chunked_head(), *map(chunk, events), LAST_CHUNK, gap=0)


@WAYS
async def test_messages_where_the_path_is_listed(fast: bool) -> None:
    async with scripted(answers(reply(json.dumps(MESSAGE).encode()))) as backend:
        config = way_config([backend.url], fast, passthrough_paths=LISTED)
        async with running(config) as edge, _client(edge) as client:
            message = await _create(client)
    assert message.content[0].text == "안녕"  # type: ignore[union-attr]
    (seen,) = backend.requests
    assert seen.line == "POST /v1/messages HTTP/1.1"
    assert "k" in (seen.header("x-api-key"), (seen.header("authorization") or "")[7:])
    assert seen.header("anthropic-version") is not None


@WAYS
async def test_a_stream_of_messages(fast: bool) -> None:
    async with scripted(_streaming(*STREAM)) as backend:
        config = way_config([backend.url], fast, passthrough_paths=LISTED, sse_keepalive="1ms")
        async with running(config) as edge, _client(edge) as client:
            async with client.messages.stream(model="m", max_tokens=5, messages=MESSAGES) as found:
                assert await found.get_final_text() == "안녕"


@WAYS
async def test_an_unlisted_path_is_the_clients_not_found(fast: bool) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(way_config([backend.url], fast)) as edge, _client(edge) as client:
            with pytest.raises(anthropic.NotFoundError) as caught:
                await _create(client)
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.count_tokens(model="m", messages=MESSAGES)
    error = caught.value
    assert (error.type, error.api_message) == ("not_found_error", "There is nothing at this path.")
    assert error.request_id == error.response.headers["x-continuum-request-id"]
    assert backend.requests == []


BACKEND_ERRORS = {
    400: ("invalid_request_error", anthropic.BadRequestError),
    401: ("authentication_error", anthropic.AuthenticationError),
    403: ("permission_error", anthropic.PermissionDeniedError),
    404: ("not_found_error", anthropic.NotFoundError),
    413: ("request_too_large", anthropic.APIStatusError),
    422: ("invalid_request_error", anthropic.UnprocessableEntityError),
    429: ("rate_limit_error", anthropic.RateLimitError),
    500: ("api_error", anthropic.InternalServerError),
    529: ("overloaded_error", anthropic.InternalServerError),
}


@WAYS
@pytest.mark.parametrize("status", BACKEND_ERRORS)
async def test_a_backends_error_is_passed_on_as_it_is(fast: bool, status: int) -> None:
    kind, expected = BACKEND_ERRORS[status]
    body = {"type": "error", "error": {"type": kind, "message": "as it is"}}
    headers = ("Content-Type: application/json", "request-id: req_7", "Retry-After: 60")
    wire = reply(json.dumps(body).encode(), status=f"{status} X", headers=headers)
    async with scripted(answers(wire)) as backend:
        config = way_config([backend.url], fast, passthrough_paths=LISTED)
        async with running(config) as edge, _client(edge) as client:
            for more in ({}, {"stream": True}):
                with pytest.raises(expected) as caught:
                    await _create(client, **more)
                error = caught.value
                assert (error.status_code, error.type, error.api_message) == (
                    status,
                    kind,
                    "as it is",
                )
                assert error.request_id == "req_7"


SHORT = "timeouts: {request: {standard: {total: 300ms}, streaming: {first_byte: 300ms}}}"
ROUTER_ERRORS: dict[str, tuple[int, str, dict[str, object]]] = {
    "a wrong type": (400, "invalid_request_error", {"extra_body": {"stream": "yes"}}),
    "another model": (404, "not_found_error", {"model": "other"}),
    "too large": (413, "request_too_large", {"system": "x" * 5000}),
    "refused": (502, "api_error", {"model": "dead"}),
    "never answers": (504, "timeout_error", {}),
    "never streams": (504, "timeout_error", {"stream": True}),
}


@WAYS
@pytest.mark.parametrize("name", ROUTER_ERRORS)
async def test_the_routers_own_errors_can_be_read(fast: bool, name: str) -> None:
    status, kind, more = ROUTER_ERRORS[name]
    with dead_port() as port:
        async with scripted(hangs()) as backend:
            entries = (
                f"backends: [{{name: b1, url: '{backend.url}', models: [m]}},"
                f" {{name: b2, url: 'http://127.0.0.1:{port}', models: [dead]}}]\n"
            )
            config = way_config(
                entries, fast, SHORT, passthrough_paths=LISTED, max_body_bytes="4KiB"
            )
            async with running(config) as edge, _client(edge) as client:
                with pytest.raises(anthropic.APIStatusError) as caught:
                    await _create(client, **more)
    error = caught.value
    assert (error.status_code, error.type) == (status, kind)
    assert error.api_message
    assert error.request_id == error.response.headers["x-continuum-request-id"]
    assert isinstance(error.body, dict)
    assert (error.body["type"], error.body["request_id"]) == ("error", error.request_id)


@WAYS
async def test_no_backend_is_service_unavailable(fast: bool) -> None:
    entries = "backends: [{name: b1, url: 'http://127.0.0.1:1', models: [m], internal: true}]\n"
    config = way_config(entries, fast, passthrough_paths=LISTED)
    async with running(config) as edge, _client(edge) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await _create(client)
    assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")


@WAYS
@pytest.mark.parametrize("cut", [False, True], ids=["between events", "in an event"])
async def test_a_stream_that_breaks_is_an_error_and_no_short_answer(fast: bool, cut: bool) -> None:
    """The client passes over events without a name: half an answer would look like a whole one."""
    pieces = [chunk(event) for event in STREAM[:3]] + ([chunk(STREAM[2][:30])] if cut else [])
    async with scripted(breaks_after(chunked_head(), *pieces, gap=0.01)) as backend:
        config = way_config([backend.url], fast, passthrough_paths=LISTED)
        async with running(config) as edge, _client(edge) as client:
            texts = []
            with pytest.raises(anthropic.APIStatusError, match="usable answer") as caught:
                async with client.messages.stream(
                    model="m", max_tokens=5, messages=MESSAGES
                ) as found:
                    async for text in found.text_stream:
                        texts.append(text)
    assert (texts, caught.value.type) == (["안녕"], "api_error")


@WAYS
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("overloaded_error", 503),
        ("rate_limit_error", 429),
        ("invalid_request_error", 400),
        ("api_error", 502),
    ],
)
async def test_a_stream_that_opens_with_an_error_has_its_status(
    fast: bool, kind: str, status: int
) -> None:
    error = _event("error", error={"type": kind, "message": "as it is"})
    async with scripted(_streaming(error)) as backend:
        once = "retry: {max_attempts: 1}"
        config = way_config([backend.url], fast, once, passthrough_paths=LISTED)
        async with running(config) as edge, _client(edge) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                await _create(client, stream=True)
    found = caught.value
    assert (found.status_code, found.type, found.api_message) == (status, kind, "as it is")


@WAYS
async def test_its_own_retries(fast: bool) -> None:
    headers = ("Content-Type: application/json", "retry-after-ms: 1")
    failing = answers(reply(b'{"type":"error"}', status="500 X", headers=headers), times=1)
    working = answers(reply(json.dumps(MESSAGE).encode()))
    async with scripted(in_turn(failing, failing, working)) as backend:
        config = way_config([backend.url], fast, passthrough_paths=LISTED)
        async with running(config) as edge, _client(edge, max_retries=2) as client:
            assert (await _create(client)).id == "msg_1"
    counts = [seen.header("x-stainless-retry-count") for seen in backend.requests]
    assert counts == ["0", "1", "2"]


@WAYS
async def test_its_own_timeout_leaves_the_backend(fast: bool) -> None:
    async with scripted(hangs()) as backend:
        config = way_config([backend.url], fast, passthrough_paths=LISTED)
        async with running(config) as edge, _client(edge) as client:
            with pytest.raises(anthropic.APITimeoutError):
                await _create(client, timeout=0.1)
            async with asyncio.timeout(1):
                while not backend.left:
                    await asyncio.sleep(0.01)
            await edge.settled()
            assert edge.in_flight() == 0
