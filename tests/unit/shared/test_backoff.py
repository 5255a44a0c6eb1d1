"""Delays double to the ceiling, jitter keeps to the upper half, a reset starts again."""

import random

import pytest

from continuum_shared.backoff import Backoff


def test_doubles_to_the_ceiling_and_starts_again():
    backoff = Backoff(1.0, 5.0, jitter=False)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_jitter_is_drawn_from_the_upper_half():
    backoff = Backoff(1.0, 1.0, rng=random.Random(7))
    delays = [backoff.next() for _ in range(200)]
    assert all(0.5 <= d <= 1.0 for d in delays)
    assert len(set(delays)) == 200


@pytest.mark.parametrize(("initial", "maximum", "factor"), [(0, 1, 2), (2, 1, 2), (1, 2, 0.5)])
def test_senseless_settings_are_refused(initial, maximum, factor):
    with pytest.raises(ValueError, match="backoff"):
        Backoff(initial, maximum, factor)
