"""Reading samples out of a Prometheus text."""

from continuum_router.demo.readiness import samples, total

TEXT = """# HELP decisions_total what was decided
# TYPE decisions_total counter
decisions_total{decision="kv_aware",tier="gpu_hot"} 3.0
decisions_total{decision="kv_aware",tier="storage_warm"} 1.0
decisions_total{tier="none",decision="fallback"} 2.0
decisions_total_other{decision="kv_aware"} 9
plain 4
odd{text="a \\"b\\", c"} 1e3
"""


def test_samples_of_one_family() -> None:
    assert samples(TEXT, "plain") == {(): 4.0}
    assert samples(TEXT, "odd") == {(("text", 'a \\"b\\", c'),): 1000.0}
    assert samples(TEXT, "absent") == {}
    assert samples(TEXT, "decisions_total")[("decision", "fallback"), ("tier", "none")] == 2.0


def test_total_over_one_label() -> None:
    found = samples(TEXT, "decisions_total")
    assert total(found, "decision", "kv_aware") == 4
    assert total(found, "decision", "fallback") == 2
    assert total(found, "decision", "other") == 0
