"""What the demo found out, as numbers, as a table and as JSON. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from continuum_router.demo.workload_driver import TurnResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The router's own count of what its KV scorer decided."""

    kv_aware: int
    fallback: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way of routing, measured. `hit_ratio` is cached over all prompt tokens, 0 to 1."""

    hit_ratio: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    requests: int
    by_backend: Mapping[str, int]
    decisions: Decisions | None = None


def measure(results: Sequence[TurnResult], decisions: Decisions | None = None) -> Measured:
    """Sum up one run. Raises ValueError when there is nothing to sum up."""
    if not results:
        raise ValueError("no results")
    asked = sum(result.prompt_tokens for result in results)
    cached = sum(result.cached_tokens for result in results)
    ttfts = [result.ttft * 1000 for result in results]
    names = sorted({result.backend for result in results})
    return Measured(
        hit_ratio=cached / asked if asked else 0.0,
        ttft_p50_ms=percentile(ttfts, 50),
        ttft_p90_ms=percentile(ttfts, 90),
        requests=len(results),
        by_backend={name: sum(r.backend == name for r in results) for name in names},
        decisions=decisions,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile: the smallest value that at least `percent` % do not exceed."""
    ordered = sorted(values)
    rank = max(1, math.ceil(len(ordered) * percent / 100))
    return ordered[rank - 1]


def as_json(seed: int, round_robin: Measured, kv_aware: Measured) -> dict[str, object]:
    """The object that `demo --once --json` prints."""
    return {
        "seed": seed,
        "round_robin": _numbers(round_robin),
        "kv_aware": _numbers(kv_aware),
    }


def as_table(round_robin: Measured, kv_aware: Measured) -> str:
    """Both runs side by side, and one line that says what it means."""
    rows = [
        ("", "round robin", "KV-aware"),
        ("cache hit ratio", f"{round_robin.hit_ratio:.1%}", f"{kv_aware.hit_ratio:.1%}"),
        ("TTFT p50", f"{round_robin.ttft_p50_ms:.0f} ms", f"{kv_aware.ttft_p50_ms:.0f} ms"),
        ("TTFT p90", f"{round_robin.ttft_p90_ms:.0f} ms", f"{kv_aware.ttft_p90_ms:.0f} ms"),
        ("requests", str(round_robin.requests), str(kv_aware.requests)),
        ("per engine", _split(round_robin), _split(kv_aware)),
    ]
    lines = [f"{name:<16}  {left:>12}  {right:>12}" for name, left, right in rows]
    lines.insert(1, "-" * len(lines[0]))
    gain = (kv_aware.hit_ratio - round_robin.hit_ratio) * 100
    lines.append("")
    lines.append(f"KV-aware routing found {gain:+.1f} points more of the prompt tokens in a cache.")
    if kv_aware.decisions is not None:
        lines.append(
            f"Of its decisions {kv_aware.decisions.kv_aware} went to an engine known to hold the "
            f"prefix, {kv_aware.decisions.fallback} were left to the hash ring."
        )
    return "\n".join(lines)


def _numbers(measured: Measured) -> dict[str, object]:
    numbers: dict[str, object] = {
        "hit_ratio": round(measured.hit_ratio, 4),
        "ttft_p50_ms": round(measured.ttft_p50_ms, 1),
        "ttft_p90_ms": round(measured.ttft_p90_ms, 1),
        "requests": measured.requests,
        "by_backend": dict(measured.by_backend),
    }
    if measured.decisions is not None:
        numbers["decisions"] = {
            "kv_aware": measured.decisions.kv_aware,
            "fallback": measured.decisions.fallback,
        }
    return numbers


def _split(measured: Measured) -> str:
    return " / ".join(str(count) for count in measured.by_backend.values())
