"""Everything that is refused before a backend is chosen: status, code, message, one count."""

import gzip
import json

import pytest

from support.edge import BODY, CHAT, Edge, edge_config, raw_exchange, running
from support.scripted_backend import answers, reply, scripted

REFUSED = "request_rejected_total"
DEEP = b'{"model":"m","messages":' + b"[" * 3000 + b"]" * 3000 + b"}"

BAD_BODIES: dict[str, tuple[bytes, str, str, str | None]] = {
    "empty": (b"", "empty_body", "The request body is empty; send a JSON object.", None),
    "blank": (b" \n", "empty_body", "The request body is empty; send a JSON object.", None),
    "not json": (
        b"{nope}",
        "invalid_json",
        "The request body is not valid JSON (line 1, column 2).",
        None,
    ),
    "cut json": (
        b'{"model": "m"',
        "invalid_json",
        "The request body is not valid JSON (line 1, column 14).",
        None,
    ),
    "nan": (
        b'{"model":"m","messages":[{}],"temperature":NaN}',
        "invalid_json",
        "The request body is not valid JSON (line 1, column 44).",
        None,
    ),
    "infinity": (
        b'{"model":"m","messages":[{}],"temperature":-Infinity}',
        "invalid_json",
        "The request body is not valid JSON (line 1, column 45).",
        None,
    ),
    "invalid utf-8": (
        b'{"model":"\xff"}',
        "invalid_json",
        "The request body is not valid JSON (line 1, column 1).",
        None,
    ),
    "array": (b"[]", "invalid_json", "The request body must be a JSON object, not an array.", None),
    "string": (
        b'"x"',
        "invalid_json",
        "The request body must be a JSON object, not a string.",
        None,
    ),
    "null": (b"null", "invalid_json", "The request body must be a JSON object, not null.", None),
    "no model": (
        b'{"messages":[{}]}',
        "missing_required_parameter",
        "Missing required parameter: 'model'.",
        "model",
    ),
    "null model": (
        b'{"model":null,"messages":[{}]}',
        "missing_required_parameter",
        "Missing required parameter: 'model'.",
        "model",
    ),
    "model number": (
        b'{"model":1,"messages":[{}]}',
        "invalid_type",
        "Invalid type for 'model': expected a string, got an integer.",
        "model",
    ),
    "model empty": (
        b'{"model":"","messages":[{}]}',
        "invalid_value",
        "Invalid 'model': it must not be empty.",
        "model",
    ),
    "model long": (
        b'{"model":"' + b"x" * 257 + b'","messages":[{}]}',
        "invalid_value",
        "Invalid 'model': it must not be longer than 256 characters.",
        "model",
    ),
    "model control": (
        b'{"model":"a\\nb","messages":[{}]}',
        "invalid_value",
        "Invalid 'model': it must not contain control characters.",
        "model",
    ),
    "no messages": (
        b'{"model":"m"}',
        "missing_required_parameter",
        "Missing required parameter: 'messages'.",
        "messages",
    ),
    "messages string": (
        b'{"model":"m","messages":"hi"}',
        "invalid_type",
        "Invalid type for 'messages': expected an array, got a string.",
        "messages",
    ),
    "messages empty": (
        b'{"model":"m","messages":[]}',
        "invalid_value",
        "Invalid 'messages': it must have at least one message.",
        "messages",
    ),
    "message string": (
        b'{"model":"m","messages":[{},"hi"]}',
        "invalid_type",
        "Invalid type for 'messages[1]': expected an object, got a string.",
        "messages[1]",
    ),
    "stream string": (
        b'{"model":"m","messages":[{}],"stream":"yes"}',
        "invalid_type",
        "Invalid type for 'stream': expected a boolean, got a string.",
        "stream",
    ),
    "stream number": (
        b'{"model":"m","messages":[{}],"stream":1}',
        "invalid_type",
        "Invalid type for 'stream': expected a boolean, got an integer.",
        "stream",
    ),
    "salt number": (
        b'{"model":"m","messages":[{}],"cache_salt":1.5}',
        "invalid_type",
        "Invalid type for 'cache_salt': expected a string, got a number.",
        "cache_salt",
    ),
    "router salt": (
        b'{"model":"m","messages":[{}],"cache_salt":"cr1.x.y"}',
        "reserved_salt",
        "Invalid 'cache_salt': values that begin with 'cr1.' are reserved.",
        "cache_salt",
    ),
    "router salt as extra key": (
        b'{"model":"m","messages":[{}],"extra_key":"cr1."}',
        "reserved_salt",
        "Invalid 'extra_key': values that begin with 'cr1.' are reserved.",
        "extra_key",
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_bad_chat_bodies(name: str) -> None:
    raw, code, message, param = BAD_BODIES[name]
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(raw=raw)
            assert answer.status == 400
            assert {k: v for k, v in answer.error.items() if k != "request_id"} == {
                "message": message,
                "type": "invalid_request_error",
                "param": param,
                "code": code,
            }
            assert answer.error["request_id"] == answer.headers["x-continuum-request-id"]
            assert answer.headers["X-Cache"] == "BYPASS"
            assert edge.sample(REFUSED, stage="admission", key_id="unattributed") == 1
            assert edge.sample("continuum_upstream_attempts_total", result="ok") == 0
    assert backend.requests == []


async def test_a_body_too_deep_is_refused_not_a_crash() -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            assert (await edge.post(raw=DEEP)).error["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": "m"}, "Missing required parameter: 'prompt'."),
        ({"model": "m", "prompt": []}, "Invalid 'prompt': it must not be an empty array."),
        (
            {"model": "m", "prompt": 5},
            "Invalid type for 'prompt': expected a string or an array, got an integer.",
        ),
    ],
)
async def test_bad_completion_bodies(body: dict[str, object], message: str) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(body, path="/v1/completions")
    assert (answer.status, answer.error["message"]) == (400, message)


