"""The HTTP side alone, over a stream that the test publishes to."""

import asyncio
import hashlib

import aiohttp
import pytest

from continuum_kv_listener.bearer import BearerGate
from continuum_kv_listener.serve_sse import Access, ServeTimes
from support.listener_rig import subscribed, until
from support.sse_rig import Served, SlowClient, created


@pytest.fixture
async def served():
    made = Served()
    await made.start()
    yield made
    await made.runner.cleanup()


async def test_a_stream_greets_beats_and_delivers(served):
    async with subscribed(served.base, "s") as sub:
        await until(lambda: sub.comments.count("heartbeat") >= 2)
        assert sub.comments[0] == "prefix-length=77"
        served.source.stream.publish([created(1), created(2)])
        await until(lambda: len(sub.events) == 2)
        assert sub.last_id == "e-2"
        assert served.source.waited == [0.5]


async def test_headers(served):
    async with (
        aiohttp.ClientSession() as session,
        session.get(served.base + "/events/s") as response,
    ):
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Accel-Buffering"] == "no"


async def test_the_last_event_id_header_resumes(served):
    served.source.stream.publish([created(n) for n in range(5)])
    async with subscribed(served.base, "s", last_id="e-3") as sub:
        await until(lambda: len(sub.events) == 2)
        assert [event.tokens for event in sub.events] == [3, 4]


async def test_a_subscriber_that_leaves_is_forgotten(served):
    async with subscribed(served.base, "s") as sub:
        await until(lambda: sub.comments)
        assert served.source.stream.subscribers == 1
    await until(lambda: served.source.stream.subscribers == 0)
    assert served.count('stream_ends_total{end="client_left",source="s"}') == 1
    assert served.count('subscribers{source="s"}') == 0


async def test_closing_the_stream_ends_the_answer_cleanly(served):
    async with subscribed(served.base, "s") as sub:
        await until(lambda: sub.comments)
        served.source.stream.publish([created(1)])
        served.source.stream.close()
        await until(lambda: sub.ended)
        assert not sub.broken
        assert sub.comments[-1] == "closed=shutdown"
        assert len(sub.events) == 1
    assert served.count('stream_ends_total{end="shutdown",source="s"}') == 1


async def test_too_many_streams_are_refused_even_when_they_come_at_once():
    """All are there before the first of them is a subscriber: the source is still settling."""
    served = Served(access=Access(max_subscribers=5))
    await served.start()
    served.source.settling = asyncio.Event()
    url = served.base + "/events/s"
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            answers = await asyncio.gather(*(session.get(url) for _ in range(8)))
            refused = [answer for answer in answers if answer.status == 503]
            assert len(refused) == 3
            assert refused[0].headers["Retry-After"] == "5"
            assert (await refused[0].json())["error"]["message"] == "too many open streams"
            served.source.settling.set()
            await until(lambda: served.source.stream.subscribers == 5)
            assert served.count('refused_requests_total{reason="too_many_subscribers"}') == 3
            for answer in answers:
                answer.close()
            await until(lambda: served.source.stream.subscribers == 0)
            async with session.get(url) as again:
                assert again.status == 200
    finally:
        await served.runner.cleanup()


@pytest.mark.parametrize("path", ["/events/s", "/sources", "/metrics", "/nothing"])
async def test_who_shows_no_good_token_gets_nothing(path, caplog):
    digest = hashlib.sha256(b"canary-right-token").digest()
    served = Served(access=Access(gate=BearerGate([digest])))
    await served.start()
    try:
        async with aiohttp.ClientSession() as session:
            for token, challenge, reason in (
                (None, 'Bearer realm="continuum-kv-listener"', "no_token"),
                (
                    "canary-wrong-token",
                    'Bearer realm="continuum-kv-listener", error="invalid_token"',
                    "wrong_token",
                ),
            ):
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                async with session.get(served.base + path, headers=headers) as answer:
                    assert answer.status == 401
                    assert answer.headers["WWW-Authenticate"] == challenge
                    assert "canary" not in await answer.text()
                assert served.count(f'refused_requests_total{{reason="{reason}"}}') == 1
            async with session.get(served.base + "/health") as answer:
                assert answer.status == 200
            headers = {"Authorization": "Bearer canary-right-token"}
            async with session.get(served.base + path, headers=headers) as answer:
                assert answer.status == (404 if path == "/nothing" else 200)
        # One line a minute, and no token in it.
        assert [record.message for record in caplog.records] == ["Request refused"]
        assert "canary" not in repr([vars(record) for record in caplog.records])
    finally:
        await served.runner.cleanup()


async def test_an_unknown_source_is_counted(served):
    async with aiohttp.ClientSession() as session:
        async with session.get(served.base + "/events/other") as answer:
            assert answer.status == 404
    assert served.count('refused_requests_total{reason="unknown_source"}') == 1


@pytest.mark.parametrize("write", [0.3, 30.0], ids=["a write takes too long", "falls behind"])
async def test_a_slow_subscriber_is_closed_and_the_quick_one_never_notices(write, caplog):
    served = Served(history=1000, times=ServeTimes(heartbeat=5, settle=0.5, write=write))
    await served.start(send_buffer=4096)
    slow = SlowClient()
    try:
        stream = served.source.stream
        await slow.subscribe(served.base, "e-0")
        await until(lambda: stream.subscribers == 1)
        async with subscribed(served.base, "s", last_id="e-0") as quick:
            for start in range(0, 5000, 500):
                stream.publish([created(n) for n in range(start, start + 500)])
                await until(lambda n=start: len(quick.events) == n + 500)
            if write < 1:
                await until(lambda: stream.subscribers == 1)
            had = await slow.read_to_the_end()
            await until(lambda: stream.subscribers == 1)
            assert [event.tokens for event in quick.events] == list(range(5000))
        end = "stalled" if write < 1 else "fell_behind"
        assert served.count(f'stream_ends_total{{end="{end}",source="s"}}') == 1
        told = [r.fields for r in caplog.records if r.message.startswith("Slow subscriber")]
        assert [(line["reason"], line["source"]) for line in told] == [(end, "s")]
        assert told[0]["behind"] > 0
        # What it had, it had without a hole; coming back it is told to start anew.
        assert [event.id for event in had] == [f"e-{n + 1}" for n in range(len(had))]
        assert 0 < len(had) < 4000
        async with subscribed(served.base, "s", last_id=had[-1].id) as again:
            await until(lambda: again.events)
            assert again.actions() == ["cache_purged"]
    finally:
        slow.socket.close()
        await served.runner.cleanup()
