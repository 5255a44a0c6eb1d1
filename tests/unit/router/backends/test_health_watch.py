"""The probe loops: pace, warm-up, late results of an old configuration, what is told."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from continuum_router.backends.conditions import DEFAULT_RULES, ConditionRules, Conditions
from continuum_router.backends.health import HealthState
from continuum_router.backends.health_watch import HealthMetrics, HealthWatch
from continuum_router.backends.pool import Backend
from continuum_router.backends.probe_plan import ProbePlan
from continuum_shared.metrics import Metrics
from continuum_shared.tasks import Supervisor
from support.scripted_backend import Peer, ScriptedBackend, scripted

PLAN = ProbePlan(method="GET", paths=("/health",), timeout=2.0)


class Rig:
    """A watch whose waits the test ends one by one with `turn`."""

    def __init__(self, *, delivered: Callable[[str], int] = lambda _name: 0) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.conditions = Conditions(
            lambda: self.now,
            ConditionRules(
                health=DEFAULT_RULES.health,
                breaker=DEFAULT_RULES.breaker,
                probing=True,
                last_resort=True,
            ),
        )
        self.metrics = Metrics()
        self.supervisor = Supervisor("test")
        self._turn: asyncio.Queue[None] = asyncio.Queue()
        self.watch = HealthWatch(
            self.conditions,
            self.supervisor,
            HealthMetrics(self.metrics, self.conditions),
            rng=random.Random(1),
            delivered=delivered,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self._turn.get()

    def state(self, name: str = "b1") -> HealthState:
        found = self.conditions.get(name)
        assert found is not None
        return found.state

    async def adopt(self, backend: Backend, plan: ProbePlan = PLAN) -> None:
        self.conditions.reconcile([(backend.name, backend.enabled)])
        await self.watch.adopt([backend], {backend.name: plan})
        self.watch.start()

    async def turn(self, times: int = 1) -> None:
        """Let the next waits end, and the probes after them."""
        for _ in range(times):
            before = len(self.waits)
            self._turn.put_nowait(None)
            await until(lambda before=before: len(self.waits) > before)

    async def started(self) -> None:
        await until(lambda: bool(self.waits))

    def sample(self, line: str) -> bool:
        return line in self.metrics.exposition().decode().splitlines()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(3):
        while not what():
            await asyncio.sleep(0.005)


class Codes:
    """A backend that answers the statuses it is told, the last one for ever."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    async def __call__(self, peer: Peer) -> None:
        while await peer.request() is not None:
            code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
            await peer.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % code)


@asynccontextmanager
async def rig(
    script: Callable[[Peer], Awaitable[None]], **more: object
) -> AsyncIterator[tuple[Rig, ScriptedBackend]]:
    async with scripted(script) as server:
        made = Rig(**more)  # type: ignore[arg-type]
        try:
            yield made, server
        finally:
            await made.watch.close()
            await made.supervisor.stop()


async def test_it_probes_at_once_and_then_at_each_interval() -> None:
    async with rig(Codes(200)) as (made, server):
        await made.adopt(server.backend())
        await made.started()
        assert (len(server.requests), made.state()) == (1, HealthState.UNKNOWN)
        await made.turn()
        assert (len(server.requests), made.state()) == (2, HealthState.READY)
        assert all(27.0 <= wait <= 30.0 for wait in made.waits)
        assert made.sample('continuum_health_probes_total{backend="b1",outcome="ok"} 2.0')
        assert made.sample('continuum_backend_health{backend="b1",state="ready"} 1.0')
        assert made.sample('continuum_backend_health{backend="b1",state="unknown"} 0.0')


async def test_a_loading_engine_is_asked_each_second_and_found_within_one() -> None:
    async with rig(Codes(503, 503, 200)) as (made, server):
        await made.adopt(server.backend())
        await made.started()
        assert made.state() is HealthState.WARMING_UP
        assert made.waits[-1] <= 1.0
        await made.turn(2)
        assert made.state() is HealthState.READY
        assert made.waits[-1] > 1.0


async def test_the_start_s_rounds_make_ready_before_any_wait() -> None:
    async with rig(Codes(200)) as (made, server):
        backend = server.backend()
        made.conditions.reconcile([(backend.name, True)])
        await made.watch.adopt([backend], {backend.name: PLAN})
        await made.watch.first_rounds()
        assert (made.state(), made.waits, len(server.requests)) == (HealthState.READY, [], 2)
        made.watch.start()
        await made.started()
        assert len(server.requests) == 2


async def test_the_start_asks_a_failing_backend_once() -> None:
    async with rig(Codes(500)) as (made, server):
        backend = server.backend()
        made.conditions.reconcile([(backend.name, True)])
        await made.watch.adopt([backend], {backend.name: PLAN})
        await made.watch.first_rounds()
        assert (made.state(), len(server.requests)) == (HealthState.UNKNOWN, 1)


async def test_a_probe_that_was_under_way_when_the_configuration_changed_changes_nothing() -> None:
    release = asyncio.Event()

    async def slow(peer: Peer) -> None:
        while await peer.request() is not None:
            await release.wait()
            await peer.send(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n")

    async with rig(slow) as (made, server), scripted(Codes(200)) as other:
        await made.adopt(server.backend())
        await until(lambda: len(server.requests) == 1)
        await made.adopt(other.backend())
        release.set()
        await made.started()
        assert made.state() is HealthState.UNKNOWN
        await made.turn()
        assert made.state() is HealthState.READY


async def test_a_backend_that_was_moved_is_asked_at_once() -> None:
    """Not after an interval: whoever corrects an address in a reload waits for it to work."""
    async with rig(Codes(500)) as (made, server), scripted(Codes(200)) as other:
        await made.adopt(server.backend())
        await made.started()
        await made.turn(2)
        assert made.state() is HealthState.UNHEALTHY
        waits = len(made.waits)
        await made.adopt(other.backend())
        await until(lambda: len(made.waits) == waits + 1)
        assert len(other.requests) == 1
        await made.turn()
        assert made.state() is HealthState.READY


async def test_the_same_configuration_keeps_the_running_task() -> None:
    async with rig(Codes(200)) as (made, server):
        await made.adopt(server.backend())
        await made.started()
        names = made.supervisor.names()
        await made.adopt(server.backend(weight=2.0))
        assert made.supervisor.names() == names == ["health:b1"]
        assert len(server.requests) == 1


@pytest.mark.parametrize("gone", ["removed", "disabled", "switched off"])
async def test_nobody_probes_what_is_not_to_be_probed(gone: str) -> None:
    async with rig(Codes(200)) as (made, server):
        await made.adopt(server.backend())
        await made.started()
        backend = server.backend(enabled=gone != "disabled")
        left = [] if gone == "removed" else [backend]
        await made.watch.adopt(left, {} if gone != "disabled" else {"b1": PLAN})
        assert made.supervisor.names() == []
        assert server.open == 0 or await closed(server)


async def closed(server: ScriptedBackend) -> bool:
    await until(lambda: server.open == 0)
    return True


async def test_bytes_that_arrive_excuse_a_probe_that_is_late() -> None:
    count = [0]

    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.until_client_leaves()

    async with rig(silent, delivered=lambda _name: count[0]) as (made, server):
        count[0] = 5
        await made.adopt(server.backend(), ProbePlan(method="GET", paths=("/h",), timeout=0.05))
        await made.started()
        found = made.conditions.get("b1")
        assert found is not None
        assert found.machine.failures == 0
        await made.turn()
        assert found.machine.failures == 1
