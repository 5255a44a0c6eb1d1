"""`make fuzz`: every target for a while, each in a process of its own; what is found is kept.

With the `fuzz` extra installed libFuzzer drives it (Atheris, where it has a wheel); otherwise our
own loop does, which the test suite uses too.
"""

import argparse
import importlib.util
import random
import subprocess
import sys
import time
from collections import deque

from fuzz.registry import READERS, TARGETS

READERS_SHARE = 0.7


def shares(names: list[str], seconds: float) -> dict[str, float]:
    """How long each target is tried: the readers of strangers' bytes get most."""
    readers = [name for name in names if name in READERS]
    others = [name for name in names if name not in READERS]
    if not readers or not others:
        return dict.fromkeys(names, seconds / len(names))
    return {
        **dict.fromkeys(readers, seconds * READERS_SHARE / len(readers)),
        **dict.fromkeys(others, seconds * (1 - READERS_SHARE) / len(others)),
    }


def watched(child: list[str], name: str) -> tuple[int, str]:
    """Run a process; its code and the last thing it said about its work.

    The rest of what it says is shown where it failed.
    """
    said = f"{name}: no inputs counted"
    lines: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        child, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(f"{name}: "):
                said = line.rstrip()
            elif not line.startswith("INFO:"):
                lines.append(line)
    if process.returncode:
        sys.stdout.writelines(lines)
    return process.returncode, said


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=…", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for all targets together")
    parser.add_argument("--target", action="append", choices=list(TARGETS), default=[])
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one")
    parser.add_argument("--engine", choices=["auto", "atheris", "own"], default="auto")
    args = parser.parse_args()
    has_atheris = importlib.util.find_spec("atheris") is not None
    engine = args.engine
    if engine == "auto":
        engine = "atheris" if has_atheris else "own"
    seed = random.randrange(1, 2**31) if args.seed is None else args.seed
    print(f"engine {engine}, seed {seed}", flush=True)
    failed: list[str] = []
    for name, seconds in shares(args.target or list(TARGETS), args.seconds).items():
        began = time.monotonic()
        child = [sys.executable, "-m", "fuzz.child", name, engine, str(seed), f"{seconds:.1f}"]
        code, said = watched(child, name)
        took = time.monotonic() - began
        print(f"{said} ({'ok' if code == 0 else 'FAILED'}, {took:.0f} s)", flush=True)
        if code:
            failed.append(name)
    print("nothing found" if not failed else f"found something in: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
