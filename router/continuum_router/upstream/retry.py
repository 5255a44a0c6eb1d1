"""Whether a failed attempt is tried again, and after how long. No I/O, no clock, no sleep.

One table (design/architecture.md section 4; decisions E10, E13-E15, J11; S2 "retry"):

| how far it got                         | again?                                            |
|----------------------------------------|---------------------------------------------------|
| connecting                             | yes                                               |
| kept connection died unused            | once, at once, fresh, uncounted, if replay allows |
| sending, awaiting_head, no byte back   | yes, if the backend allows replay                 |
| awaiting_head, bytes of an answer came | no: it may have been executed                     |
| answer with a retryable status         | yes, if replay allows and Retry-After is bearable |
| first_byte passed, nothing relayed     | only with `on_timeout`, and if replay allows      |
| another deadline passed                | no                                                |
| streaming                              | never: the client has bytes                       |

Where a model's tries are used up the next model of its fallback chain follows, under the same table
(J11); a 5xx that is not worth a second try on the same model is worth one on another.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.retry_budget import BudgetRules

DEADLINES = frozenset({Cause.FIRST_BYTE_TIMEOUT, Cause.CHUNK_INTERVAL_TIMEOUT, Cause.TOTAL_TIMEOUT})
_FINAL = (DEADLINES - {Cause.FIRST_BYTE_TIMEOUT}) | {Cause.POOL_CLOSED, Cause.ABORTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Try once more after `delay` seconds.

    `fresh`: same backend, new connection, uncounted. `fallback`: the next model of the chain.
    """

    delay: float
    fresh: bool = False
    fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The `retry` section, ready to decide. Delays in seconds, `max_attempts` in all (E13)."""

    max_attempts: int = 3
    initial_delay: float = 0.1
    max_delay: float = 30.0
    backoff_multiplier: float = 2.0
    jitter: bool = True
    retryable_status_codes: Collection[int] = frozenset({429, 502, 503, 504})
    prefer_untried_backends: bool = False
    on_timeout: bool = False
    budget: BudgetRules = field(default_factory=BudgetRules)

    def decide(
        self,
        failure: AttemptFailure,
        *,
        attempt: int,
        replay_allowed: bool,
        fresh_used: bool,
        time_left: float,
        rng: random.Random,
    ) -> Again | None:
        """Return how to try again, or None to give up.

        `attempt` is the number of counted tries so far (1 after the first), `fresh_used` whether
        this try already was the uncounted one on a fresh connection, `time_left` the seconds until
        the request's total deadline: a delay that reaches it is pointless.
        """
        if wants_fresh(failure, replay_allowed=replay_allowed, fresh_used=fresh_used):
            return Again(delay=0.0, fresh=True) if time_left > 0 else None
        if attempt >= self.max_attempts or not self._may_repeat(failure, replay_allowed):
            return None
        delay = max(self._backoff(attempt, rng), failure.retry_after or 0.0)
        return Again(delay=delay) if delay < time_left else None

    def may_fall_back(
        self, failure: AttemptFailure, *, replay_allowed: bool, time_left: float
    ) -> bool:
        """True when another model may be tried after this failure, which was the model's last."""
        if time_left <= 0:
            return False
        if failure.cause is Cause.STATUS:
            return replay_allowed
        return self._may_repeat(failure, replay_allowed)

    def _may_repeat(self, failure: AttemptFailure, replay_allowed: bool) -> bool:
        if failure.cause in _FINAL:
            return False
        if failure.cause is Cause.FIRST_BYTE_TIMEOUT:
            return self.on_timeout and replay_allowed
        if failure.stage is Stage.CONNECTING:
            return True
        if failure.stage is Stage.STREAMING or not replay_allowed:
            return False
        if failure.cause is Cause.STATUS:
            bearable = failure.retry_after is None or failure.retry_after <= self.max_delay
            return failure.status in self.retryable_status_codes and bearable
        return not failure.began

    def _backoff(self, attempt: int, rng: random.Random) -> float:
        """Delay after a try: 1, 2, 4... times the initial one, capped, then jittered down."""
        try:
            delay = self.initial_delay * self.backoff_multiplier ** (attempt - 1)
        except OverflowError:
            delay = self.max_delay
        delay = min(delay, self.max_delay)
        return delay * rng.uniform(0.5, 1.0) if self.jitter else delay


def wants_fresh(failure: AttemptFailure, *, replay_allowed: bool, fresh_used: bool) -> bool:
    """True when the same call is due once more on a fresh connection, uncounted (E14)."""
    return failure.lost_unused and replay_allowed and not fresh_used


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks to wait, at least 0; None when absent or unreadable.

    `value` is a number of seconds or an HTTP date; `now` is Unix time.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:10])
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.fromtimestamp(now, UTC)).total_seconds())