async def _refused_once(edge: Edge, stage: str) -> bool:
    counts = {
        name: edge.sample(REFUSED, stage=name, key_id="unattributed")
        for name in ("auth", "rate_limit", "policy", "admission", "guardrail_input", "routing")
    }
    return counts == {**dict.fromkeys(counts, 0), stage: 1}


async def test_an_unknown_model_is_404_model_not_found() -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post({**BODY, "model": "other"})
            assert answer.status == 404
            assert answer.error["code"] == "model_not_found"
            assert answer.error["param"] == "model"
            assert await _refused_once(edge, "routing")


@pytest.mark.parametrize("path", ["/nope", "/", "/admin", "/v1/%63hat/completions", "/v1/models/"])
async def test_unknown_paths_are_404_json(path: str) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            got = await raw_exchange(
                edge.port, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
            )
            assert got.startswith(b"HTTP/1.1 404 ")
            assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "not_found"
            assert await _refused_once(edge, "routing")


async def test_a_wrong_method_is_405_with_allow() -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.get(CHAT)
            assert answer.status == 405
            assert answer.headers["Allow"] == "POST"
            assert answer.error["code"] == "method_not_allowed"


HOST = b"Host: x\r\n"
MALFORMED = {
    "two hosts": b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "length and chunked": b"POST /v1/chat/completions HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
    "two lengths": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
    "not http": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "bad name": b"GET / HTTP/1.1\r\n" + HOST + b"Bad Name: x\r\n\r\n",
    "folded": b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_are_400_json_and_close(name: str) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            got = await raw_exchange(edge.port, MALFORMED[name])
            assert got.startswith(b"HTTP/1.1 400 ")
            head, _, body = got.partition(b"\r\n\r\n")
            assert b"connection: close" in head.lower()
            assert b"\nserver:" not in head.lower()
            assert json.loads(body)["error"]["code"] == "malformed_request"
            assert await _refused_once(edge, "admission")
    assert backend.requests == []


LIMIT = "server: {listen: '127.0.0.1:0', max_body_bytes: 2048}"


@pytest.mark.parametrize("form", ["length", "chunked", "bomb"])
async def test_a_body_over_the_limit_is_413_before_parsing(form: str) -> None:
    big = b'{"x": "' + b"y" * 3000
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    data = {
        "length": head + b"Content-Length: %d\r\n\r\n" % len(big) + big,
        "chunked": head
        + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(big)
        + big
        + b"\r\n0\r\n\r\n",
        "bomb": head
        + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(gzip.compress(big * 100))
        + gzip.compress(big * 100),
    }[form]
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url], LIMIT)) as edge:
            got = await raw_exchange(edge.port, data)
            assert got.startswith(b"HTTP/1.1 413 ")
            assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_too_large"
            assert await _refused_once(edge, "admission")
            exact = b'{"model":"m","messages":[{}],"x":"' + b"y" * 2012 + b'"}'
            assert len(exact) == 2048
            assert (await edge.post(raw=exact)).status == 200


@pytest.mark.parametrize(
    ("coding", "data", "status", "code"),
    [
        ("gzip", b"no gzip at all", 400, "invalid_body"),
        ("gzip", gzip.compress(json.dumps(BODY).encode())[:-12], 400, "invalid_body"),
        ("br", b"x", 415, "unsupported_media_type"),
        ("gzip, gzip", b"x", 415, "unsupported_media_type"),
    ],
)
async def test_bad_content_codings(coding: str, data: bytes, status: int, code: str) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(raw=data, headers={"Content-Encoding": coding})
            assert (answer.status, answer.error["code"]) == (status, code)


@pytest.mark.parametrize(
    "named", ["Host", "Content-Length", "Authorization", "x-api-key", "X-Continuum-A"]
)
async def test_connection_must_not_strip_protected_headers(named: str) -> None:
    body = json.dumps(BODY).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close, {named}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            got = await raw_exchange(edge.port, head.encode() + body)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_connection_header" in got
    assert backend.requests == []


async def test_another_expectation_is_417() -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            got = await raw_exchange(
                edge.port,
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: a-pony\r\n"
                b"Content-Length: 2\r\n\r\n{}",
            )
    assert got.startswith(b"HTTP/1.1 417 ")


async def test_no_error_repeats_what_the_client_sent() -> None:
    canary = "CANARY-7f3a"
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            for raw in (
                f'{{"model":"m","{canary}'.encode(),
                f'{{"model":"{canary}","messages":[{{}}]}}'.encode(),
                f'{{"model":"m","messages":[{{}}],"cache_salt":"cr1.{canary}"}}'.encode(),
            ):
                answer = await edge.post(raw=raw)
                assert answer.status in (400, 404)
                assert canary.encode() not in answer.body
            assert canary.encode() not in edge.router.state.metrics.exposition()
