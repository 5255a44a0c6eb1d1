"""What the last failure becomes for the client."""

import pytest

from continuum_router.errors import (
    AttemptFailure,
    Cause,
    ClientGone,
    Draining,
    Overloaded,
    RouterError,
    Stage,
    UpstreamFailed,
    UpstreamTimeout,
)
from continuum_router.upstream.outcome import Ended, Outcome, error_for

ANSWERS: dict[Cause, type[RouterError]] = {
    Cause.CONNECT_TIMEOUT: UpstreamTimeout,
    Cause.FIRST_BYTE_TIMEOUT: UpstreamTimeout,
    Cause.CHUNK_INTERVAL_TIMEOUT: UpstreamTimeout,
    Cause.TOTAL_TIMEOUT: UpstreamTimeout,
    Cause.POOL_FULL: Overloaded,
    Cause.POOL_CLOSED: Draining,
    Cause.ABORTED: ClientGone,
}


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_an_answer(cause: Cause) -> None:
    err = error_for(AttemptFailure(Stage.AWAITING_HEAD, cause, detail="10.0.0.5 secret"))
    assert type(err) is ANSWERS.get(cause, UpstreamFailed)
    assert "secret" not in err.message


def test_a_busy_fleet_says_when_to_come_back() -> None:
    err = error_for(AttemptFailure(Stage.CONNECTING, Cause.POOL_FULL))
    assert err.headers == {"Retry-After": "1"}


def test_an_outcome_begins_empty() -> None:
    assert (Outcome().backend, Outcome().attempts, Outcome().ended) == (None, 0, None)
    assert Ended.CLIENT_GONE.value == "client_cancelled"
