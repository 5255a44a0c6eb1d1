"""Fuzzes one target in this process: `python -m fuzz.child TARGET ENGINE SEED SECONDS`.

An input that fails is kept under tests/fixtures/fuzz/TARGET, where the test suite tries it again.
"""

import hashlib
import importlib
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent.parent / "fixtures" / "fuzz"
PACKAGES = ["continuum_router", "continuum_kv_listener", "continuum_shared"]

GROWTH_LIMIT = 96 * 1024 * 1024
"""Bytes by which resident memory may grow once it has warmed up; the fuzzer's corpus is in it."""

WARM_UP = 3000
LOOK_EVERY = 500


def resident() -> int:
    """Resident memory of this process in bytes."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else 0


class Growth:
    """Watches memory over many inputs. Raises MemoryError when it grows without end."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.tried = 0
        self.before = self.now = 0

    def one_more(self) -> None:
        self.tried += 1
        if self.tried == WARM_UP:
            self.before = self.now = resident()
        elif self.tried > WARM_UP and self.tried % LOOK_EVERY == 0:
            self.now = resident()
            if self.now - self.before > GROWTH_LIMIT:
                raise MemoryError(f"grown by {(self.now - self.before) >> 20} MiB")
            if self.name:  # libFuzzer ends the process: nothing can be said at the end
                print(f"{self.name}: {self}", flush=True)

    def __str__(self) -> str:
        return f"{self.tried} inputs, memory grown by {(self.now - self.before) / 2**20:.1f} MiB"


def keep(target: str, data: bytes) -> Path:
    folder = FIXTURES / target
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
    file.write_bytes(data)
    return file


def with_our_loop(name: str, seed: int, seconds: float) -> int:
    registry = importlib.import_module("fuzz.registry")
    loop = importlib.import_module("fuzz.loop")
    target = registry.TARGETS[name]
    growth = Growth(name)
    kept = loop.read_inputs(FIXTURES / name)
    with target.opened() as run:

        def watched(data: bytes) -> None:
            run(data)
            growth.one_more()

        result = loop.fuzz(target, watched, seed=seed, seconds=seconds, corpus=kept)
    print(f"{name}: {growth}, corpus {len(result.corpus)}, {result.places} places reached")
    if result.error is None:
        return 0
    traceback.print_exception(result.error)
    print(f"kept as {keep(name, result.failed)}")
    return 1


def with_atheris(name: str, seed: int, seconds: float) -> int:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=PACKAGES):
        registry = importlib.import_module("fuzz.registry")
    target = registry.TARGETS[name]
    growth = Growth(name)
    with tempfile.TemporaryDirectory() as folder, target.opened() as run:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, data in enumerate(target.seeds):
            (corpus / f"{number:04}").write_bytes(data)
        words = Path(folder) / "words"
        words.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens))

        def once(data: bytes) -> None:
            try:
                run(data)
                growth.one_more()
            except BaseException as error:
                print(f"{name}: {growth}\nkept as {keep(name, data)}", flush=True)
                traceback.print_exception(error)
                raise

        options = [
            f"-max_total_time={max(1, round(seconds))}",
            f"-max_len={target.max_size}",
            f"-seed={seed}",
            f"-dict={words}",
            f"-artifact_prefix={folder}/",
            "-timeout=10",
            "-rss_limit_mb=1024",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        kept = [str(FIXTURES / name)] if (FIXTURES / name).exists() else []
        atheris.Setup(["fuzz", *options, str(corpus), *kept], once)
        atheris.Fuzz()
    return 0


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token[:60])


if __name__ == "__main__":
    name, engine, seed, seconds = sys.argv[1:5]
    drive = with_atheris if engine == "atheris" else with_our_loop
    raise SystemExit(drive(name, int(seed), float(seconds)))
