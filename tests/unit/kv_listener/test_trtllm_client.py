import asyncio
import socket

import aiohttp
import pytest

from continuum_kv_listener.listener_metrics import PollResult
from continuum_kv_listener.trtllm_client import PollError, PollFault, PollTimes, TrtllmClient
from support.trtllm_server import created, trtllm_server

QUICK = PollTimes(connect=1.0, silent=0.2, answer=1.0)


@pytest.fixture
async def server():
    async with trtllm_server() as made:
        yield made


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as made:
        yield made


def client(session, server, **more):
    return TrtllmClient(session, server.url, **{"max_bytes": 65536, "times": QUICK, **more})


async def test_each_answer_is_what_is_queued(session, server):
    poller = client(session, server)
    server.tell(created())
    assert (await poller.poll()).startswith(b'[{"event_id":0')
    assert await poller.poll() == b"[]"
    assert server.requests == [("POST", b""), ("POST", b"")]


async def test_a_server_that_wants_get_is_asked_so_from_then_on(session, server):
    server.accepts = "GET"
    poller = client(session, server)
    assert await poller.poll() == b"[]"
    assert await poller.poll() == b"[]"
    assert [method for method, _ in server.requests] == ["POST", "GET", "GET"]


async def test_a_server_that_wants_neither_is_refusing(session, server):
    server.accepts = "PUT"
    poller = client(session, server)
    for _ in range(2):
        with pytest.raises(PollError) as caught:
            await poller.poll()
        assert (caught.value.fault, caught.value.status) == (PollFault.REFUSED, 405)
    assert [method for method, _ in server.requests] == ["POST", "GET"] * 2


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("500", PollFault.REFUSED),
        ("404", PollFault.REFUSED),
        ("redirect", PollFault.REDIRECT),
        ("reset", PollFault.UNREACHABLE),
        ("cut", PollFault.CUT_SHORT),
        ("stall", PollFault.TIMEOUT),
        ("endless", PollFault.TOO_LARGE),
        ("gzip", PollFault.BAD_ANSWER),
    ],
)
async def test_each_fault_has_its_name_and_is_over_with_the_next_poll(
    session, server, fault, expected
):
    server.location = server.url.replace("kv_cache_events", "never")
    server.faults = [fault]
    server.tell(*[created()] * 20)
    poller = client(session, server)
    with pytest.raises(PollError) as caught:
        await poller.poll()
    assert caught.value.fault is expected
    assert "127.0.0.1" not in str(caught.value)
    if fault == "redirect":
        assert server.elsewhere == 0
    assert (await poller.poll())[:1] == b"["


async def test_an_answer_is_bounded_while_it_is_read(session, server):
    server.faults = ["endless"]
    with pytest.raises(PollError):
        await client(session, server).poll()
    await asyncio.sleep(0.05)
    sent = server.elsewhere
    await asyncio.sleep(0.05)
    assert server.elsewhere == sent < 32 << 20


async def test_an_announced_length_is_believed_when_it_is_too_much(session, server):
    server.tell(*[created()] * 2000)
    with pytest.raises(PollError) as caught:
        await client(session, server).poll()
    assert caught.value.fault is PollFault.TOO_LARGE


async def test_nobody_there(session):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/kv_cache_events"
        poller = TrtllmClient(session, url, max_bytes=1024, times=QUICK)
        for ask in (poller.poll, poller.look):
            with pytest.raises(PollError) as caught:
                await ask()
            assert caught.value.fault is PollFault.UNREACHABLE


async def test_a_look_leaves_the_events_alone(session, server):
    server.tell(created())
    await client(session, server).look()
    assert len(server.queue) == 1
    elsewhere = TrtllmClient(session, server.url + "x", max_bytes=1024)
    with pytest.raises(PollError) as caught:
        await elsewhere.look()
    assert caught.value.status == 404


def test_every_fault_can_be_counted():
    assert {fault.value for fault in PollFault} <= {result.value for result in PollResult}
