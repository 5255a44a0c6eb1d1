"""Lines that requests leave: noted at their end, written in batches, nothing that is not wanted."""

import asyncio
import logging

import pytest

from continuum_router.api.access_log import MAX_NOTED, AccessLog
from continuum_router.api.edge_metrics import EndpointLabel
from continuum_router.api.scope import Scope
from continuum_router.errors import BadRequest
from continuum_router.upstream.outcome import Ended, Outcome
from continuum_router.upstream.usage import Usage
from support.virtual_time import on_virtual_time

NAME = "continuum_router.access"


def scope(number: int = 1) -> Scope:
    return Scope(
        request_id=f"r{number}",
        started=0.0,
        method="POST",
        endpoint=EndpointLabel.CHAT,
        route="/v1/chat/completions",
        model="m",
        client_id="theirs",
        outcome=Outcome(
            backend="b1",
            attempts=1,
            ended=Ended.COMPLETE,
            ttft=0.0124,
            usage=Usage(prompt_tokens=3, total_tokens=5),
        ),
    )


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [record.__dict__["fields"] for record in caplog.records]


@on_virtual_time
async def test_a_line_is_written_a_moment_later_with_the_time_of_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=NAME)
    lines = AccessLog(lambda: 1000.5)
    lines.completed(scope(), 200, 1.2345678)
    assert told(caplog) == []
    await asyncio.sleep(0.11)
    assert told(caplog) == [
        {
            "event": "request_completed",
            "request_id": "r1",
            "x_request_id": "theirs",
            "method": "POST",
            "route": "/v1/chat/completions",
            "status": 200,
            "outcome": "complete",
            "duration_ms": 1234.568,
            "model": "m",
            "backend": "b1",
            "attempts": 1,
            "ttft_ms": 12.4,
            "prompt_tokens": 3,
            "total_tokens": 5,
        }
    ]
    assert caplog.records[0].created == 1000.5
    assert caplog.records[0].getMessage() == "Request completed"


@on_virtual_time
async def test_many_lines_do_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=NAME)
    lines = AccessLog(lambda: 0.0)
    for number in range(MAX_NOTED):
        assert len(caplog.records) == 0
        lines.completed(scope(number), 200, 0.0)
    assert [line["request_id"] for line in told(caplog)] == [f"r{n}" for n in range(MAX_NOTED)]


@on_virtual_time
async def test_after_the_end_nothing_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=NAME)
    lines = AccessLog(lambda: 0.0)
    lines.completed(scope(1), 200, 0.0)
    lines.close()
    lines.completed(scope(2), 200, 0.0)
    assert [line["request_id"] for line in told(caplog)] == ["r1", "r2"]


@on_virtual_time
async def test_at_level_warn_nothing_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger=NAME)
    lines = AccessLog(lambda: 0.0)
    assert not lines.wanted
    lines.started(scope())
    lines.completed(scope(), 200, 0.0)
    lines.close()
    assert told(caplog) == []


async def test_the_start_is_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=NAME)
    AccessLog(lambda: 0.0).started(scope())
    assert told(caplog) == [
        {"request_id": "r1", "route": "/v1/chat/completions", "model": "m"},
    ]


async def test_a_refusal_is_written_at_once(caplog: pytest.LogCaptureFixture) -> None:
    AccessLog(lambda: 0.0).rejected(scope(), BadRequest("secret text", code="bad"), 0.002)
    assert told(caplog) == [
        {
            "event": "request_rejected",
            "request_id": "r1",
            "x_request_id": "theirs",
            "method": "POST",
            "route": "/v1/chat/completions",
            "status": 400,
            "stage": BadRequest.stage,
            "latency": 2.0,
            "error.type": "invalid_request_error",
            "error.code": "bad",
        }
    ]
    assert "secret" not in caplog.text
