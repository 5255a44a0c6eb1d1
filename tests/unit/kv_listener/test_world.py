"""The process's own clocks by default, others for tests."""

import random
import time

from continuum_kv_listener.world import World


def test_a_process_has_its_own_clocks_and_no_environment_by_default() -> None:
    made = World(rng=random.Random(1))
    assert (made.clock, made.wall, dict(made.env)) == (time.monotonic, time.time, {})


def test_a_test_gives_others() -> None:
    made = World(rng=random.Random(1), clock=lambda: 5.0, wall=lambda: 6.0, env={"A": "b"})
    assert (made.clock(), made.wall(), made.env["A"]) == (5.0, 6.0, "b")
