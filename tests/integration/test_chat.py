"""The ordinary request, end to end on real sockets: what the backend sees, what the client gets."""

import gzip
import json

import pytest

from support.edge import BODY, edge_config, raw_exchange, running
from support.scripted_backend import answers, chunk, chunked_head, reply, scripted

COMPLETION = json.dumps(
    {
        "id": "c1",
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
).encode()


async def test_bytes_pass_through_both_ways() -> None:
    raw = b'{ "model":"m",\n "messages":[{"role":"user","content":"\xed\x95\x9c\\ud83d\\ude00"}] }'
    async with scripted(answers(reply(COMPLETION))) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(raw=raw)
    assert answer.status == 200
    assert answer.body == COMPLETION
    assert [seen.body for seen in backend.requests] == [raw]
    assert backend.requests[0].line == "POST /v1/chat/completions HTTP/1.1"


async def test_headers_of_the_answer() -> None:
    own = (
        "Content-Type: application/json",
        "X-Kept: yes",
        "Set-Cookie: a=b",
        "Server: engine",
        "Alt-Svc: h3",
        "X-Continuum-Backend: forged",
        "X-Cache: HIT",
        "Connection: X-Dropped",
        "X-Dropped: yes",
    )
    async with scripted(answers(reply(b"{}", headers=own))) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post()
    assert answer.headers["X-Kept"] == "yes"
    assert answer.headers["X-Cache"] == "BYPASS"
    assert answer.headers["x-continuum-backend"] == "b1"
    assert answer.headers["x-continuum-route"] == "round_robin"
    assert len(answer.headers["x-continuum-request-id"]) == 32
    assert answer.headers["Content-Length"] == "2"
    for name in ("Set-Cookie", "Server", "Alt-Svc", "X-Dropped"):
        assert name not in answer.headers


async def test_headers_to_the_backend() -> None:
    headers = {
        "Authorization": "Bearer client",
        "Cookie": "a=b",
        "X-Forwarded-For": "1.2.3.4",
        "Forwarded": "for=1.2.3.4",
        "x-continuum-backend": "b9",
        "Proxy-Authorization": "Basic x",
        "Accept-Encoding": "gzip, br",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "X-Kept": "1",
        "TE": "trailers",
    }
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            await edge.post(headers=headers)
    seen = backend.requests[0]
    assert seen.header("x-kept") == "1"
    assert seen.header("authorization") == "Bearer client"
    assert seen.header("accept-encoding") == "identity"
    assert seen.header("host") == backend.url.removeprefix("http://")
    dropped = ("Cookie", "X-Forwarded-For", "Forwarded", "x-continuum-backend", "X-Hop", "TE")
    assert [name for name in dropped if seen.header(name) is not None] == []
    assert seen.header("proxy-authorization") is None


async def test_a_backend_with_its_own_key_never_sees_the_clients() -> None:
    async with scripted(answers(reply())) as backend:
        entry = f"backends: [{{name: b1, url: '{backend.url}', models: [m], api_key: own-secret}}]"
        async with running(edge_config(entry)) as edge:
            await edge.post(
                path="/v1/chat/completions?key=abc&v=1",
                headers={"Authorization": "Bearer client", "x-api-key": "client"},
            )
    seen = backend.requests[0]
    assert seen.line == "POST /v1/chat/completions?v=1 HTTP/1.1"
    assert seen.header("authorization") == "Bearer own-secret"
    assert seen.header("x-api-key") is None
    assert b"client" not in seen.head


async def test_routing_headers_can_be_switched_off() -> None:
    async with scripted(answers(reply())) as backend:
        more = "server: {listen: '127.0.0.1:0', routing_headers: false}"
        async with running(edge_config([backend.url], more)) as edge:
            answer = await edge.post()
    assert "x-continuum-backend" not in answer.headers
    assert "x-continuum-route" not in answer.headers
    assert "x-continuum-request-id" in answer.headers


async def test_completions_use_their_own_path() -> None:
    async with scripted(answers(reply(COMPLETION))) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post({"model": "m", "prompt": "hi"}, path="/v1/completions")
    assert answer.status == 200
    assert backend.requests[0].line == "POST /v1/completions HTTP/1.1"


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500])
async def test_error_answers_of_a_backend_pass_with_status_and_body(status: int) -> None:
    wire = reply(b'{"error": {"message": "no"}}', status=f"{status} X", headers=["Retry-After: 7"])
    async with scripted(answers(wire)) as backend, running(edge_config([backend.url])) as edge:
        plain = await edge.post()
        streamed = await edge.stream()
    for answer in (plain, streamed):
        assert answer.status == status
        assert answer.body == b'{"error": {"message": "no"}}'
        assert answer.headers["Retry-After"] == "7"
        assert answer.headers["X-Cache"] == "BYPASS"
    assert len(backend.requests) == 2


