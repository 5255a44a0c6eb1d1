"""Streams: bytes untouched, nothing held back that matters, honest ends."""

import asyncio
import json

import openai
import pytest

from support.edge import BODY, edge_config, running
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    hangs,
    scripted,
    sse,
    streams,
)

EVENTS = ('{"choices":[{"delta":{"content":"안"}}]}', '{"choices":[{"delta":{"content":"녕"}}]}')
WHOLE = b"".join(sse(event) for event in (*EVENTS, "[DONE]"))


async def test_a_stream_is_relayed_byte_for_byte() -> None:
    async with scripted(streams(*EVENTS)) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.stream()
            assert (answer.status, answer.body, answer.cut) == (200, WHOLE, False)
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.headers["x-continuum-backend"] == "b1"
            assert edge.sample("continuum_ttft_seconds_count") == 1
            assert edge.in_flight() == 0


async def test_one_byte_a_write_changes_nothing() -> None:
    wire = b": hello\n\n" + WHOLE
    pieces = [chunk(wire[i : i + 1]) for i in range(len(wire))]
    async with scripted(answers(chunked_head(), *pieces, LAST_CHUNK, gap=0)) as backend:
        async with running(edge_config([backend.url])) as edge:
            assert (await edge.stream()).body == wire


async def test_events_arrive_as_they_are_made() -> None:
    release = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(chunked_head(), chunk(sse(EVENTS[0])))
        await release.wait()
        await peer.send(chunk(sse(EVENTS[1])), LAST_CHUNK)

    async with scripted(script) as backend, running(edge_config([backend.url])) as edge:
        url = edge.url + "/v1/chat/completions"
        async with edge.session.post(url, json={**BODY, "stream": True}) as response:
            assert await response.content.readany() == sse(EVENTS[0])
            assert edge.in_flight() == 1
            release.set()
            assert await response.content.read() == sse(EVENTS[1])


async def test_a_backend_that_dies_in_a_stream_gives_an_error_event_and_one_call() -> None:
    half = chunk(b'data: {"choi')
    pieces = (chunked_head(), chunk(sse(EVENTS[0])), chunk(sse(EVENTS[1])), half)
    async with scripted(breaks_after(*pieces, reset=True, gap=0.01)) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.stream()
            assert edge.sample("continuum_upstream_attempts_total", result="failed") == 1
            assert edge.in_flight() == 0
    assert answer.status == 200
    assert not answer.cut
    assert answer.body.startswith(sse(EVENTS[0]) + sse(EVENTS[1]) + b"data: {")
    assert b"[DONE]" not in answer.body
    assert b"choi" not in answer.body.split(b"\n\n")[2]
    last = json.loads(answer.body.split(b"\n\n")[2].removeprefix(b"data: "))
    assert last["error"]["code"] == "upstream_error"
    assert last["error"]["type"] == "api_error"
    assert last["error"]["message"] == "The backend did not give a usable answer."
    assert len(backend.requests) == 1


async def test_a_stream_of_announced_length_still_ends_with_a_whole_error_event() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 90\r\n\r\n"
    async with scripted(breaks_after(head, sse(EVENTS[0]))) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.stream()
            await edge.settled()
    assert answer.body.startswith(sse(EVENTS[0]))
    last = answer.body.removeprefix(sse(EVENTS[0]))
    assert json.loads(last.removeprefix(b"data: "))["error"]["status"] == 502


async def test_an_error_as_first_event_becomes_a_status() -> None:
    error = '{"error":{"message":"too long","type":"BadRequestError","code":400}}'
    async with scripted(streams(error)) as backend, running(edge_config([backend.url])) as edge:
        answer = await edge.stream()
    assert answer.status == 400
    assert answer.json == json.loads(error)
    assert answer.headers["Content-Type"] == "application/json"


async def test_a_retryable_error_event_is_tried_elsewhere() -> None:
    error = '{"error":{"message":"full","code":503}}'
    async with scripted(streams(error)) as one, scripted(streams(*EVENTS)) as two:
        async with running(edge_config([one.url, two.url])) as edge:
            answer = await edge.stream()
            assert edge.sample("continuum_upstream_attempts_total", result="busy") == 1
    assert (answer.status, answer.body) == (200, WHOLE)
    assert answer.headers["x-continuum-backend"] == "b2"


FAST = """
timeouts:
  request:
    standard: {first_byte: 100ms, total: 300ms}
    streaming: {first_byte: 200ms, chunk_interval: 200ms, total: 600ms}
"""


async def test_first_byte_is_a_504_and_is_not_retried() -> None:
    async with scripted(hangs(chunked_head(), chunk(b": ping\n\n"))) as backend:
        async with running(edge_config([backend.url], FAST)) as edge:
            answer = await edge.stream()
            assert answer.status == 504
            assert answer.error["code"] == "upstream_timeout"
            assert edge.sample("continuum_upstream_attempts_total", result="failed") == 1
    assert len(backend.requests) == 1
    assert len(backend.left) == 1


async def test_comments_do_not_stretch_first_byte() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(chunked_head(), *[chunk(b": ping\n\n")] * 40, gap=0.02)

    async with scripted(script) as backend, running(edge_config([backend.url], FAST)) as edge:
        assert (await edge.stream()).status == 504


