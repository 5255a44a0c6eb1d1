"""One backend's connections: order, cap, queue, idle limit."""

import asyncio
from collections.abc import Callable

import pytest

from continuum_router.errors import AttemptFailure, Cause
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.lane import Lane
from continuum_router.upstream.response_head import HeadReader
from continuum_shared.config.kinds import BackendUrl
from support.scripted_backend import ScriptedBackend, answers, hangs, reply, scripted
from support.upstream_calls import RecordingSink, request, until


class Clock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lane_to(backend: ScriptedBackend, *, cap: int = 8, clock: Clock | None = None) -> Lane:
    lane = Lane(
        BackendUrl.parse(backend.url),
        heads=HeadReader(),
        idle_limit=4.0,
        clock=clock or Clock(),
        on_idle=lambda: None,
    )
    lane.cap = cap
    return lane


async def get(lane: Lane, *, timeout: float = 2, fresh: bool = False) -> Connection:
    return await lane.get(connect_timeout=timeout, fresh=fresh, tls=None)


class AtTheEnd(RecordingSink):
    """Does something when the connection has been given back, before any task runs again."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def on_end(self) -> None:
        self.action()
        super().on_end()


async def use(connection: Connection, sink: RecordingSink | None = None) -> RecordingSink:
    """One whole call."""
    sink = sink or RecordingSink()
    connection.start(request(), sink)
    await sink.finished.wait()
    return sink


async def idle(lane: Lane, count: int) -> list[Connection]:
    """So many idle connections, in the order in which they fell idle."""
    made = [await get(lane) for _ in range(count)]
    for connection in made:
        await use(connection)
    return made


async def test_the_one_used_last_is_taken_first():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend)
        first, second, third = await idle(lane, 3)
        assert lane.take() is third
        assert lane.take() is second
        assert lane.take() is first
        assert lane.take() is None
        lane.close()


async def test_an_idle_connection_past_its_time_is_closed():
    clock = Clock()
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, clock=clock)
        old, new = await idle(lane, 2)
        clock.now = 3.9
        assert lane.take() is new
        await use(new)
        clock.now = 4.0
        assert lane.sweep()
        assert not old.usable
        assert (lane.idle, lane.size) == ([new], 1)
        clock.now = 7.9
        assert lane.take() is None
        assert lane.size == 0


@pytest.mark.parametrize(
    ("hint", "kept_until"),
    [("Keep-Alive: timeout=2", 1.6), ("Keep-Alive: timeout=60", 4.0), ("X: y", 4.0)],
)
async def test_the_peers_hint_can_only_shorten(hint, kept_until):
    async with scripted(answers(reply(headers=[hint]))) as backend:
        lane = lane_to(backend)
        connection = (await idle(lane, 1))[0]
        assert connection.idle_until == kept_until
        lane.close()


async def test_the_cap_makes_callers_wait_in_order():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=2)
        one, two = await get(lane), await get(lane)
        waiting = [asyncio.create_task(get(lane)) for _ in range(3)]
        await until(lambda: lane.waiting == 3)
        await use(one)
        assert await waiting[0] is one
        two.abort()
        other = await waiting[1]
        assert other not in {one, two}
        await use(one)
        assert await waiting[2] is one
        assert backend.connections == 3
        assert lane.size == 2
        lane.close()
        assert lane.size == 0


async def test_waiting_for_the_cap_has_an_end():
    async with scripted(hangs()) as backend:
        lane = lane_to(backend, cap=1)
        await get(lane)
        started = asyncio.get_running_loop().time()
        with pytest.raises(AttemptFailure) as caught:
            await get(lane, timeout=0.1)
        assert caught.value.cause is Cause.POOL_FULL
        assert 0.09 <= asyncio.get_running_loop().time() - started < 1
        assert (lane.waiting, lane.size) == (0, 1)
        lane.close()


async def test_a_waiter_that_gives_up_is_passed_over():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=1)
        one = await get(lane)
        first, second = (asyncio.create_task(get(lane)) for _ in range(2))
        await until(lambda: lane.waiting == 2)
        first.cancel()
        await until(first.done)
        await use(one)
        assert await second is one
        lane.close()


@pytest.mark.parametrize("gift", ["connection", "place"])
async def test_what_a_waiter_was_given_while_it_gave_up_goes_on(gift):
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=1)
        one = await get(lane)
        first, second = (asyncio.create_task(get(lane)) for _ in range(2))
        await until(lambda: lane.waiting == 2)
        if gift == "connection":
            await use(one, AtTheEnd(first.cancel))
        else:
            one.abort()
            first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        got = await second
        assert (got is one) == (gift == "connection")
        assert lane.size == 1
        lane.close()


async def test_a_connection_that_dies_on_the_way_to_a_waiter_is_replaced():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=1)
        one = await get(lane)
        waiting = asyncio.create_task(get(lane))
        await until(lambda: lane.waiting == 1)
        await use(one, AtTheEnd(one.abort))
        other = await waiting
        assert other is not one
        assert other.usable
        assert lane.size == 1
        lane.close()


async def test_fresh_means_a_connection_that_carried_no_call():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=2)
        old, newer = await idle(lane, 2)
        fresh = await get(lane, fresh=True)
        assert fresh.calls == 0
        assert not old.usable  # at the cap, the oldest idle one made room
        assert newer.usable
        assert lane.size == 2
        lane.close()


async def test_a_waiter_for_a_fresh_one_trades_the_kept_one_in():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=1)
        one = await get(lane)
        waiting = asyncio.create_task(get(lane, fresh=True))
        await until(lambda: lane.waiting == 1)
        await use(one)
        fresh = await waiting
        assert (fresh.calls, one.usable, lane.size) == (0, False, 1)
        lane.close()


async def test_a_failed_connect_frees_its_place():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=1)
    for _ in range(3):
        with pytest.raises(AttemptFailure) as caught:
            await get(lane)
        assert caught.value.cause is Cause.REFUSED
    assert lane.size == 0


async def test_a_lowered_cap_is_reached_as_calls_end():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=3)
        made = [await get(lane) for _ in range(3)]
        lane.cap = 1
        for connection in made:
            await use(connection)
        assert lane.size == 1
        lane.close()


async def test_a_retired_lane_lets_calls_end_and_keeps_nothing():
    """Queued ones and ones that come late too: they belong to requests that began before."""
    async with scripted(answers(reply(b"late"), delay=0.02)) as backend:
        lane = lane_to(backend, cap=2)
        kept = (await idle(lane, 1))[0]
        busy = await get(lane, fresh=True)
        sink = RecordingSink()
        busy.start(request(), sink)
        assert await get(lane) is kept
        blocked = asyncio.create_task(get(lane))
        await until(lambda: lane.waiting == 1)
        lane.retire()
        late = asyncio.create_task(get(lane))
        await until(lambda: lane.waiting == 2)
        kept.abort()
        assert (await use(await blocked)).body == b"late"
        assert (await use(await late)).body == b"late"
        await sink.finished.wait()
        assert sink.body == b"late"
        assert lane.size == 0


async def test_a_connection_that_is_made_while_its_lane_retires_is_used_and_not_kept():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend)
        making = asyncio.create_task(get(lane))
        await until(lambda: lane.size == 1)
        lane.retire()
        assert (await use(await making)).body == b"{}"
        assert lane.size == 0


async def test_a_closed_lane_gives_nothing():
    async with scripted(answers(reply())) as backend:
        lane = lane_to(backend, cap=1)
        making = asyncio.create_task(get(lane))
        blocked = asyncio.create_task(get(lane))
        await asyncio.sleep(0)
        assert (lane.size, lane.waiting) == (1, 1)
        lane.close()
        for late in (making, blocked, asyncio.create_task(get(lane))):
            with pytest.raises(AttemptFailure) as caught:
                await late
            assert caught.value.cause is Cause.POOL_CLOSED
        assert lane.size == 0
