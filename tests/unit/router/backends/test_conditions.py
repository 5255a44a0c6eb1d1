"""Who may be sent to: readiness, the breaker, the operator, and the last resort (E2-E5, O3)."""

import pytest

from continuum_router.backends.breaker import BreakerRules
from continuum_router.backends.conditions import DEFAULT_RULES, ConditionRules, Conditions
from continuum_router.backends.health import (
    HealthState,
    Observation,
    ProbeError,
    ProbeOutcome,
    Traffic,
)
from continuum_router.backends.pool import Backend
from continuum_router.config.backends import BackendType
from continuum_shared.config.kinds import BackendUrl

MEMBERS = tuple(
    Backend(name=name, type=BackendType.VLLM, url=BackendUrl.parse(f"http://{name}:1"))
    for name in ("a", "b", "c")
)
OK = Observation(outcome=ProbeOutcome.OK, status=200)
WARM = Observation(outcome=ProbeOutcome.WARMING, error=ProbeError.BUSY, status=503)
BAD = Observation(outcome=ProbeOutcome.FAILED, error=ProbeError.CONNECT)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """Three backends; `probe("a", OK, OK)` and the like."""

    def __init__(self, *, probing: bool = True, last_resort: bool = True) -> None:
        self.clock = Clock()
        self.recovered: list[str] = []
        self.all = Conditions(
            self.clock,
            ConditionRules(
                health=DEFAULT_RULES.health,
                breaker=BreakerRules(failures=2, cooldown=10.0),
                probing=probing,
                last_resort=last_resort,
            ),
            self.recovered.append,
        )
        self.all.reconcile((member.name, True) for member in MEMBERS)

    def probe(self, name: str, *seen: Observation) -> None:
        for one in seen:
            self.all.observe(name, one, Traffic())

    def usable(self, *tried: str) -> list[str]:
        return [member.name for member in self.all.usable(MEMBERS, set(tried))]


def test_without_probes_everybody_is_fit_and_the_tuple_is_the_same_one() -> None:
    scene = Scene(probing=False)
    assert scene.all.usable(MEMBERS) is MEMBERS


def test_all_ready_gives_the_same_tuple() -> None:
    scene = Scene()
    for name in "abc":
        scene.probe(name, OK, OK)
    assert scene.all.usable(MEMBERS) is MEMBERS


def test_unknown_ones_come_after_ready_ones() -> None:
    scene = Scene()
    assert scene.usable() == ["a", "b", "c"]
    scene.probe("b", OK, OK)
    assert scene.usable() == ["b", "a", "c"]


def test_warming_and_unhealthy_ones_are_out() -> None:
    scene = Scene()
    scene.probe("a", OK, OK)
    scene.probe("b", WARM)
    scene.probe("c", BAD, BAD, BAD)
    assert scene.usable() == ["a"]
    assert [scene.all.get(name).state for name in "abc"] == [  # type: ignore[union-attr]
        HealthState.READY,
        HealthState.WARMING_UP,
        HealthState.UNHEALTHY,
    ]


def test_recovery_is_told_once_and_only_after_being_out() -> None:
    scene = Scene()
    scene.probe("a", OK, OK, OK)
    assert scene.recovered == []
    scene.probe("a", WARM, OK, OK)
    scene.probe("b", BAD, BAD, BAD, OK, OK)
    assert scene.recovered == ["a", "b"]


def test_an_open_breaker_is_out() -> None:
    scene = Scene(probing=False)
    assert scene.all.failed("a") is False
    assert scene.all.failed("a") is True
    assert scene.usable() == ["b", "c"]
    assert scene.all.get("a").breaker.opened == 1  # type: ignore[union-attr]


def test_the_trial() -> None:
    scene = Scene()
    for name in "abc":
        scene.probe(name, OK, OK)
    scene.all.failed("a")
    scene.all.failed("a")
    assert scene.all.begin("a") is False
    scene.clock.now += 10
    assert scene.usable() == ["a", "b", "c"]
    assert scene.all.begin("a") is True
    assert scene.usable() == ["b", "c"]
    scene.all.served("a")
    scene.all.release("a")
    assert scene.all.usable(MEMBERS) is MEMBERS


def test_draining_and_disabled_are_never_chosen_not_even_as_last_resort() -> None:
    scene = Scene(probing=False)
    scene.all.set_draining("a", True)
    scene.all.reconcile([("a", True), ("b", False), ("c", True)])
    assert scene.usable() == ["c"]
    scene.all.failed("c")
    scene.all.failed("c")
    assert scene.usable() == ["c"]
    scene.all.set_draining("c", True)
    assert scene.usable() == []
    scene.all.set_draining("a", False)
    assert scene.usable() == ["a"]
    with pytest.raises(KeyError):
        scene.all.set_draining("x", True)


def test_the_last_resort_is_the_one_that_served_last_then_the_untried() -> None:
    scene = Scene()
    scene.all.served("b")
    scene.clock.now += 1
    scene.all.served("c")
    for name in "abc":
        scene.probe(name, BAD, BAD, BAD)
        # Traffic that succeeded a moment ago excuses probes; later it does not.
    scene.clock.now += 31
    for name in "abc":
        scene.probe(name, BAD, BAD, BAD)
    assert scene.usable() == ["c"]
    assert scene.usable("c") == ["b"]
    assert scene.usable("b", "c") == ["a"]
    assert scene.usable("a", "b", "c") == ["c"]


def test_no_last_resort_when_it_is_switched_off() -> None:
    scene = Scene(last_resort=False)
    for name in "abc":
        scene.probe(name, BAD, BAD, BAD)
    assert scene.usable() == []


def test_after_three_vain_attempts_one_request_a_second_tries() -> None:
    scene = Scene()
    for name in "abc":
        scene.probe(name, BAD, BAD, BAD)
    for name in "abc":
        assert scene.usable() != []
        scene.all.failed(name)
    assert len(scene.usable()) == 1
    assert scene.usable() == []
    assert len(scene.usable("a")) == 1, "a request under way goes on with the others"
    scene.clock.now += 0.9
    assert scene.usable() == []
    scene.clock.now += 0.2
    (name,) = scene.usable()
    scene.all.served(name)
    assert len(scene.usable()) == 1
    assert len(scene.usable()) == 1


def test_failures_of_strangers_change_nothing() -> None:
    scene = Scene(probing=False)
    for _ in range(9):
        assert scene.all.failed("gone") is False
    scene.all.served("gone")
    assert scene.all.observe("gone", BAD, Traffic()) is False
    assert scene.all.usable(MEMBERS) is MEMBERS


def test_a_reload_keeps_what_was_observed_by_name() -> None:
    scene = Scene()
    scene.probe("a", OK, OK)
    scene.all.reconcile([("c", True), ("a", True)])
    assert scene.all.names() == ("a", "c")
    assert scene.all.get("a").state is HealthState.READY  # type: ignore[union-attr]
    assert scene.all.get("b") is None
    scene.all.adopt(
        ConditionRules(
            health=DEFAULT_RULES.health,
            breaker=DEFAULT_RULES.breaker,
            probing=False,
            last_resort=True,
        )
    )
    assert scene.all.usable(MEMBERS) is MEMBERS
