"""The retry table, row by row (S2 "retry", decisions E10, E13-E15)."""

import random

import pytest

from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.retry import Again, RetryPolicy, parse_retry_after

STILL = RetryPolicy(jitter=False)


def _decide(
    failure: AttemptFailure,
    policy: RetryPolicy = STILL,
    *,
    attempt: int = 1,
    replay_allowed: bool = True,
    fresh_used: bool = False,
    time_left: float = 100.0,
) -> Again | None:
    return policy.decide(
        failure,
        attempt=attempt,
        replay_allowed=replay_allowed,
        fresh_used=fresh_used,
        time_left=time_left,
        rng=random.Random(1),
    )


FRESH = Again(delay=0.0, fresh=True)
LATER = Again(delay=0.1)
RESET = AttemptFailure(Stage.AWAITING_HEAD, Cause.RESET)
LOST = AttemptFailure(Stage.AWAITING_HEAD, Cause.CLOSED, reused=True)


def _status(status: int, retry_after: float | None = None) -> AttemptFailure:
    return AttemptFailure(
        Stage.AWAITING_HEAD, Cause.STATUS, began=True, status=status, retry_after=retry_after
    )


TABLE: dict[str, tuple[AttemptFailure, Again | None, Again | None]] = {
    # name: failure, with replay, without replay
    "refused": (AttemptFailure(Stage.CONNECTING, Cause.REFUSED), LATER, LATER),
    "dns": (AttemptFailure(Stage.CONNECTING, Cause.DNS), LATER, LATER),
    "tls": (AttemptFailure(Stage.CONNECTING, Cause.TLS), LATER, LATER),
    "connect timeout": (AttemptFailure(Stage.CONNECTING, Cause.CONNECT_TIMEOUT), LATER, LATER),
    "pool full": (AttemptFailure(Stage.CONNECTING, Cause.POOL_FULL), LATER, LATER),
    "pool closed": (AttemptFailure(Stage.CONNECTING, Cause.POOL_CLOSED), None, None),
    "reset while sending": (AttemptFailure(Stage.SENDING, Cause.RESET), LATER, None),
    "reset before a byte": (RESET, LATER, None),
    "kept connection lost": (LOST, FRESH, None),
    "kept connection lost while sending": (
        AttemptFailure(Stage.SENDING, Cause.RESET, reused=True),
        FRESH,
        None,
    ),
    "closed inside the head": (
        AttemptFailure(Stage.AWAITING_HEAD, Cause.CLOSED, began=True, reused=True),
        None,
        None,
    ),
    "garbage head": (AttemptFailure(Stage.AWAITING_HEAD, Cause.BAD_HEAD, began=True), None, None),
    "first byte": (AttemptFailure(Stage.AWAITING_HEAD, Cause.FIRST_BYTE_TIMEOUT), None, None),
    "total": (AttemptFailure(Stage.AWAITING_HEAD, Cause.TOTAL_TIMEOUT), None, None),
    "streaming": (AttemptFailure(Stage.STREAMING, Cause.CUT), None, None),
    "429": (_status(429), LATER, None),
    "502": (_status(502), LATER, None),
    "503": (_status(503), LATER, None),
    "504": (_status(504), LATER, None),
    "500": (_status(500), None, None),
    "408": (_status(408), None, None),
    "503 soon": (_status(503, 2.0), Again(delay=2.0), None),
    "503 at the limit": (_status(503, 30.0), Again(delay=30.0), None),
    "503 far": (_status(503, 30.5), None, None),
    "503 now": (_status(503, 0.0), LATER, None),
    "aborted": (AttemptFailure(Stage.AWAITING_HEAD, Cause.ABORTED), None, None),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(name: str) -> None:
    failure, with_replay, without = TABLE[name]
    assert _decide(failure, replay_allowed=True) == with_replay
    assert _decide(failure, replay_allowed=False) == without


def test_max_attempts_are_all_tries() -> None:
    assert [_decide(RESET, attempt=n) is not None for n in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]
    assert _decide(RESET, RetryPolicy(max_attempts=1)) is None


def test_the_fresh_connection_is_not_counted_and_granted_once() -> None:
    assert _decide(LOST, attempt=3) == FRESH
    assert _decide(LOST, attempt=1, fresh_used=True) == LATER
    assert _decide(LOST, attempt=3, fresh_used=True) is None


def test_delays_double_and_are_capped() -> None:
    policy = RetryPolicy(jitter=False, max_attempts=2000, max_delay=0.5)
    delays = [_decide(RESET, policy, attempt=n) for n in (1, 2, 3, 4, 1999)]
    assert [again.delay for again in delays if again] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_jitter_only_shortens_by_half_at_most() -> None:
    policy = RetryPolicy(jitter=True)
    rng = random.Random(7)
    found = [
        policy.decide(RESET, attempt=1, replay_allowed=True, fresh_used=False, time_left=9, rng=rng)
        for _ in range(200)
    ]
    delays = [again.delay for again in found if again]
    assert len(delays) == 200
    assert 0.05 <= min(delays) < 0.06
    assert 0.09 < max(delays) <= 0.1


def test_a_delay_that_reaches_the_deadline_is_pointless() -> None:
    assert _decide(RESET, time_left=0.1) is None
    assert _decide(RESET, time_left=0.11) == LATER
    assert _decide(LOST, time_left=0.0) is None


NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sun, 06 Nov 1994 08:49:47", 10.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0.0),
        ("٣", None),
        ("9" * 400, 9999999999.0),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds


LATE = AttemptFailure(Stage.STREAMING, Cause.FIRST_BYTE_TIMEOUT)


def test_a_first_byte_that_passed_is_tried_again_when_asked_for() -> None:
    assert _decide(LATE) is None
    policy = RetryPolicy(jitter=False, on_timeout=True)
    assert _decide(LATE, policy) == LATER
    assert _decide(LATE, policy, replay_allowed=False) is None
    total = AttemptFailure(Stage.AWAITING_HEAD, Cause.TOTAL_TIMEOUT)
    assert _decide(total, policy) is None


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("name", TABLE)
def test_what_may_be_repeated_may_go_to_another_model(name: str, replay: bool) -> None:
    """The same table, but a status ends on its model and not on the chain."""
    failure, with_replay, without = TABLE[name]
    again = with_replay if replay else without
    expected = replay if failure.cause is Cause.STATUS else again is not None
    policy = RetryPolicy()
    if again != FRESH:
        found = policy.may_fall_back(failure, replay_allowed=replay, time_left=9.0)
        assert found is expected
    assert not policy.may_fall_back(failure, replay_allowed=replay, time_left=0.0)
