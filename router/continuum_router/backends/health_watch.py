"""Probes every backend for as long as the router runs: one supervised task each (S2, E1-E9).

The tasks belong to one configuration: a reload ends the tasks of backends that went or changed
before anything of theirs could be applied, so a late result of before never moves what is now.
"""

import asyncio
import functools
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping

from continuum_router.backends.conditions import Conditions
from continuum_router.backends.health import HealthState, Observation, ProbeOutcome, Traffic
from continuum_router.backends.pool import Backend
from continuum_router.backends.probe import Prober
from continuum_router.backends.probe_plan import ProbePlan
from continuum_shared.backoff import Backoff
from continuum_shared.logs import fields
from continuum_shared.metrics import Metrics
from continuum_shared.tasks import Supervisor

log = logging.getLogger("continuum_router.health")

STAGGER = 0.1
"""Share of an interval by which each wait is shortened at random, so that probes do not bunch."""


class HealthMetrics:
    """Probes by outcome, and the state of each backend. Made once, with the state."""

    def __init__(self, metrics: Metrics, conditions: Conditions) -> None:
        self._probes = metrics.counter(
            "continuum_health_probes_total",
            "Probes of backends, by what they said.",
            {"backend": None, "outcome": ProbeOutcome},
        )
        metrics.gauge_fn(
            "continuum_backend_health",
            "1 for the state that a backend is in.",
            ("backend", "state"),
            lambda: _states(conditions),
        )

    def probed(self, name: str, outcome: ProbeOutcome) -> None:
        """Count one probe."""
        self._probes.child(name, outcome).value += 1


class HealthWatch:
    """Keeps `conditions` true. `delivered` gives a count of response bytes or pieces that a backend
    has sent so far: only whether it has grown since the probe before is looked at (decisions E5).
    """

    def __init__(
        self,
        conditions: Conditions,
        supervisor: Supervisor,
        metrics: HealthMetrics,
        *,
        rng: random.Random,
        delivered: Callable[[str], int] = lambda _name: 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._conditions = conditions
        self._supervisor = supervisor
        self._metrics = metrics
        self._rng = rng
        self._delivered = delivered
        self._sleep = sleep
        self._probers: dict[str, Prober] = {}
        self._seen: dict[str, int] = {}

    async def adopt(self, backends: Iterable[Backend], plans: Mapping[str, ProbePlan]) -> None:
        """Probe these backends in these ways from now on; `plans` is empty when nobody is probed.

        A backend whose plan and address are as before keeps its prober; the others' are ended, and
        whatever they were waiting for is dropped. Call it after `Conditions.reconcile`.
        """
        wanted = {b.name: b for b in backends if b.enabled and b.name in plans}
        for name, prober in list(self._probers.items()):
            same = wanted.get(name)
            if same is None or prober.plan != plans[name] or not _same_place(prober.backend, same):
                await self._drop(name)
        for name, backend in wanted.items():
            if name not in self._probers:
                self._probers[name] = Prober(backend, plans[name], self._conditions.clock)

    def start(self) -> None:
        """Begin to probe whoever is not probed yet. The rounds of the start come before this."""
        for name, prober in self._probers.items():
            task = _task(name)
            if task not in self._supervisor.names():
                run = functools.partial(self._run, name, prober)
                self._supervisor.supervise(task, run, Backoff(1, 60))

    async def first_rounds(self) -> None:
        """The start's rounds: as many fresh probes of each backend as make it ready (S2).

        All backends at once; one that fails is not asked again, its turn comes with the others'.
        """
        rounds = self._conditions.rules.health.healthy_threshold
        await asyncio.gather(*(self._first(n, p, rounds) for n, p in self._probers.items()))

    async def close(self) -> None:
        """End all probing and close the sessions."""
        for name in list(self._probers):
            await self._drop(name)

    async def _first(self, name: str, prober: Prober, rounds: int) -> None:
        for _ in range(rounds):
            if await self._once(name, prober, anew=True) is not ProbeOutcome.OK:
                return

    async def _run(self, name: str, prober: Prober) -> None:
        if self._conditions.get(name) is None:
            return
        # What is known of a backend that was moved is true of where it was.
        if not prober.asked:
            await self._once(name, prober, anew=False)
        while self._probers.get(name) is prober:
            await self._wait(name)
            await self._once(name, prober, anew=False)

    async def _wait(self, name: str) -> None:
        found = self._conditions.get(name)
        if found is not None:
            full = found.machine.next_check(self._conditions.rules.health)
            await self._sleep(full * (1 - STAGGER * self._rng.random()))

    async def _once(self, name: str, prober: Prober, *, anew: bool) -> ProbeOutcome:
        """One probe and what follows from it. No await after the result is there."""
        seen = await prober.probe(anew=anew)
        if self._probers.get(name) is not prober:
            return seen.outcome
        count, before = self._delivered(name), self._seen.get(name, 0)
        self._seen[name] = count
        found = self._conditions.get(name)
        last = None if found is None else found.last_success
        traffic = Traffic(last_success=last, delivered=count > before)
        if seen.fresh:
            self._metrics.probed(name, seen.outcome)
        was = None if found is None else found.machine.state
        if self._conditions.observe(name, seen, traffic) and found is not None:
            _tell(name, was, found.machine.state, seen)
        return seen.outcome

    async def _drop(self, name: str) -> None:
        prober = self._probers.pop(name)
        await self._supervisor.cancel(_task(name))
        await prober.close()


def _same_place(before: Backend, now: Backend) -> bool:
    return before.url == now.url and before.tls == now.tls and before.type == now.type


def _task(name: str) -> str:
    return f"health:{name}"


def _states(conditions: Conditions) -> Iterable[tuple[tuple[str, str], float]]:
    for name in conditions.names():
        found = conditions.get(name)
        if found is not None:
            state = found.state
            for one in HealthState:
                yield (name, one.value), float(one is state)


def _tell(name: str, was: HealthState | None, now: HealthState, seen: Observation) -> None:
    good = now is HealthState.READY
    log.log(
        logging.INFO if good else logging.WARNING,
        "Backend state changed",
        extra=fields(
            backend=name, was=was, state=now, error=None if good else seen.error, status=seen.status
        ),
    )
