"""Ages of the model list at their borders, and the count of forced refreshes."""

import pytest

from continuum_router.models.freshness import (
    MAX_CALLERS,
    Age,
    Freshness,
    Lifetimes,
    RefreshGate,
)


@pytest.mark.parametrize(
    ("now", "age"),
    [
        (47.9, Age.FRESH),
        (48.0, Age.SOFT_STALE),
        (59.9, Age.SOFT_STALE),
        (60.0, Age.HARD_STALE),
        (179.9, Age.HARD_STALE),
        (180.0, Age.EXPIRED),
    ],
)
def test_ages(now: float, age: Age) -> None:
    fresh = Freshness(Lifetimes())
    fresh.filled(0.0, empty=False)
    assert fresh.age(now) is age


def test_before_the_first_pass_there_is_nothing() -> None:
    fresh = Freshness(Lifetimes())
    fresh.invalidate(1.0)
    assert fresh.age(1.0) is Age.EMPTY


def test_invalid_is_stale_and_its_grace_begins_anew() -> None:
    fresh = Freshness(Lifetimes())
    fresh.filled(0.0, empty=False)
    fresh.invalidate(100.0)
    assert [fresh.age(t) for t in (100.0, 279.9, 280.0)] == [
        Age.HARD_STALE,
        Age.HARD_STALE,
        Age.EXPIRED,
    ]
    fresh.filled(280.0, empty=False)
    assert fresh.age(280.0) is Age.FRESH


def test_empty_results_are_kept_5_10_20_40_60_60_seconds() -> None:
    times = Lifetimes()
    assert [times.empty_ttl(n) for n in (1, 2, 3, 4, 5, 6, 10**6)] == [5, 10, 20, 40, 60, 60, 60]
    fresh = Freshness(times)
    fresh.filled(0.0, empty=True)
    assert (fresh.age(4.9), fresh.age(5.0)) == (Age.FRESH, Age.HARD_STALE)
    fresh.filled(5.0, empty=True)
    assert (fresh.age(14.9), fresh.age(15.0)) == (Age.FRESH, Age.HARD_STALE)
    fresh.filled(15.0, empty=False)
    assert fresh.age(62.9) is Age.FRESH


def test_a_caller_has_six_a_minute() -> None:
    gate = RefreshGate()
    assert [gate.wait("a", t) for t in (0, 1, 2, 3, 4, 5, 6, 59)] == [0, 0, 0, 0, 0, 0, 54, 1]
    assert gate.wait("b", 6) == 0
    assert (gate.wait("a", 60), gate.wait("a", 60)) == (0, 1)


def test_it_remembers_so_many_callers_and_no_more() -> None:
    gate = RefreshGate()
    for _ in range(6):
        gate.wait("a", 0)
    for number in range(MAX_CALLERS - 1):
        gate.wait(str(number), 0)
    assert gate.wait("0", 0) == 0
    assert gate.wait("one more", 0) == 0
    assert gate.wait("a", 0) == 0
