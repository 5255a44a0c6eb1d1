"""The coverage-guided loop: the same seed and count give the same inputs."""

import contextlib
import random
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.coverage_map import CoverageMap
from fuzz.mutate import Mutator
from fuzz.target import Run, Target

HANG_SECONDS = 10.0
MAX_CORPUS = 4000


class Hang(Exception):
    """An input took longer than `HANG_SECONDS`."""


@dataclass(slots=True)
class Result:
    """What a session of fuzzing gave. `failed` is the shortest input found that fails."""

    tried: int = 0
    corpus: list[bytes] = field(default_factory=list)
    places: int = 0
    failed: bytes | None = None
    error: Exception | None = None


@contextlib.contextmanager
def no_hang(seconds: float = HANG_SECONDS) -> Iterator[None]:
    """Raise `Hang` in the block when it takes longer."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(
    target: Target,
    run: Run,
    *,
    seed: int,
    count: int | None = None,
    seconds: float | None = None,
    corpus: Iterable[bytes] = (),
) -> Result:
    """Try `count` inputs, or as many as `seconds` allow, seeds first; stop at the first failure."""
    rng = random.Random(f"{target.name} {seed}")
    mutator = Mutator(rng, target.tokens, target.max_size)
    coverage = CoverageMap(target.watched)
    result = Result()
    end = None if seconds is None else time.monotonic() + seconds
    waiting = [*target.seeds, *corpus]
    if count is not None and len(waiting) > count // 2:
        waiting = rng.sample(waiting, count // 2)
    waiting.reverse()
    while (count is None or result.tried < count) and (end is None or time.monotonic() < end):
        is_seed = bool(waiting)
        data = waiting.pop() if waiting else mutator.mutated(result.corpus or [b""])
        result.tried += 1
        try:
            with no_hang():
                coverage.traced(run, data)
        except Exception as error:  # whatever it is, it is a finding
            result.failed, result.error = shortened(run, data, error)
            break
        if coverage.fresh or is_seed:
            result.corpus.append(data)
            if len(result.corpus) > MAX_CORPUS:
                del result.corpus[rng.randrange(len(result.corpus))]
    result.places = len(coverage.places)
    return result


def shortened(run: Run, data: bytes, error: Exception) -> tuple[bytes, Exception]:
    """A shorter input that fails with the same kind of error."""
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data):
            shorter = data[:at] + data[at + size :]
            try:
                with no_hang():
                    run(shorter)
            except Exception as found:
                if type(found) is type(error):
                    data, error = shorter, found
                    continue
            at += size
        size //= 2
    return data, error


def read_inputs(folder: Path) -> list[bytes]:
    """The inputs kept in a folder, by name."""
    return [file.read_bytes() for file in sorted(folder.glob("*.bin"))] if folder.exists() else []
