"""The health machine: S2's process and warm-up lists with their numbers, E4, E5, E8."""

import pytest

from continuum_router.backends.health import (
    CredentialState,
    HealthMachine,
    HealthRules,
    HealthState,
    Observation,
    ProbeError,
    ProbeOutcome,
    Traffic,
)

RULES = HealthRules(
    interval=30.0,
    unhealthy_threshold=3,
    healthy_threshold=2,
    warmup_check_interval=1.0,
    max_warmup_duration=300.0,
)
OK = Observation(outcome=ProbeOutcome.OK, status=200, latency=0.01)
WARM = Observation(outcome=ProbeOutcome.WARMING, error=ProbeError.BUSY, status=503)
REFUSED = Observation(outcome=ProbeOutcome.FAILED, error=ProbeError.CONNECT)
LATE = Observation(outcome=ProbeOutcome.FAILED, error=ProbeError.TIMEOUT)
QUIET = Traffic()


def feed(machine: HealthMachine, *seen: Observation, now: float = 0.0) -> HealthState:
    for one in seen:
        machine.observe(one, RULES, now=now, traffic=QUIET)
    return machine.state


def test_two_successes_make_ready_and_one_does_not() -> None:
    machine = HealthMachine()
    assert feed(machine, OK) is HealthState.UNKNOWN
    assert feed(machine, OK) is HealthState.READY


def test_three_failures_in_a_row_make_unhealthy() -> None:
    machine = HealthMachine()
    feed(machine, OK, OK)
    assert feed(machine, REFUSED, REFUSED) is HealthState.READY
    assert feed(machine, REFUSED) is HealthState.UNHEALTHY
    assert (machine.failures, machine.last_error) == (3, ProbeError.CONNECT)


def test_a_success_between_begins_the_count_anew() -> None:
    machine = HealthMachine()
    feed(machine, OK, OK, REFUSED, REFUSED, OK)
    assert feed(machine, REFUSED, REFUSED) is HealthState.READY
    assert feed(machine, REFUSED) is HealthState.UNHEALTHY


def test_unhealthy_needs_two_successes_in_a_row() -> None:
    machine = HealthMachine()
    feed(machine, REFUSED, REFUSED, REFUSED)
    assert feed(machine, OK, REFUSED, OK) is HealthState.UNHEALTHY
    assert feed(machine, OK) is HealthState.READY


@pytest.mark.parametrize("before", [(), (OK, OK), (REFUSED, REFUSED, REFUSED)])
def test_503_enters_warming_up_from_any_state_and_one_200_ends_it(
    before: tuple[Observation, ...],
) -> None:
    machine = HealthMachine()
    feed(machine, *before)
    assert machine.next_check(RULES) == 30.0
    assert feed(machine, WARM, now=5.0) is HealthState.WARMING_UP
    assert machine.warm_since == 5.0
    assert machine.next_check(RULES) == 1.0
    assert feed(machine, OK) is HealthState.READY
    assert machine.next_check(RULES) == 30.0


def test_a_warm_up_of_300_seconds_is_unhealthy_and_503_does_not_begin_another() -> None:
    machine = HealthMachine()
    feed(machine, WARM, now=0.0)
    assert feed(machine, WARM, now=299.9) is HealthState.WARMING_UP
    assert feed(machine, WARM, now=300.0) is HealthState.UNHEALTHY
    assert machine.next_check(RULES) == 30.0
    assert feed(machine, WARM, now=331.0) is HealthState.UNHEALTHY
    # Something else in between: that engine was restarted.
    feed(machine, REFUSED, now=362.0)
    assert feed(machine, WARM, now=393.0) is HealthState.WARMING_UP


def test_the_deadline_passes_without_a_fresh_sample_too() -> None:
    machine = HealthMachine()
    feed(machine, WARM, now=0.0)
    assert machine.expire(RULES, now=299.0) is False
    kept = Observation(outcome=ProbeOutcome.WARMING, error=ProbeError.BUSY, status=503, fresh=False)
    assert machine.observe(kept, RULES, now=300.0, traffic=QUIET) is True
    assert machine.state is HealthState.UNHEALTHY
    assert machine.failures == 0


def test_failures_while_warming_up_count() -> None:
    machine = HealthMachine()
    feed(machine, WARM)
    assert feed(machine, REFUSED, REFUSED) is HealthState.WARMING_UP
    assert feed(machine, REFUSED) is HealthState.UNHEALTHY
    assert machine.warm_since is None


def test_a_remembered_verdict_moves_nothing() -> None:
    machine = HealthMachine()
    feed(machine, OK)
    kept = Observation(outcome=ProbeOutcome.OK, status=200, latency=9.0, fresh=False)
    for _ in range(5):
        assert machine.observe(kept, RULES, now=1.0, traffic=QUIET) is False
    assert (machine.state, machine.successes, machine.latency) == (HealthState.UNKNOWN, 1, 0.01)


@pytest.mark.parametrize(
    ("seen", "traffic", "counted"),
    [
        (REFUSED, Traffic(last_success=70.0), False),
        (REFUSED, Traffic(last_success=69.9), True),
        (REFUSED, Traffic(delivered=True), True),
        (LATE, Traffic(delivered=True), False),
        (LATE, Traffic(), True),
    ],
    ids=[
        "served within interval",
        "served before",
        "refused amid bytes",
        "slow amid bytes",
        "slow",
    ],
)
def test_traffic_excuses_a_failed_probe(seen: Observation, traffic: Traffic, counted: bool) -> None:
    machine = HealthMachine()
    machine.observe(seen, RULES, now=100.0, traffic=traffic)
    assert machine.failures == int(counted)
    assert machine.last_error is seen.error


def test_credentials_keep_what_was_proved() -> None:
    machine = HealthMachine()
    proof = Observation(outcome=ProbeOutcome.OK, status=200, credentials=CredentialState.VALID)
    feed(machine, proof, OK)
    assert machine.credentials is CredentialState.VALID
    refused = Observation(
        outcome=ProbeOutcome.FAILED,
        error=ProbeError.CREDENTIALS,
        status=401,
        credentials=CredentialState.INVALID,
    )
    feed(machine, refused)
    assert machine.credentials is CredentialState.INVALID
    assert machine.last_status == 401
