"""Random histories of simulated engines against the listener, with progress and wall time.

    python scripts/oracle.py [--histories N] [--first SEED] [--kind NAME]

Each history is determined by its kind and seed; a failure names both. Needs ``tests`` on the path.
"""

import argparse
import logging
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.oracle_history import KINDS, run


def main() -> int:
    """Run and print. Returns the exit code: 1 when a history failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1_000, help="for each kind")
    parser.add_argument("--first", type=int, default=1, help="seed of the first one")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = 0
    begun = time.perf_counter()
    for kind in options.kind or KINDS:
        failed += _kind(kind, options.first, options.histories)
    print(f"oracle: {time.perf_counter() - begun:.1f} s, {failed} failed")
    return 1 if failed else 0


def _kind(kind: str, first: int, histories: int) -> int:
    begun = time.perf_counter()
    failed: list[int] = []
    for number in range(histories):
        try:
            run(kind, first + number)
        except AssertionError:
            failed.append(first + number)
            if len(failed) == 1:
                traceback.print_exc()
        if (number + 1) % 50 == 0 or number + 1 == histories:
            spent = time.perf_counter() - begun
            print(
                f"\r{kind:<12}{number + 1:>6} of {histories}  {spent:6.1f} s  {len(failed)} failed",
                end="",
                flush=True,
            )
    print(f"  {'seeds ' + str(failed[:20]) if failed else 'ok'}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
