"""What only a process has; handed to whoever needs it, so that tests can give their own."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What only a process has: clocks, randomness, environment. Tests give their own."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # noqa: TID251 - the wiring hands the clock out
    rng: random.Random
    env: Mapping[str, str] = field(default_factory=dict)
