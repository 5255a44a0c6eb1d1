"""What a reload ends in: a report for whoever asked for it, gauges for whoever watches (H4, J9)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from continuum_shared.metrics import Metrics


class Result(StrEnum):
    """How a reload ended; the value is a metric label."""

    APPLIED = "applied"
    INVALID = "invalid"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadReport:
    """What became of a candidate. The lists hold dotted key paths, the texts hold no secrets.

    `applied` are in force now; `requires_restart` differ in the file and not in the process;
    `refused` are frozen at start and made the whole candidate be refused. `problems` are why it is
    invalid, one line each.
    """

    result: Result
    applied: tuple[str, ...] = ()
    requires_restart: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The answer of `POST /admin/reload` (decisions J9)."""
        body: dict[str, object] = {
            "result": self.result.value,
            "applied": list(self.applied),
            "requires_restart": list(self.requires_restart),
            "refused": list(self.refused),
            "warnings": list(self.warnings),
        }
        if self.problems:
            body["problems"] = list(self.problems)
        return body


class ReloadMetrics:
    """The gauges that an alert needs, and a counter. Made once, with the state."""

    def __init__(self, metrics: Metrics, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._good = metrics.gauge(
            "continuum_config_last_reload_success",
            "1 when the configuration file as it was read last is in force, else 0.",
        ).child()
        self._when = metrics.gauge(
            "continuum_config_last_reload_timestamp_seconds",
            "Unix time at which the configuration in force was put there.",
        ).child()
        family = metrics.counter(
            "continuum_config_reloads_total", "Reloads, by how they ended.", {"result": Result}
        )
        self._results = {result: family.child(result) for result in Result}
        self._good.value = 1
        self._when.value = wall()

    def ended(self, result: Result) -> None:
        """Count one."""
        self._results[result].value += 1
        self._good.value = float(result is Result.APPLIED)
        if result is Result.APPLIED:
            self._when.value = self._wall()