async def test_a_silent_stream_ends_with_an_error_event() -> None:
    async with scripted(hangs(chunked_head(), chunk(sse(EVENTS[0])))) as backend:
        async with running(edge_config([backend.url], FAST)) as edge:
            answer = await edge.stream()
    assert answer.status == 200
    assert json.loads(answer.body.split(b"\n\n")[1][6:])["error"]["status"] == 504
    assert len(backend.left) == 1


async def test_any_byte_keeps_a_stream_alive_until_its_total() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(chunked_head(), chunk(sse(EVENTS[0])), *[chunk(b": p\n\n")] * 30, gap=0.05)

    async with scripted(script) as backend, running(edge_config([backend.url], FAST)) as edge:
        answer = await edge.stream()
    pings = answer.body.count(b": p\n\n")
    assert 6 <= pings <= 12
    assert b'"status":504' in answer.body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_that_never_answers_is_a_504(stream: bool) -> None:
    async with scripted(hangs()) as backend, running(edge_config([backend.url], FAST)) as edge:
        answer = await edge.post({**BODY, "stream": stream})
        assert answer.status == 504
        assert edge.in_flight() == 0
    assert len(backend.requests) == 1
    assert len(backend.left) == 1


async def test_a_slow_client_is_not_the_backends_fault() -> None:
    """More than all buffers hold: the client pauses longer than chunk_interval, nothing breaks."""
    piece = sse('{"x":"' + "y" * 60_000 + '"}')
    count = 250

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(chunked_head(), *[chunk(piece)] * count, LAST_CHUNK)
        await peer.until_client_leaves()

    slow = FAST.replace("total: 600ms", "total: 20s")
    async with scripted(script) as backend, running(edge_config([backend.url], slow)) as edge:
        url = edge.url + "/v1/chat/completions"
        async with edge.session.post(url, json={**BODY, "stream": True}) as response:
            await asyncio.sleep(0.6)
            assert await response.content.read() == piece * count


async def test_the_openai_client_reads_it() -> None:
    first = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "안녕"}}],
    }
    async with scripted(streams(json.dumps(first))) as backend:
        async with running(edge_config([backend.url])) as edge:
            async with openai.AsyncOpenAI(base_url=edge.url + "/v1", api_key="k") as client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                texts = [part.choices[0].delta.content async for part in stream]
                assert texts == ["안녕"]
                with pytest.raises(openai.NotFoundError) as caught:
                    await client.chat.completions.create(model="no", messages=[{"role": "user"}])
                assert caught.value.code == "model_not_found"


async def test_the_openai_client_sees_a_broken_stream_as_an_error() -> None:
    pieces = (chunked_head(), chunk(sse('{"choices":[]}')))
    async with scripted(breaks_after(*pieces, gap=0.01)) as backend:
        async with running(edge_config([backend.url])) as edge:
            async with openai.AsyncOpenAI(
                base_url=edge.url + "/v1", api_key="k", max_retries=0
            ) as client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                with pytest.raises(openai.APIError, match="usable answer"):
                    async for _ in stream:
                        pass


@pytest.mark.parametrize("gaps", [(0.0, 0.25), (0.25, 0.25)], ids=["quick start", "slow start"])
async def test_a_silent_stream_is_kept_alive_and_the_openai_client_does_not_mind(
    gaps: tuple[float, float],
) -> None:
    """S6: `: ping` and one line feed, between events only, never before the first data event."""
    event = (
        '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
        '"choices":[{"index":0,"delta":{"content":"안"}}]}'
    )
    half = len(sse(event)) // 2

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(chunked_head())
            await asyncio.sleep(gaps[0])
            await peer.send(chunk(b"id: 7\n" + sse(event)))
            await asyncio.sleep(gaps[1])
            await peer.send(chunk(sse(event)[:half]))
            await asyncio.sleep(gaps[1])
            await peer.send(chunk(sse(event)[half:]), chunk(sse("[DONE]")), LAST_CHUNK)

    more = "server: {listen: '127.0.0.1:0', sse_keepalive: 100ms}"
    async with scripted(script) as backend, running(edge_config([backend.url], more)) as edge:
        body = (await edge.stream()).body
        assert body.count(b": ping\n") >= 4
        assert b": ping\n\n" not in body
        assert body.replace(b": ping\n", b"") == b"id: 7\n" + sse(event) * 2 + sse("[DONE]")
        first, *rest = body.split(b"\n\n")
        assert b"ping" not in first
        assert all(b"ping" not in piece.partition(b"data:")[2] for piece in rest)
        client = openai.AsyncOpenAI(base_url=edge.url + "/v1", api_key="k", max_retries=0)
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        texts = [part.choices[0].delta.content async for part in stream]
        assert texts == ["안", "안"]
        await client.close()


async def test_without_the_key_nothing_is_added() -> None:
    async with scripted(streams(*EVENTS, gap=0.1)) as backend:
        async with running(edge_config([backend.url])) as edge:
            assert (await edge.stream()).body == WHOLE
