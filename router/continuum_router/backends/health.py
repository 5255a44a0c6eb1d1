"""The health of one backend: what was observed in, its state out. No I/O, no clock (S2, E1-E9).

Probes drive it; what traffic showed meanwhile decides whether a failed probe counts. All times are
seconds of one monotonic clock, given by the caller.
"""

from dataclasses import dataclass
from enum import StrEnum


class HealthState(StrEnum):
    """Decisions E2; the value is a metric label. `draining` and `disabled` are not judged here:
    an operator decides them, and the machine's own state goes on behind them."""

    READY = "ready"
    WARMING_UP = "warming_up"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"
    DRAINING = "draining"
    DISABLED = "disabled"


class ProbeOutcome(StrEnum):
    """What one probe said; the value is a metric label."""

    OK = "ok"
    WARMING = "warming"
    FAILED = "failed"


class ProbeError(StrEnum):
    """Why a probe failed; the value is a metric label and what an operator is shown."""

    NONE = "none"
    TIMEOUT = "timeout"
    CONNECT = "connect"
    TLS = "tls"
    PROTOCOL = "protocol"
    REDIRECT = "redirect"
    CREDENTIALS = "credentials"
    BUSY = "busy"
    NOT_FOUND = "not_found"
    STATUS = "status"


class CredentialState(StrEnum):
    """What is known about the credential of a backend."""

    UNKNOWN = "unknown"
    VALID = "valid"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One probe's result.

    `fresh` is false for a remembered verdict: it moves no threshold, is no sample of latency and
    is no recovery (S2 "catalogue-sized fallbacks"). `credentials` is what this answer proves,
    None when it proves nothing.
    """

    outcome: ProbeOutcome
    error: ProbeError = ProbeError.NONE
    status: int | None = None
    latency: float | None = None
    credentials: CredentialState | None = None
    fresh: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """The thresholds of one configuration. Durations in seconds."""

    interval: float
    unhealthy_threshold: int
    healthy_threshold: int
    warmup_check_interval: float
    max_warmup_duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What requests showed since the probe before: the times of the last good end, and whether
    response bytes have arrived. None and False when there was no traffic."""

    last_success: float | None = None
    delivered: bool = False


class HealthMachine:
    """State and streaks of one backend. Survives a reload; give it the rules that are in force.

    `successes` and `failures` are the present streaks of counted probes, `last_error` the class of
    the last failed one, `warm_since` when the present warm-up began, `checked_at` when a probe
    ended last.
    """

    __slots__ = (
        "_warmed_out",
        "checked_at",
        "credentials",
        "failures",
        "last_error",
        "last_status",
        "latency",
        "state",
        "successes",
        "warm_since",
    )

    def __init__(self) -> None:
        self.state = HealthState.UNKNOWN
        self.successes = 0
        self.failures = 0
        self.last_error = ProbeError.NONE
        self.last_status: int | None = None
        self.latency: float | None = None
        self.credentials = CredentialState.UNKNOWN
        self.warm_since: float | None = None
        self.checked_at: float | None = None
        self._warmed_out = False

    def observe(
        self, seen: Observation, rules: HealthRules, *, now: float, traffic: Traffic
    ) -> bool:
        """Take a probe's result. Returns True when the state has changed."""
        before = self.state
        self.checked_at = now
        if seen.credentials is not None:
            self.credentials = seen.credentials
        if seen.status is not None:
            self.last_status = seen.status
        if not seen.fresh:
            self.expire(rules, now=now)
            return self.state is not before
        if seen.outcome is ProbeOutcome.OK:
            self._good(seen, rules)
        elif seen.outcome is ProbeOutcome.WARMING:
            self._warming(seen, rules, now)
        else:
            self.last_error = seen.error
            if not self._excused(seen, rules, now, traffic):
                self._bad(rules)
            self.expire(rules, now=now)
        return self.state is not before

    def expire(self, rules: HealthRules, *, now: float) -> bool:
        """Apply the deadline of a warm-up. Returns True when it has just passed."""
        since = self.warm_since
        if self.state is not HealthState.WARMING_UP or since is None:
            return False
        if now - since < rules.max_warmup_duration:
            return False
        self.state = HealthState.UNHEALTHY
        self.warm_since = None
        self._warmed_out = True
        return True

    def next_check(self, rules: HealthRules) -> float:
        """Seconds until the next probe: fast while warming up, else the interval."""
        if self.state is HealthState.WARMING_UP:
            return rules.warmup_check_interval
        return rules.interval

    def _good(self, seen: Observation, rules: HealthRules) -> None:
        self.failures = 0
        self.successes += 1
        self.latency = seen.latency
        self._warmed_out = False
        # The first 200 ends a warm-up (S2, step 3 of its list); other states need the threshold.
        if self.state is HealthState.WARMING_UP or self.successes >= rules.healthy_threshold:
            self.state = HealthState.READY
            self.warm_since = None

    def _warming(self, seen: Observation, rules: HealthRules, now: float) -> None:
        self.successes = 0
        self.last_error = seen.error
        # One warm-up, one deadline: what has overrun it does not begin anew by going on.
        if self._warmed_out:
            return
        if self.state is not HealthState.WARMING_UP:
            self.state = HealthState.WARMING_UP
            self.warm_since = now
        self.expire(rules, now=now)

    def _bad(self, rules: HealthRules) -> None:
        self.successes = 0
        self.failures += 1
        self._warmed_out = False
        if self.failures >= rules.unhealthy_threshold:
            self.state = HealthState.UNHEALTHY
            self.warm_since = None

    def _excused(self, seen: Observation, rules: HealthRules, now: float, traffic: Traffic) -> bool:
        """A failed probe that traffic contradicts (decisions E4, E5)."""
        success = traffic.last_success
        if success is not None and now - success <= rules.interval:
            return True
        return seen.error is ProbeError.TIMEOUT and traffic.delivered
