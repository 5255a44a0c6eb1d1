"""The demo's numbers, table and JSON."""

import pytest

from continuum_router.demo.report import Decisions, as_json, as_table, measure, percentile
from continuum_router.demo.workload_driver import TurnResult


def turn(ttft: float, prompt: int, cached: int, backend: str) -> TurnResult:
    return TurnResult(
        ttft=ttft, prompt_tokens=prompt, cached_tokens=cached, backend=backend, route="round_robin"
    )


WORSE = measure([turn(0.2, 100, 0, "a"), turn(0.1, 300, 100, "b")])
BETTER = measure(
    [turn(0.05, 100, 50, "a"), turn(0.01, 300, 250, "a")], Decisions(kv_aware=1, fallback=1)
)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5.0], 50, 5.0),
        ([1.0, 2.0], 50, 1.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([float(n) for n in range(1, 11)], 90, 9.0),
        ([float(n) for n in range(1, 11)], 100, 10.0),
        ([1.0, 2.0], 0, 1.0),
    ],
)
def test_percentile(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_the_hit_ratio_weighs_tokens_not_requests() -> None:
    assert WORSE.hit_ratio == 0.25
    assert (WORSE.ttft_p50_ms, WORSE.ttft_p90_ms) == (100.0, 200.0)
    assert WORSE.by_backend == {"a": 1, "b": 1}


def test_nothing_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="no results"):
        measure([])


def test_the_json_object() -> None:
    assert as_json(7, WORSE, BETTER) == {
        "seed": 7,
        "round_robin": {
            "hit_ratio": 0.25,
            "ttft_p50_ms": 100.0,
            "ttft_p90_ms": 200.0,
            "requests": 2,
            "by_backend": {"a": 1, "b": 1},
        },
        "kv_aware": {
            "hit_ratio": 0.75,
            "ttft_p50_ms": 10.0,
            "ttft_p90_ms": 50.0,
            "requests": 2,
            "by_backend": {"a": 2},
            "decisions": {"kv_aware": 1, "fallback": 1},
        },
    }


def test_the_table() -> None:
    assert as_table(WORSE, BETTER).splitlines() == [
        "                   round robin      KV-aware",
        "--------------------------------------------",
        "cache hit ratio          25.0%         75.0%",
        "TTFT p50                100 ms         10 ms",
        "TTFT p90                200 ms         50 ms",
        "requests                     2             2",
        "per engine               1 / 1             2",
        "",
        "KV-aware routing found +50.0 points more of the prompt tokens in a cache.",
        "Of its decisions 1 went to an engine known to hold the prefix, "
        "1 were left to the hash ring.",
    ]
