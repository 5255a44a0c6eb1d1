"""What is told about a reload."""

from continuum_router.reload_report import ReloadMetrics, ReloadReport, Result
from continuum_shared.metrics import Metrics


def test_the_answer_of_the_endpoint() -> None:
    report = ReloadReport(result=Result.APPLIED, applied=("retry.jitter",), warnings=("w",))
    assert report.to_json() == {
        "result": "applied",
        "applied": ["retry.jitter"],
        "requires_restart": [],
        "refused": [],
        "warnings": ["w"],
    }
    bad = ReloadReport(result=Result.INVALID, problems=("f:1: x: is wrong",))
    assert bad.to_json()["problems"] == ["f:1: x: is wrong"]


def test_the_gauges() -> None:
    metrics, now = Metrics(), [100.0]
    counted = ReloadMetrics(metrics, lambda: now[0])

    def lines() -> set[str]:
        return {
            line
            for line in metrics.exposition().decode().splitlines()
            if line.startswith("continuum_config")
        }

    assert lines() == {
        "continuum_config_last_reload_success 1.0",
        "continuum_config_last_reload_timestamp_seconds 100.0",
        'continuum_config_reloads_total{result="applied"} 0.0',
        'continuum_config_reloads_total{result="invalid"} 0.0',
        'continuum_config_reloads_total{result="refused"} 0.0',
    }
    now[0] = 200.0
    counted.ended(Result.INVALID)
    assert "continuum_config_last_reload_success 0.0" in lines()
    assert "continuum_config_last_reload_timestamp_seconds 100.0" in lines()
    counted.ended(Result.APPLIED)
    assert "continuum_config_last_reload_success 1.0" in lines()
    assert "continuum_config_last_reload_timestamp_seconds 200.0" in lines()
    assert 'continuum_config_reloads_total{result="invalid"} 1.0' in lines()
