"""A fifth of the recent requests, at least ten: counted on a clock that the test moves."""

import random

import pytest

from continuum_router.upstream.retry_budget import MAX_WINDOW, BudgetRules, RetryBudget

RULES = BudgetRules()


def _granted(budget: RetryBudget, now: float, asked: int, rules: BudgetRules = RULES) -> int:
    return sum(budget.take(rules, now) for _ in range(asked))


def _after(requests: int, now: float = 100.0) -> RetryBudget:
    budget = RetryBudget()
    for _ in range(requests):
        budget.request(now)
    return budget


@pytest.mark.parametrize(
    ("requests", "granted"), [(0, 10), (1, 10), (50, 10), (54, 10), (55, 11), (100, 20), (999, 199)]
)
def test_a_fifth_but_at_least_ten(requests: int, granted: int) -> None:
    assert _granted(_after(requests), 100.0, 1000) == granted


def test_only_the_last_ten_seconds_count() -> None:
    budget = _after(100, now=100.0)
    assert _granted(budget, 105.0, 15) == 15
    assert _granted(budget, 109.9, 10) == 5  # 100 requests are 20 retries, 15 are gone
    assert _granted(budget, 110.0, 10) == 0  # the requests are out of sight, 20 retries are not
    assert _granted(budget, 115.0, 10) == 5  # so are the first 15 now
    assert _granted(budget, 130.0, 99) == 10


def test_what_was_refused_is_not_counted() -> None:
    budget = _after(0)
    assert _granted(budget, 100.0, 500) == 10
    assert _granted(budget, 110.0, 500) == 10


def test_other_rules() -> None:
    rules = BudgetRules(ratio=0.5, min_retries=0, window=60.0)
    budget = _after(7, now=0.0)
    assert _granted(budget, 59.0, 9, rules) == 3
    assert _granted(budget, 61.0, 9, rules) == 0
    assert _granted(_after(0), 1.0, 9, BudgetRules(ratio=0, min_retries=0)) == 0


def test_memory_is_bounded() -> None:
    budget = RetryBudget()
    for tick in range(200_000):
        budget.request(tick / 20)
    assert len(budget._slots) <= MAX_WINDOW * 10


def test_a_clock_that_steps_back_is_harmless() -> None:
    budget = _after(100, now=100.0)
    budget.request(50.0)
    assert _granted(budget, 50.0, 99) == 20


def test_never_more_than_the_share_in_any_window() -> None:
    """Against a naive model that keeps every moment."""
    rng = random.Random(5)
    budget = RetryBudget()
    rules = BudgetRules(ratio=0.2, min_retries=3, window=2.0)
    asked: list[float] = []
    granted: list[float] = []
    now = 0.0
    for _ in range(3000):
        now += rng.expovariate(40)
        budget.request(now)
        asked.append(now)
        if rng.random() < 0.6 and budget.take(rules, now):
            granted.append(now)
            recent = [moment for moment in granted if moment > now - 1.9]
            requests = [moment for moment in asked if moment > now - 2.1]
            assert len(recent) <= max(3, 0.2 * len(requests))
    assert len(granted) > 300
