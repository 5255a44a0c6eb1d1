"""Around every request: one answer, one count, the lines that S2 names, and no client text."""

import asyncio
import json
import logging

import aiohttp
import pytest
from aiohttp import web

from continuum_router.api.middleware import ActiveCount
from continuum_router.api.scope import Scope
from support.edge import BODY, Edge, edge_config, raw_exchange, running
from support.scripted_backend import answers, hangs, reply, scripted, streams

USAGE = (
    b'{"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}'
)
TRACE = "0af7651916cd43dd8448eb211c80319c"


def _lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    found = (getattr(record, "fields", {}) for record in caplog.records)
    return [fields for fields in found if fields.get("event") == event]


async def test_the_completion_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    headers = {
        "x-request-id": "theirs",
        "x-client-ref": "shop",
        "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
    }
    async with scripted(answers(reply(USAGE))) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(headers=headers)
            await edge.settled()
    (line,) = _lines(caplog, "request_completed")
    times = {name: line.pop(name) for name in ("duration_ms", "ttft_ms")}
    assert all(isinstance(ms, float) and 0 < ms < 5000 for ms in times.values())
    assert line == {
        "event": "request_completed",
        "request_id": answer.headers["x-continuum-request-id"],
        "trace_id": TRACE,
        "x_request_id": "theirs",
        "client_ref": "shop",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "outcome": "complete",
        "model": "m",
        "backend": "b1",
        "rule": "round_robin",
        "attempts": 1,
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "cached_tokens": 4,
    }


async def test_a_stream_has_its_line_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    script = streams('{"choices":[]}', USAGE.decode(), gap=0.02)
    async with scripted(script) as backend:
        async with running(edge_config([backend.url])) as edge:
            await edge.stream()
            await edge.settled()
    (line,) = _lines(caplog, "request_completed")
    assert (line["prompt_tokens"], line["cached_tokens"]) == (7, 4)
    assert isinstance(line["ttft_ms"], float)
    assert isinstance(line["duration_ms"], float)
    assert line["ttft_ms"] + 30 < line["duration_ms"]


async def test_the_rejection_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        answer = await edge.post({"model": "other", "messages": [{}]})
    (line,) = _lines(caplog, "request_rejected")
    assert isinstance(line.pop("latency"), float)
    assert line == {
        "event": "request_rejected",
        "request_id": answer.headers["x-continuum-request-id"],
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 404,
        "stage": "routing",
        "error.type": "invalid_request_error",
        "error.code": "model_not_found",
    }
    (completed,) = _lines(caplog, "request_completed")
    assert (completed["status"], completed["outcome"]) == (404, "rejected")
    assert "backend" not in completed


async def test_a_failure_of_the_backend_is_no_rejection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    more = "retry: {max_attempts: 2, initial_delay: 1ms}"
    async with running(edge_config(["http://127.0.0.1:1"], more)) as edge:
        assert (await edge.post()).status == 502
        for stage in ("auth", "rate_limit", "policy", "admission", "guardrail_input", "routing"):
            labels = {"stage": stage, "key_id": "unattributed"}
            assert edge.sample("request_rejected_total", **labels) == 0
    assert _lines(caplog, "request_rejected") == []
    (line,) = _lines(caplog, "request_completed")
    assert (line["status"], line["outcome"], line["backend"]) == (502, "failed", "b1")
    assert (line["attempts"], line["cause"]) == (2, "refused")


async def test_a_client_that_leaves_is_a_499(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with scripted(hangs()) as backend:
        async with running(edge_config([backend.url])) as edge:
            timeout = aiohttp.ClientTimeout(total=0.05)
            with pytest.raises(TimeoutError):
                await edge.session.post(
                    edge.url + "/v1/chat/completions", json=BODY, timeout=timeout
                )
            await edge.settled()
    (line,) = _lines(caplog, "request_completed")
    assert (line["status"], line["outcome"]) == (499, "client_cancelled")


async def test_health_and_metrics_leave_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        for path in ("/health", "/healthz", "/health/ready", "/metrics"):
            await edge.get(path)
        await edge.get("/v1/models")
        for endpoint, count in (("health", 3), ("metrics", 1), ("models", 1)):
            labels = {"endpoint": endpoint, "status_class": "2xx"}
            assert edge.sample("continuum_requests_total", **labels) == count
    assert [line["route"] for line in _lines(caplog, "request_completed")] == ["/v1/models"]


def _break_handler(edge: Edge, error: Exception) -> None:
    async def broken(request: web.BaseRequest, scope: Scope) -> web.StreamResponse:
        raise error

    server = edge.router._server
    routes = server._edge._routes.exact
    route = routes["/v1/models"]["GET"]
    object.__setattr__(route, "handler", broken)


async def test_a_defect_is_a_500_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        _break_handler(edge, ValueError("SECRET-prompt"))
        answer = await edge.get("/v1/models")
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert (await edge.get("/health")).status == 200
    assert b"SECRET" not in answer.body
    assert "SECRET" not in caplog.text
    (line,) = [r for r in caplog.records if r.message == "Request handler failed"]
    assert getattr(line, "fields")["error"] == "ValueError"  # noqa: B009


async def test_canaries_reach_no_log_and_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    canary = "CANARY-91"
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": canary + "prompt"}],
        "cache_salt": canary + "salt",
    }
    headers = {"Authorization": f"Bearer {canary}", "x-api-key": canary, "Cookie": canary}
    async with scripted(answers(reply(canary.encode(), status="500 X"))) as backend:
        entry = f"backends: [{{name: b1, url: '{backend.url}', models: [m], api_key: {canary}}}]"
        async with running(edge_config(entry)) as edge:
            await edge.post(body, headers=headers, path=f"/v1/chat/completions?key={canary}")
            await edge.post({**body, "stream": True}, headers=headers)
            await raw_exchange(edge.port, f"GET /{canary} HTTP/9.9\r\n{canary}\r\n\r\n".encode())
            await edge.get(f"/{canary}")
            assert canary.encode() not in edge.router.state.metrics.exposition()
    seen = [
        json.dumps(getattr(r, "fields", {}), default=str) + r.getMessage() for r in caplog.records
    ]
    assert [line for line in seen if canary in line] == []


async def test_active_count() -> None:
    active = ActiveCount()
    await active.wait_none()
    with active:
        waiting = asyncio.create_task(active.wait_none())
        with active:
            assert active.now == 2
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    assert active.now == 0
