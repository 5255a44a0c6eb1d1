"""Metrics: closed label sets, samples at zero, what a scrape shows."""

from enum import StrEnum

import pytest

from continuum_shared.metrics import MAX_CHILDREN, Metrics


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def test_enum_labels_exist_at_zero_and_count():
    metrics = Metrics()
    family = metrics.counter("x_total", "Things.", {"colour": Colour})
    family.child(Colour.RED).value += 2
    text = metrics.exposition().decode()
    assert 'x_total{colour="red"} 2.0' in text
    assert 'x_total{colour="blue"} 0.0' in text


def test_a_value_outside_the_set_is_refused():
    family = Metrics().counter("x_total", "Things.", {"colour": Colour})
    with pytest.raises(ValueError, match="green"):
        family.child("green")
    with pytest.raises(ValueError, match="colour"):
        family.child("red", "blue")


def test_names_are_made_removed_and_bounded():
    family = Metrics().gauge("g", "A gauge.", {"backend": None})
    family.child("a").set(3)
    assert family.child("a").value == 3
    family.remove("a")
    assert ("a",) not in family.children
    for n in range(MAX_CHILDREN + 5):
        family.child(f"b{n}").inc()
    assert len(family.children) == MAX_CHILDREN + 1
    assert family.children[("other",)].value == 5


def test_histogram_buckets_are_cumulative():
    metrics = Metrics()
    child = metrics.histogram("h", "Sizes.", [1, 2]).child()
    for value in (0.5, 1, 1.5, 9):
        child.observe(value)
    text = metrics.exposition().decode()
    assert 'h_bucket{le="1.0"} 2.0' in text
    assert 'h_bucket{le="2.0"} 3.0' in text
    assert 'h_bucket{le="+Inf"} 4.0' in text
    assert "h_count 4.0" in text
    assert "h_sum 12.0" in text


def test_read_at_scrape_and_no_name_twice():
    metrics = Metrics()
    value = {"a": 1.0}
    metrics.gauge_fn("r", "Read.", ["n"], lambda: [((k,), v) for k, v in value.items()])
    value["a"] = 5.0
    assert 'r{n="a"} 5.0' in metrics.exposition().decode()
    with pytest.raises(ValueError, match="twice"):
        metrics.counter_fn("r", "Read.", [], list)
