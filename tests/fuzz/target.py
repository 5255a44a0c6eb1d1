"""What is fuzzed: a function over bytes that raises when something is wrong.

To add a target, write a module in `fuzz/targets/` with a `Target` and list it in `fuzz.registry`.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

Run = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`opened` gives the function for as long as its block lasts.

    `seeds` are where mutation begins, `tokens` what is inserted; coverage of modules whose names
    begin with one of `watched` guides it. `smoke` is how many inputs the test suite tries.
    """

    name: str
    opened: Callable[[], AbstractContextManager[Run]]
    seeds: tuple[bytes, ...]
    watched: tuple[str, ...]
    smoke: int
    tokens: tuple[bytes, ...] = ()
    max_size: int = 4096


def plain(run: Run) -> Callable[[], AbstractContextManager[Run]]:
    """For a function that needs nothing around it."""

    @contextlib.contextmanager
    def opened() -> Iterator[Run]:
        yield run

    return opened


def cut(data: bytes, seed: int) -> list[bytes]:
    """`data` in pieces: whole for 0, byte by byte for 1, at places drawn from `seed` otherwise."""
    if seed == 0 or len(data) < 2:
        return [data] if data else []
    if seed == 1:
        return [data[i : i + 1] for i in range(len(data))]
    rng = random.Random(seed)
    places = sorted(rng.sample(range(1, len(data)), min(len(data) - 1, 1 + seed % 5)))
    return [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]


def splits(data: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Three ways in which the same bytes may arrive; the last one depends on the bytes."""
    seed = 2 + sum(data) % 1000
    return cut(data, 0), cut(data, 1) if len(data) <= 128 else cut(data, seed + 1), cut(data, seed)
