"""What dispatching needs and outlives a configuration."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from continuum_router.backends.exchange import UpstreamReply, UpstreamRequest
from continuum_router.backends.fleet import AttemptResult, Fleet
from continuum_router.backends.holding import Holding
from continuum_router.backends.pool import Backend
from continuum_router.routing.selector import RoutingMetrics
from continuum_router.upstream.retry_budget import RetryBudget
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey


class Transport(Protocol):
    """Sends one request over one connection; `upstream.pool.UpstreamPool` does."""

    async def send(
        self,
        backend: Backend,
        request: UpstreamRequest,
        *,
        connect_timeout: float,
        fresh: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> UpstreamReply:
        """Return the reply when its head is there. Raises AttemptFailure."""


class DispatchMetrics:
    """Results of attempts, and retries that were not granted. Made once, with the state."""

    def __init__(self, metrics: Metrics) -> None:
        attempts = metrics.counter(
            "continuum_upstream_attempts_total",
            "Calls to backends, by how they ended.",
            {"result": AttemptResult},
        )
        self._attempts = {result: attempts.child(result) for result in AttemptResult}

        self.budget_exhausted = metrics.counter(
            "continuum_retry_budget_exhausted_total",
            "Failures passed on because the retry budget was empty.",
        ).child()

    def attempt_ended(self, result: AttemptResult) -> None:
        """Count one attempt."""
        self._attempts[result].value += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchState:
    """The state itself. `clock` is monotonic seconds, `wall` Unix time."""

    fleet: Fleet
    transport: Transport
    routing_metrics: RoutingMetrics
    metrics: DispatchMetrics
    clock: Callable[[], float]
    wall: Callable[[], float]
    rng: random.Random
    served: Callable[[str, PrefixKey, float], None]
    """Told `(backend, prefix, now)` when a backend served a request with that key (C29)."""
    holdings: Callable[[PrefixKey, float], Mapping[str, Holding] | None] = lambda _key, _now: None
    """`(prefix, now)` → what the index knows, for a model that a request falls back to."""
    budget: RetryBudget = field(default_factory=RetryBudget)
