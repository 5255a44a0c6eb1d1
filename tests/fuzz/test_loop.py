"""The fuzzer itself: it follows coverage, it is deterministic, and it says what it found."""

import os
import time
from pathlib import Path

import pytest

from fuzz.child import GROWTH_LIMIT, LOOK_EVERY, WARM_UP, Growth, resident
from fuzz.fuzz_sample import planted
from fuzz.loop import Hang, fuzz, no_hang
from fuzz.target import Target, cut, plain, splits

TARGET = Target(
    name="planted",
    opened=plain(planted),
    seeds=(b"hello",),
    tokens=(b"U",),
    watched=("fuzz_sample",),
    smoke=0,
)


def test_it_finds_what_lies_behind_three_conditions() -> None:
    result = fuzz(TARGET, planted, seed=1, count=60_000)
    assert type(result.error) is ZeroDivisionError
    assert result.failed == b"{U}"


def test_the_same_seed_gives_the_same() -> None:
    first, again, other = (fuzz(TARGET, planted, seed=s, count=400) for s in (5, 5, 6))
    assert (first.corpus, first.places) == (again.corpus, again.places)
    assert first.corpus != other.corpus


def test_more_than_half_of_the_inputs_are_new() -> None:
    tried: list[bytes] = []
    many = Target(
        name="many",
        opened=plain(tried.append),
        seeds=tuple(bytes([n]) for n in range(100)),
        watched=(),
        smoke=0,
    )
    fuzz(many, tried.append, seed=1, count=40)
    assert len(tried) == 40
    assert sum(data in many.seeds for data in tried[:20]) == 20


def test_a_hang_is_a_finding() -> None:
    with pytest.raises(Hang), no_hang(0.01):
        while True:
            time.sleep(0.001)


def test_cuts() -> None:
    data = bytes(range(100))
    assert cut(data, 0) == [data]
    assert cut(data, 1) == [bytes([n]) for n in range(100)]
    assert cut(b"", 0) == []
    for pieces in splits(data):
        assert b"".join(pieces) == data
        assert b"" not in pieces


def test_growth_is_noticed() -> None:
    growth = Growth()
    for _ in range(WARM_UP):
        growth.one_more()
    assert growth.before > 0
    growth.before -= GROWTH_LIMIT + resident()
    with pytest.raises(MemoryError):
        for _ in range(LOOK_EVERY):
            growth.one_more()


def test_resident_memory_is_read() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert abs(resident() - pages * os.sysconf("SC_PAGE_SIZE")) < 64 * 1024 * 1024