@pytest.mark.parametrize("wire_form", ["length", "chunked"])
async def test_a_coded_answer_is_decoded(wire_form: str) -> None:
    coded = gzip.compress(COMPLETION * 100)
    headers = ("Content-Type: application/json", "Content-Encoding: gzip")
    pieces = (
        [reply(coded, headers=headers)]
        if wire_form == "length"
        else [chunked_head(headers=headers), chunk(coded[:50]), chunk(coded[50:]), b"0\r\n\r\n"]
    )
    async with scripted(answers(*pieces)) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(headers={"Accept-Encoding": "gzip"})
    assert answer.body == COMPLETION * 100
    assert "Content-Encoding" not in answer.headers


async def test_a_gzip_body_of_a_client_is_decoded() -> None:
    raw = json.dumps(BODY).encode()
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(raw=gzip.compress(raw), headers={"Content-Encoding": "gzip"})
    assert answer.status == 200
    assert backend.requests[0].body == raw
    assert backend.requests[0].header("content-encoding") is None


async def test_a_long_answer_is_relayed_whole() -> None:
    body = b'{"x": "' + b"y" * 3_000_000 + b'"}'
    async with scripted(answers(reply(body))) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post()
    assert answer.body == body
    assert answer.headers["Content-Length"] == str(len(body))


async def test_expect_continue_is_answered_here() -> None:
    body = json.dumps(BODY).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            got = await raw_exchange(edge.port, head + body)
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert backend.requests[0].header("expect") is None


async def test_round_robin_takes_turns_and_counters_are_exact() -> None:
    async with scripted(answers(reply(COMPLETION))) as one, scripted(answers(reply())) as two:
        async with running(edge_config([one.url, two.url])) as edge:
            served = [(await edge.post()).headers["x-continuum-backend"] for _ in range(6)]
            assert served == ["b1", "b2"] * 3
            total = edge.sample(
                "continuum_requests_total", endpoint="chat_completions", status_class="2xx"
            )
            assert total == 6
            assert edge.sample("continuum_upstream_attempts_total", result="ok") == 6
            assert edge.sample("continuum_request_duration_seconds_count") == 6
            assert edge.sample("continuum_ttft_seconds_count") == 6
            assert edge.sample("continuum_backend_in_flight", backend="b1") == 0
            for strategy in ("prefix_hash", "overflow", "fallback"):
                name = "continuum_prefix_routing_requests_total"
                assert edge.sample(name, strategy=strategy) == 0


async def test_prefix_hash_keeps_a_prefix_on_its_backend() -> None:
    more = "selection_strategy: PrefixAwareHash\nprefix_routing: {enabled: true}"
    async with scripted(answers(reply())) as one, scripted(answers(reply())) as two:
        async with running(edge_config([one.url, two.url], more)) as edge:
            rules, served = set(), set()
            for number in range(8):
                messages = [
                    {"role": "system", "content": "You help."},
                    {"role": "user", "content": str(number)},
                ]
                answer = await edge.post({"model": "m", "messages": messages})
                served.add(answer.headers["x-continuum-backend"])
                rules.add(answer.headers["x-continuum-route"])
            assert rules == {"prefix_hash"}
            assert len(served) == 1
            name = "continuum_prefix_routing_requests_total"
            assert edge.sample(name, strategy="prefix_hash") == 8
            decisions = "continuum_kv_index_routing_decisions_total"
            assert edge.sample(decisions, decision="fallback", tier="none") == 0
