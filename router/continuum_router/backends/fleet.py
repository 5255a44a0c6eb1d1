"""What is true of each backend now: requests in flight, recent success, speed of its answers.

State that lives as long as the process, keyed by backend *name*, so that it survives a reload
(design/architecture.md, section 8). All of it is touched from the event loop's thread only and
without an await, so every read is of one moment. The prefix bound, the KV score, ``/metrics`` and
the admin pages read the same counters (decisions A10: load is per backend, all models together).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType, TracebackType
from typing import Protocol

from continuum_router.backends.conditions import Conditions
from continuum_shared.metrics import Metrics

WINDOW = 100
"""Outcomes that the success rate and the latency look back on (decisions C7)."""

_ALPHA = 2 / (WINDOW + 1)


class AttemptResult(StrEnum):
    """How one attempt on a backend ended; the value is a metric label."""

    OK = "ok"
    FAILED = "failed"
    BUSY = "busy"
    CLIENT_ERROR = "client_error"
    CLIENT_GONE = "client_gone"
    ROUTER_ERROR = "router_error"


_OUTCOME: Mapping[AttemptResult, float] = MappingProxyType(
    {AttemptResult.OK: 1.0, AttemptResult.FAILED: 0.0}
)


def result_of_status(status: int) -> AttemptResult:
    """Class of an HTTP answer (decisions C7).

    429 and 503 say "full", which is neutral; any other 4xx but 408 is the client's doing; 408 and
    the other 5xx are failures of the backend.
    """
    if status in (429, 503):
        return AttemptResult.BUSY
    if status >= 500 or status == 408:
        return AttemptResult.FAILED
    return AttemptResult.CLIENT_ERROR if status >= 400 else AttemptResult.OK


class _Live:
    """Mutable facts of one backend, except its load (see ``Fleet.loads``)."""

    __slots__ = ("latency", "retired", "success")

    def __init__(self) -> None:
        self.success = 1.0
        self.latency: float | None = None
        self.retired = False


class Ticket(Protocol):
    """What whoever chose the backend wants to know of the attempt; its lease tells it."""

    def begun(self) -> None:
        """It is being sent."""

    def first_token(self) -> None:
        """The first event of a stream, or the head of a plain answer, has come."""

    def usage(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """What the answer says of its prompt; before the end, or never."""

    def ended(self) -> None:
        """It has ended, whatever way."""


class Lease:
    """One attempt in flight on one backend: counted from :meth:`begin` until :meth:`end`.

    Use it as a context manager, or, where the end comes in a callback, call the two methods.
    Beginning or ending twice counts once, so no interleaving of success, error and cancellation can
    lead a count below zero or leave one behind (user reports R2, R9). ``ticket`` hears of it too.
    """

    __slots__ = ("_active", "_by_prefix", "_fleet", "_trial", "name", "ticket")

    def __init__(
        self, fleet: "Fleet", name: str, by_prefix: bool, ticket: Ticket | None = None
    ) -> None:
        self.name = name
        self.ticket = ticket
        self._fleet = fleet
        self._by_prefix = by_prefix
        self._active = False
        self._trial = False

    def begin(self) -> "Lease":
        """Count the attempt up, unless it is counted already."""
        if not self._active:
            self._active = True
            self._fleet._up(self.name, self._by_prefix)
            self._trial = self._fleet.conditions.begin(self.name)
            if self.ticket is not None:
                self.ticket.begun()
        return self

    def end(self) -> None:
        """Count the attempt down, if it is counted."""
        if self._active:
            self._active = False
            self._fleet._down(self.name, self._by_prefix)
            if self._trial:
                self._fleet.conditions.release(self.name)
            if self.ticket is not None:
                self.ticket.ended()

    def __enter__(self) -> "Lease":
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class Fleet:
    """Live state of all backends.

    ``loads`` is a live read-only view, attempts in flight by backend name; a backend that left the
    configuration stays in it until its last lease ends. ``conditions`` say who may be sent to;
    what requests show goes there too. ``clock`` is monotonic seconds.
    """

    def __init__(
        self,
        metrics: Metrics,
        names: Iterable[str] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.conditions = Conditions(clock)
        self._live: dict[str, _Live] = {}
        self._loads: dict[str, int] = {}
        self._by_prefix: dict[str, int] = {}
        self.loads: Mapping[str, int] = MappingProxyType(self._loads)
        self.by_prefix: Mapping[str, int] = MappingProxyType(self._by_prefix)
        self.reconcile(names)
        metrics.gauge_fn(
            "continuum_backend_in_flight",
            "Generating requests in flight on a backend.",
            ("backend",),
            lambda: [((name,), count) for name, count in self._loads.items()],
        )
        metrics.gauge_fn(
            "continuum_prefix_routing_backend_distribution",
            "Requests in flight on a backend that prefix routing placed there.",
            ("backend",),
            lambda: [((name,), count) for name, count in self._by_prefix.items()],
        )

    def reconcile(self, names: Iterable[str]) -> None:
        """Make ``names`` the configured backends: add new ones, keep known ones, retire the rest.

        A retired backend is forgotten when its last lease ends; one that returns before keeps its
        counts and its history.
        """
        wanted = dict.fromkeys(names)
        for name in wanted:
            self._add(name).retired = False
        for name in [name for name in self._live if name not in wanted]:
            self._live[name].retired = True
            self._forget_idle(name)

    def lease(self, name: str, by_prefix: bool = False, ticket: Ticket | None = None) -> Lease:
        """A lease on ``name``, not yet begun.

        ``by_prefix`` when the prefix hash placed the request (decisions A13); ``ticket`` is told
        how the attempt goes. A name that has left
        the configuration is served too: a request may hold an older snapshot.
        """
        return Lease(self, name, by_prefix, ticket)

    def record(self, name: str, result: AttemptResult) -> None:
        """Note how an attempt ended. Only the backend's own doing moves its rate (C7), and its
        breaker: a client's mistakes and "full" are neutral (user reports R7, R8)."""
        outcome = _OUTCOME.get(result)
        live = self._live.get(name)
        if outcome is not None and live is not None:
            live.success += _ALPHA * (outcome - live.success)
        if result is AttemptResult.OK:
            self.conditions.served(name)
        elif result is AttemptResult.FAILED:
            self.conditions.failed(name)

    def success_rate(self, name: str) -> float:
        """Moving average of the last 100 outcomes, 0 to 1; 1 when there is none (decisions C7)."""
        live = self._live.get(name)
        return 1.0 if live is None else live.success

    def observe_latency(self, name: str, seconds: float) -> None:
        """Note the time from sending a request to the answer's headers (decisions A15)."""
        live = self._live.get(name)
        if live is not None:
            known = seconds if live.latency is None else live.latency
            live.latency = known + _ALPHA * (seconds - known)

    def latency(self, name: str) -> float | None:
        """Moving average of the time to headers in seconds; ``None`` before the first answer."""
        live = self._live.get(name)
        return None if live is None else live.latency

    def _up(self, name: str, by_prefix: bool) -> None:
        if name not in self._loads:
            self._add(name).retired = True
        self._loads[name] += 1
        if by_prefix:
            self._by_prefix[name] += 1

    def _down(self, name: str, by_prefix: bool) -> None:
        self._loads[name] -= 1
        if by_prefix:
            self._by_prefix[name] -= 1
        if self._live[name].retired:
            self._forget_idle(name)

    def _add(self, name: str) -> _Live:
        self._loads.setdefault(name, 0)
        self._by_prefix.setdefault(name, 0)
        return self._live.setdefault(name, _Live())

    def _forget_idle(self, name: str) -> None:
        if self._loads[name] == 0:
            del self._live[name], self._loads[name], self._by_prefix[name]
