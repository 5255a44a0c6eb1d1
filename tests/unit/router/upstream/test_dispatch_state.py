"""Attempts are counted under a closed set of results that exists from the start."""

from continuum_router.backends.fleet import AttemptResult
from continuum_router.upstream.dispatch_state import DispatchMetrics
from continuum_shared.metrics import Metrics


def test_every_result_has_its_series_and_counts_alone() -> None:
    metrics = Metrics()
    counted = DispatchMetrics(metrics)
    counted.attempt_ended(AttemptResult.BUSY)
    counted.attempt_ended(AttemptResult.BUSY)
    counted.attempt_ended(AttemptResult.OK)
    text = metrics.exposition().decode()
    for result in AttemptResult:
        want = {AttemptResult.BUSY: "2.0", AttemptResult.OK: "1.0"}.get(result, "0.0")
        assert f'continuum_upstream_attempts_total{{result="{result}"}} {want}' in text
