"""Coverage-guided fuzzing with fixed seeds and counts, and every input that was ever found.

`make fuzz` goes on for as long as one likes.
"""

import pytest

from fuzz.child import FIXTURES
from fuzz.loop import fuzz, read_inputs
from fuzz.registry import READERS, TARGETS

SEED = 20260


@pytest.mark.parametrize("name", TARGETS)
def test_a_fixed_number_of_inputs(name: str) -> None:
    target = TARGETS[name]
    with target.opened() as run:
        result = fuzz(target, run, seed=SEED, count=target.smoke)
    if result.error is not None:
        raise AssertionError(f"{name} fails for {result.failed!r}") from result.error
    assert result.tried == target.smoke
    assert result.places > 30  # the product's own code was reached


@pytest.mark.parametrize("name", [folder.name for folder in sorted(FIXTURES.iterdir())])
def test_what_was_found_stays_fixed(name: str) -> None:
    inputs = read_inputs(FIXTURES / name)
    assert inputs
    with TARGETS[name].opened() as run:
        for data in inputs:
            run(data)


def test_readers_are_targets() -> None:
    assert set(READERS) <= set(TARGETS)
