"""Which backends may be sent to now: probes, traffic and the operator together (E2-E5).

State keyed by backend name, touched from the event loop's thread only. `usable` is asked for every
attempt, so the ordinary case, everybody fit, is one look at an empty set.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from continuum_router.backends.breaker import Breaker, BreakerRules
from continuum_router.backends.health import (
    HealthMachine,
    HealthRules,
    HealthState,
    Observation,
    Traffic,
)
from continuum_router.backends.pool import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRules:
    """One configuration's rules. `probing` is false when nobody probes; `last_resort` lets
    requests go to unfit backends when there is no other (decisions E4)."""

    health: HealthRules
    breaker: BreakerRules
    probing: bool
    last_resort: bool


DEFAULT_RULES = ConditionRules(
    health=HealthRules(
        interval=30.0,
        unhealthy_threshold=3,
        healthy_threshold=2,
        warmup_check_interval=1.0,
        max_warmup_duration=300.0,
    ),
    breaker=BreakerRules(failures=5, cooldown=10.0),
    probing=False,
    last_resort=True,
)


@dataclass(slots=True)
class Condition:
    """What is known about one backend. `last_success` is when it last served a request."""

    machine: HealthMachine = field(default_factory=HealthMachine)
    breaker: Breaker = field(default_factory=Breaker)
    last_success: float | None = None
    draining: bool = False
    enabled: bool = True

    @property
    def state(self) -> HealthState:
        """The state to show (decisions E2): what an operator decided goes before what was seen."""
        if not self.enabled:
            return HealthState.DISABLED
        return HealthState.DRAINING if self.draining else self.machine.state


class Conditions:
    """The conditions of all backends. `clock` is monotonic seconds.

    `on_recovery` is told the name of a backend that has become ready after it was out.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        rules: ConditionRules = DEFAULT_RULES,
        on_recovery: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self.clock = clock
        self._rules = rules
        self._of: dict[str, Condition] = {}
        self._unfit: set[str] = set()
        self._vain = 0
        self._vain_until = 0.0
        self.on_recovery = on_recovery

    @property
    def rules(self) -> ConditionRules:
        """The rules in force."""
        return self._rules

    def adopt(self, rules: ConditionRules) -> None:
        """Judge by these rules from now on; what was observed stays."""
        self._rules = rules
        for name in self._of:
            self._weigh(name)

    def reconcile(self, backends: Iterable[tuple[str, bool]]) -> None:
        """Make these the known backends, `(name, enabled)`; known names keep what was observed."""
        wanted = dict(backends)
        for name in [name for name in self._of if name not in wanted]:
            del self._of[name]
            self._unfit.discard(name)
        for name, enabled in wanted.items():
            self._of.setdefault(name, Condition()).enabled = enabled
            self._weigh(name)

    def get(self, name: str) -> Condition | None:
        """The condition of a backend, None when it is not known."""
        return self._of.get(name)

    def names(self) -> tuple[str, ...]:
        """Every known backend."""
        return tuple(self._of)

    def set_draining(self, name: str, draining: bool) -> None:
        """Take a backend out for new requests, or back. Raises KeyError for an unknown name."""
        self._of[name].draining = draining
        self._weigh(name)

    def observe(self, name: str, seen: Observation, traffic: Traffic) -> bool:
        """Take a probe's result. Returns True when the backend's state has changed."""
        found = self._of.get(name)
        if found is None:
            return False
        before = found.machine.state
        changed = found.machine.observe(seen, self._rules.health, now=self.clock(), traffic=traffic)
        if changed:
            self._weigh(name)
            out = (HealthState.UNHEALTHY, HealthState.WARMING_UP)
            if found.machine.state is HealthState.READY and before in out:
                self.on_recovery(name)
        return changed

    def served(self, name: str) -> None:
        """Traffic: the backend has answered a request."""
        found = self._of.get(name)
        if found is None:
            return
        self._vain = 0
        found.last_success = self.clock()
        # Ordinarily the streak is 0, and that is all there is to look at.
        if found.breaker.streak and found.breaker.succeeded():
            self._weigh(name)

    def failed(self, name: str) -> bool:
        """Traffic: the backend has failed a request. True when its breaker has opened."""
        found = self._of.get(name)
        if found is None:
            return False
        self._vain += 1
        if not found.breaker.failed(self._rules.breaker, self.clock()):
            return False
        self._weigh(name)
        return True

    def begin(self, name: str) -> bool:
        """A request is sent there. True when it is a breaker's trial: `release` it at its end."""
        found = self._of.get(name) if name in self._unfit else None
        return found is not None and found.breaker.begin(self.clock())

    def release(self, name: str) -> None:
        """A trial is over."""
        found = self._of.get(name)
        if found is not None:
            found.breaker.release()

    def usable(
        self, members: tuple[Backend, ...], tried: Collection[str] = ()
    ) -> tuple[Backend, ...]:
        """Those of `members` that a request may go to now, ready ones before unknown ones (E3).

        With nobody fit, the one that served last, if the rules allow a last resort; those of
        `tried` come after the others. Empty when there is nobody to try: either the rules say so,
        or as many attempts as `unhealthy_threshold` went wrong in a row; then one request in each
        `warmup_check_interval` still tries (decisions E4).
        """
        if not self._unfit:
            return members
        now = self.clock()
        ready: list[Backend] = []
        unsure: list[Backend] = []
        resort: list[Backend] = []
        for member in members:
            name = member.name
            found = self._of.get(name)
            if name not in self._unfit or found is None:
                ready.append(member)
                continue
            if found.draining or not found.enabled:
                continue
            if found.breaker.admits(now):
                if found.machine.state is HealthState.READY:
                    ready.append(member)
                    continue
                if found.machine.state is HealthState.UNKNOWN:
                    unsure.append(member)
                    continue
            resort.append(member)
        if ready or unsure:
            return (*ready, *unsure)
        return self._last_resort(resort, tried, now)

    def _last_resort(
        self, members: Sequence[Backend], tried: Collection[str], now: float
    ) -> tuple[Backend, ...]:
        if not members or not self._rules.last_resort:
            return ()
        if not tried and self._vain >= self._rules.health.unhealthy_threshold:
            if now < self._vain_until:
                return ()
            self._vain_until = now + self._rules.health.warmup_check_interval
        best = min(members, key=lambda member: (member.name in tried, -self._served_at(member)))
        return (best,)

    def _served_at(self, member: Backend) -> float:
        found = self._of.get(member.name)
        if found is None or found.last_success is None:
            return float("-inf")
        return found.last_success

    def _weigh(self, name: str) -> None:
        """Put a backend among the unfit, or take it from them."""
        found, probing = self._of[name], self._rules.probing
        fit = (
            found.enabled
            and not found.draining
            and found.breaker.closed
            and (not probing or found.machine.state is HealthState.READY)
        )
        if fit:
            self._unfit.discard(name)
        else:
            self._unfit.add(name)
