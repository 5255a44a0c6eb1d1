"""Metrics as plain numbers that Prometheus reads at scrape time.

``prometheus_client``'s own ``labels().inc()`` costs about a microsecond a call, a quarter of the
request budget with five or six of them (design/data-plane.md, section 6). Here a child is an object
with one slot that the hot path adds to; one collector per registry turns the numbers into samples
when somebody scrapes. Label values are enum members or names from the configuration, so a stranger
can never create a series.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import product
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_CHILDREN = 10_000
"""Children of one family; names beyond it share the child ``other``."""

LabelDomain = type[StrEnum] | None
"""A closed set of values, or ``None`` for names that our configuration gives."""

Reading = Callable[[], Iterable[tuple[tuple[str, ...], float]]]


class Counter:
    """One counted series. The hot path may write ``child.value += 1``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Add ``amount`` (not negative)."""
        self.value += amount


class Gauge:
    """One series that goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value

    def inc(self, amount: float = 1) -> None:
        """Add ``amount``, which may be negative."""
        self.value += amount


class Histogram:
    """One series of bucketed observations; ``bounds`` are the upper bounds without infinity."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)


Child = TypeVar("Child", bound=Counter | Gauge | Histogram)


class Family(Generic[Child]):
    """All series of one metric name. Bind a child once, keep it, add to it."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, LabelDomain],
        make: Callable[[], Child],
        metric: Callable[["Family[Child]"], Metric],
    ) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self.domains = tuple(labels.values())
        self._make = make
        self._metric = metric
        self.children: dict[tuple[str, ...], Child] = {}
        if all(domain is not None for domain in self.domains):
            for values in product(*(tuple(d) for d in self.domains if d is not None)):
                self.children[tuple(v.value for v in values)] = make()

    def child(self, *values: str) -> Child:
        """The series with these label values, in the order of the labels; made when new.

        Raises ``ValueError`` for a wrong number of values or a value outside its enum: both are
        mistakes of the caller, not of the traffic.
        """
        key = tuple(str(value) for value in values)
        found = self.children.get(key)
        if found is not None:
            return found
        if len(key) != len(self.domains):
            raise ValueError(f"{self.name} takes the labels {', '.join(self.labels) or 'none'}")
        for value, domain in zip(key, self.domains, strict=True):
            if domain is not None:
                domain(value)
        if len(self.children) >= MAX_CHILDREN:
            key = tuple(
                value if domain is not None else "other"
                for value, domain in zip(key, self.domains, strict=True)
            )
            if key in self.children:
                return self.children[key]
        made = self.children[key] = self._make()
        return made

    def remove(self, *values: str) -> None:
        """Forget one series (a backend left the configuration)."""
        self.children.pop(tuple(str(value) for value in values), None)

    def collect(self) -> Metric:
        """The family as prometheus_client's type."""
        return self._metric(self)


class Metrics:
    """One registry and everything that is registered in it. Made by the wiring, handed on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._collector = _FamilyCollector()
        self.registry.register(self._collector)
        self._families: dict[str, Family[Any]] = {}

    def counter(
        self, name: str, text: str, labels: Mapping[str, LabelDomain] | None = None
    ) -> Family[Counter]:
        """A counter family; the name's ``_total`` suffix is part of ``name``."""
        return self._add(Family(name, text, labels or {}, Counter, _counter_metric))

    def gauge(
        self, name: str, text: str, labels: Mapping[str, LabelDomain] | None = None
    ) -> Family[Gauge]:
        """A gauge family."""
        return self._add(Family(name, text, labels or {}, Gauge, _gauge_metric))

    def histogram(
        self,
        name: str,
        text: str,
        buckets: Sequence[float],
        labels: Mapping[str, LabelDomain] | None = None,
    ) -> Family[Histogram]:
        """A histogram family with these upper bounds (ascending, infinity is implied)."""
        return self._add(
            Family(name, text, labels or {}, lambda: Histogram(buckets), _histogram_metric)
        )

    def gauge_fn(self, name: str, text: str, labels: Sequence[str], read: Reading) -> None:
        """A gauge whose samples are read from ``read`` at scrape time."""
        self._collector.add(name, lambda: _read_gauge(name, text, labels, read))

    def counter_fn(self, name: str, text: str, labels: Sequence[str], read: Reading) -> None:
        """A counter whose samples are read from ``read`` at scrape time."""
        self._collector.add(name, lambda: _read_counter(name, text, labels, read))

    def family(self, name: str) -> Family[Counter | Gauge | Histogram] | None:
        """The declared family of this name; ``None`` for one that is read at scrape time."""
        return self._families.get(name)

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format; send it with :data:`CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def _add(self, family: Family[Child]) -> Family[Child]:
        self._collector.add(family.name, family.collect)
        self._families[family.name] = family
        return family


class _FamilyCollector(Collector):
    def __init__(self) -> None:
        self._collect: dict[str, Callable[[], Metric]] = {}

    def add(self, name: str, collect: Callable[[], Metric]) -> None:
        if name in self._collect:
            raise ValueError(f"the metric {name} is declared twice")
        self._collect[name] = collect

    def collect(self) -> Iterable[Metric]:
        return [collect() for collect in self._collect.values()]


def _counter_metric(family: Family[Counter]) -> Metric:
    metric = CounterMetricFamily(family.name, family.text, labels=family.labels)
    for values, child in list(family.children.items()):
        metric.add_metric(values, child.value)
    return metric


def _gauge_metric(family: Family[Gauge]) -> Metric:
    metric = GaugeMetricFamily(family.name, family.text, labels=family.labels)
    for values, child in list(family.children.items()):
        metric.add_metric(values, child.value)
    return metric


def _histogram_metric(family: Family[Histogram]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.text, labels=family.labels)
    for values, child in list(family.children.items()):
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*child.bounds, float("inf")), child.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
        metric.add_metric(values, buckets, child.sum)
    return metric


def _read_gauge(name: str, text: str, labels: Sequence[str], read: Reading) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=labels)
    for values, value in read():
        metric.add_metric(values, value)
    return metric


def _read_counter(name: str, text: str, labels: Sequence[str], read: Reading) -> Metric:
    metric = CounterMetricFamily(name, text, labels=labels)
    for values, value in read():
        metric.add_metric(values, value)
    return metric
