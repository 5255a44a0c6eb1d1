"""The lines that requests leave in the log (S2 "request completion logging", "rejection logging").

A completion line is noted when its request ends and written a moment later, many at once: to format
one costs as much as a third of a request, and nobody waits for it. Its time is that of the end.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from continuum_router.api.scope import Scope
from continuum_router.errors import RouterError
from continuum_shared.logs import fields

log = logging.getLogger("continuum_router.access")

FLUSH_SECONDS = 0.1
MAX_NOTED = 512
"""Lines that wait at most; then they are written at once."""


class AccessLog:
    """`wall` is Unix seconds. To be used with the loop running; `close` at the end."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._noted: deque[tuple[float, Scope, int, float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def wanted(self) -> bool:
        """True when completion lines are written at all."""
        return log.isEnabledFor(logging.INFO)

    def started(self, scope: Scope) -> None:
        """A generating request begins its way."""
        if log.isEnabledFor(logging.DEBUG):
            start = fields(request_id=scope.request_id, route=scope.route, model=scope.model)
            log.debug("Starting request with retry support", extra=start)

    def completed(self, scope: Scope, status: int, seconds: float) -> None:
        """A request has ended after `seconds`, with `status` (499: the client left)."""
        if not log.isEnabledFor(logging.INFO):
            return
        self._noted.append((self._wall(), scope, status, seconds))
        if len(self._noted) >= MAX_NOTED or self._closed:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def rejected(self, scope: Scope, err: RouterError, seconds: float) -> None:
        """A request was refused before a backend was chosen."""
        log.warning("Request rejected", extra=_rejection(scope, err, seconds))

    def close(self) -> None:
        """Write what is noted; from now on nothing waits, for there may be no later."""
        self._closed = True
        self.flush()

    def flush(self) -> None:
        """Write what is noted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._noted:
            when, scope, status, seconds = self._noted.popleft()
            record = log.makeRecord(
                log.name,
                logging.INFO,
                __file__,
                0,
                "Request completed",
                (),
                None,
                extra=_completion(scope, status, seconds),
            )
            record.created = when
            log.handle(record)


def _completion(scope: Scope, status: int, seconds: float) -> dict[str, object]:
    outcome, usage = scope.outcome, scope.outcome.usage
    return _present(
        event="request_completed",
        request_id=scope.request_id,
        trace_id=scope.trace_id,
        x_request_id=scope.client_id,
        client_ref=scope.client_ref,
        method=scope.method,
        route=scope.route,
        status=status,
        outcome=outcome.ended,
        duration_ms=_ms(seconds),
        model=scope.model,
        model_used=outcome.model_used,
        backend=outcome.backend,
        rule=outcome.choice.rule if outcome.choice is not None else None,
        attempts=outcome.attempts or None,
        cause=outcome.cause,
        ttft_ms=_ms(outcome.ttft),
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        total_tokens=usage.total_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
    )


def _rejection(scope: Scope, err: RouterError, seconds: float) -> dict[str, object]:
    return _present(
        event="request_rejected",
        request_id=scope.request_id,
        trace_id=scope.trace_id,
        x_request_id=scope.client_id,
        client_ref=scope.client_ref,
        method=scope.method,
        route=scope.route or None,
        status=err.status,
        stage=err.stage,
        latency=_ms(seconds),
        **{"error.type": err.type, "error.code": err.code},
    )


def _present(**values: object) -> dict[str, object]:
    """Log fields without those that the request did not produce (S2)."""
    return fields(**{name: value for name, value in values.items() if value is not None})


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
