"""The soak of `make soak`, short: everything at once, on both ways in."""

import random
from pathlib import Path

import pytest

from support.soak import Soak


@pytest.mark.timeout(180)
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "general"])
async def test_nothing_is_lost_and_nothing_is_left(tmp_path: Path, fast: bool) -> None:
    verdict = await Soak(tmp_path, fast=fast, rng=random.Random(1)).run(20.0)
    # Caches still fill in the first seconds: what memory does is a matter of the long run.
    faults = [fault for fault in verdict.faults if not fault.startswith("memory")]
    assert faults == [], verdict.text()
    assert verdict.seen.reloads >= 1
    assert verdict.seen.kills >= 1
    assert verdict.seen.whole > 200
    assert verdict.seen.aborted > 20
