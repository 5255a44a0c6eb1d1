"""Reports of other routers' users (cases R3, S2 to S5, S13), through the edge, on both ways in."""

import asyncio
import json
import random
import time

import pytest

from continuum_router.config.root import Config
from support.edge import BODY, edge_config, running
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    closes_idle,
    hangs,
    reply,
    scripted,
    sse,
    streams,
)

WAYS = pytest.mark.parametrize("fast", [False, True], ids=["general way", "fast path"])


def _config(urls: list[str], fast: bool, more: str = "") -> Config:
    way = "true" if fast else "false"
    return edge_config(urls, f"server: {{listen: '127.0.0.1:0', fast_path: {way}}}\n{more}")


@WAYS
@pytest.mark.parametrize("strategy", ["RoundRobin", "PrefixAwareHash"])
async def test_r3_load_counts_while_the_first_byte_is_awaited(fast: bool, strategy: str) -> None:
    """20 requests at once, long prefills: no backend gets more than two more than another."""
    tight = "prefix_routing: {enabled: true, load_factor_epsilon: 0.01}"
    more = f"selection_strategy: {strategy}\n{tight}"
    slow = answers(reply(), delay=0.5)
    async with scripted(slow) as one, scripted(slow) as two, scripted(slow) as three:
        fleet = (one, two, three)
        async with running(_config([backend.url for backend in fleet], fast, more)) as edge:
            found = await asyncio.gather(*[edge.post() for _ in range(20)])
            assert {answer.status for answer in found} == {200}
        shares = [len(backend.requests) for backend in fleet]
        assert sum(shares) == 20
        assert max(shares) - min(shares) <= 2


@WAYS
@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
async def test_s2_connections_that_are_closed_as_they_are_used(fast: bool, reset: bool) -> None:
    """Posts spaced around the backend's idle limit: no client error, nothing done twice."""
    rng = random.Random(2)
    limit = 0.03
    async with scripted(closes_idle(limit, reply(b'{"ok":1}'), reset=reset)) as backend:
        async with running(_config([backend.url], fast, "retry: {max_attempts: 1}")) as edge:

            async def posts(number: int) -> list[int]:
                statuses = []
                for turn in range(25):
                    statuses.append((await edge.post({**BODY, "n": number * 100 + turn})).status)
                    await asyncio.sleep(rng.uniform(limit * 0.8, limit * 1.2))
                return statuses

            found = await asyncio.gather(*[posts(number) for number in range(8)])
            assert found == [[200] * 25] * 8
    numbers = [json.loads(seen.body)["n"] for seen in backend.requests]
    assert len(numbers) == len(set(numbers)) == 200


@WAYS
@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
async def test_s3_partial_output_is_never_tried_again(fast: bool, reset: bool) -> None:
    pieces = [chunk(sse(json.dumps({"n": number}))) for number in range(3)]
    script = breaks_after(chunked_head(), *pieces, gap=0.03, reset=reset)
    async with scripted(script) as one, scripted(streams("{}")) as two:
        async with running(_config([one.url, two.url], fast)) as edge:
            answer = await edge.stream()
    assert answer.status == 200
    assert answer.body.startswith(b"".join(sse(json.dumps({"n": n})) for n in range(3)))
    assert answer.body.count(b'"code":"upstream_error"') == 1
    assert b"[DONE]" not in answer.body
    assert (len(one.requests), len(two.requests)) == (1, 0)


@WAYS
@pytest.mark.parametrize(
    ("status", "header"),
    [(400, "X-A: b"), (401, "X-A: b"), (429, "Retry-After: 60"), (500, "X-A: b")],
)
async def test_s4_an_error_on_a_stream_request_keeps_its_status(
    fast: bool, status: int, header: str
) -> None:
    body = b'{"error":{"message":"as it is","code":"x"}}'
    wire = reply(body, status=f"{status} X", headers=("Content-Type: application/json", header))
    async with scripted(answers(wire)) as backend:
        async with running(_config([backend.url], fast)) as edge:
            answer = await edge.stream()
    name, _, value = header.partition(": ")
    assert (answer.status, answer.body, answer.headers[name]) == (status, body, value)
    assert len(backend.requests) == 1


@WAYS
async def test_s5_text_is_not_decoded_piece_by_piece(fast: bool) -> None:
    """One byte a write: what is relayed is the same, whatever character is cut."""
    wire = b"".join(sse(text) for text in ('{"t":"안녕 中文 🚢"}', "[DONE]"))
    pieces = [chunk(wire[at : at + 1]) for at in range(len(wire))]
    async with scripted(answers(chunked_head(), *pieces, LAST_CHUNK, gap=0)) as backend:
        async with running(_config([backend.url], fast)) as edge:
            assert (await edge.stream()).body == wire


@WAYS
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_s13_a_wedged_backend_blocks_nobody_else(fast: bool, stream: bool) -> None:
    """Accepts and never answers: 504 at the configured time, the others and /health at once."""
    more = "timeouts: {request: {standard: {total: 400ms}, streaming: {first_byte: 400ms}}}"

    async def well(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(reply(b'{"ok":1}'))

    async with scripted(hangs()) as wedged, scripted(well) as other:
        config = _config([wedged.url, other.url], fast, more)
        async with running(config) as edge:
            begun = time.monotonic()
            asked = [edge.post({**BODY, "stream": stream}) for _ in range(40)]
            probe = asyncio.create_task(edge.get("/health"))
            found = await asyncio.gather(*asked)
            took = time.monotonic() - begun
            assert (await probe).status == 200
            assert sorted(answer.status for answer in found) == [200] * 20 + [504] * 20
            assert 0.4 <= took < 1.6
            assert edge.in_flight() == 0
    assert len(wedged.requests) == 20
    assert len(wedged.left) == 20
