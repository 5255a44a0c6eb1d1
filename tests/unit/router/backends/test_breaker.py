"""The breaker: closed, open, half open, and what each request's end makes of it."""

from continuum_router.backends.breaker import Breaker, BreakerRules, BreakerState

RULES = BreakerRules(failures=3, cooldown=10.0)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    assert [breaker.failed(RULES, now) for _ in range(3)] == [False, False, True]
    return breaker


def test_three_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    breaker.failed(RULES, 0.0)
    breaker.failed(RULES, 0.0)
    breaker.succeeded()
    assert [breaker.failed(RULES, 0.0) for _ in range(3)] == [False, False, True]
    assert breaker.state(9.9) is BreakerState.OPEN
    assert not breaker.admits(9.9)
    assert not breaker.closed


def test_after_the_cooldown_one_trial_at_a_time() -> None:
    breaker = opened()
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    assert breaker.admits(10.0)
    assert breaker.begin(10.0) is True
    assert not breaker.admits(10.0)
    assert breaker.begin(10.0) is False
    breaker.release()
    assert breaker.admits(10.0)


def test_a_good_trial_closes_it() -> None:
    breaker = opened()
    breaker.begin(10.0)
    assert breaker.succeeded() is True
    breaker.release()
    assert (breaker.closed, breaker.streak) == (True, 0)
    assert breaker.succeeded() is False


def test_a_bad_trial_opens_it_for_another_cooldown() -> None:
    breaker = opened()
    breaker.begin(12.0)
    assert breaker.failed(RULES, 12.0) is True
    breaker.release()
    assert breaker.state(21.9) is BreakerState.OPEN
    assert breaker.state(22.0) is BreakerState.HALF_OPEN
    assert breaker.opened == 2


def test_failures_of_requests_sent_before_prolong_nothing() -> None:
    breaker = opened()
    assert breaker.failed(RULES, 9.0) is False
    assert breaker.state(10.0) is BreakerState.HALF_OPEN


def test_switched_off_it_stays_closed() -> None:
    breaker = Breaker()
    rules = BreakerRules(failures=1, cooldown=10.0, enabled=False)
    assert breaker.failed(rules, 0.0) is False
    assert breaker.closed
