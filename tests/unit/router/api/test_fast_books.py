"""What a request on the fast path leaves: the same books as on the general way."""

import logging

import pytest

from continuum_router.backends.fleet import AttemptResult
from continuum_router.upstream.outcome import Ended
from support.fast_rig import FastRig, chat, fast_rig
from support.scripted_backend import LAST_CHUNK, chunk, chunked_head, reply, sse

ANSWER = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'
NAME = "continuum_router.access"


def sample(rig: FastRig, name: str) -> float:
    text = rig.router.state.metrics.exposition().decode()
    found = next(line for line in text.splitlines() if line.startswith(name))
    return float(found.rpartition(" ")[2])


async def test_a_completed_request_is_counted_once() -> None:
    async with fast_rig() as rig:
        rig.ask(chat()).data_received(reply(ANSWER))
        counted = 'continuum_requests_total{endpoint="chat_completions",status_class="2xx"}'
        assert sample(rig, counted) == 1
        assert sample(rig, "continuum_request_duration_seconds_count") == 1
        assert sample(rig, "continuum_ttft_seconds_count") == 1
        assert sample(rig, 'continuum_upstream_attempts_total{result="ok"}') == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_line_of_a_completed_request(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=NAME)
    whole = chunked_head() + chunk(sse(ANSWER.decode())) + LAST_CHUNK
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=stream, headers=("X-Request-Id: mine",)))
        backend.data_received(whole if stream else reply(ANSWER))
        rig.client._edge.lines.flush()
        (record,) = caplog.records
        line = dict(record.__dict__["fields"])
        for name in ("request_id", "duration_ms", "ttft_ms", "backend"):
            assert line.pop(name)
        assert line == {
            "event": "request_completed",
            "x_request_id": "mine",
            "method": "POST",
            "route": "/v1/chat/completions",
            "status": 200,
            "outcome": "complete",
            "model": "m",
            "rule": "prefix_hash",
            "attempts": 1,
            "prompt_tokens": 3,
            "completion_tokens": 4,
        }


async def test_at_level_warn_no_line_is_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger=NAME)
    async with fast_rig() as rig:
        backend = rig.ask(chat())
        call = rig.client._call
        backend.data_received(reply(ANSWER))
        assert not call.told
        assert call._scope is None


async def test_a_client_that_left_is_counted_and_its_start_of_an_answer_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=NAME)
    async with fast_rig() as rig:
        backend = rig.ask(chat(stream=True))
        backend.data_received(chunked_head() + chunk(sse(ANSWER.decode())))
        rig.client.connection_lost(None)
        rig.client._edge.lines.flush()
        (record,) = caplog.records
        line = record.__dict__["fields"]
        assert (line["status"], line["outcome"]) == (499, Ended.CLIENT_GONE)
        assert (line["attempts"], line["prompt_tokens"]) == (1, 3)
        attempts = rig.router.state.dispatch.metrics._attempts
        assert attempts[AttemptResult.CLIENT_GONE].value == 1
