"""What dispatching needs and outlives a configuration."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from continuum_router.backends.exchange import UpstreamReply, UpstreamRequest
from continuum_router.backends.fleet import AttemptResult, Fleet
from continuum_router.backends.pool import Backend
from continuum_router.routing.selector import RoutingMetrics
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
    """Results of attempts. Made once, with the state."""

    def __init__(self, metrics: Metrics) -> None:
        attempts = metrics.counter(
            "continuum_upstream_attempts_total",
            "Calls to backends, by how they ended.",
            {"result": AttemptResult},
        )
        self._attempts = {result: attempts.child(result) for result in AttemptResult}

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
