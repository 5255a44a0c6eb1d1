"""One call through the dispatcher, and what became of it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from continuum_router.backends.fleet import AttemptResult
from continuum_router.backends.holding import Holding
from continuum_router.backends.pieces import Pieces
from continuum_router.backends.pool import Backend
from continuum_router.errors import (
    AttemptFailure,
    Cause,
    ClientGone,
    Draining,
    Fault,
    Overloaded,
    RouterError,
    Stage,
    UpstreamFailed,
    UpstreamTimeout,
)
from continuum_router.providers.prepare import Inbound
from continuum_router.request import ChatRequest
from continuum_router.routing.selector import Choice
from continuum_router.upstream.relay import ClientSink, StreamTap
from continuum_router.upstream.retry import DEADLINES
from continuum_router.upstream.usage import Usage
from continuum_shared.logs import fields

log = logging.getLogger("continuum_router.attempt")

TIMEOUT_CAUSES = frozenset(
    {
        Cause.CONNECT_TIMEOUT,
        Cause.FIRST_BYTE_TIMEOUT,
        Cause.CHUNK_INTERVAL_TIMEOUT,
        Cause.TOTAL_TIMEOUT,
    }
)


class Ended(StrEnum):
    """How a request ended; field `outcome` of its log line."""

    COMPLETE = "complete"
    REJECTED = "rejected"
    FAILED = "failed"
    CLIENT_GONE = "client_cancelled"
    UPSTREAM_CUT = "upstream_cut"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a request. Filled in as it proceeds, so a cancelled one tells how far it got.

    `backend` is the last one tried, `attempts` the counted tries (E13). `ttft` is in seconds, from
    the last dispatch to the first data event of a stream, or to the headers of a plain answer.
    `model_used` is the model of a fallback chain that was tried last, None without a fallback.
    """

    backend: str | None = None
    choice: Choice | None = None
    attempts: int = 0
    model_used: str | None = None
    ttft: float | None = None
    usage: Usage | None = None
    ended: Ended | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One client request on its way: what to send, where the answer goes, what became of it.

    `only` restricts it to the one backend that can serve it; `taps` see the answer's body. `client`
    is who asks: the id of its key, else its address. `pieces` are those of a body too long to be
    cut on the event loop.
    """

    request: ChatRequest
    inbound: Inbound
    holdings: Mapping[str, Holding] | None
    sink: ClientSink
    request_id: str
    outcome: Outcome
    only: Backend | None = None
    taps: tuple[StreamTap, ...] = ()
    client: str | None = None
    pieces: Pieces | None = None


def ended_by(failure: AttemptFailure, *, started: bool) -> Ended:
    """How a request ends that this failure ended; `started`: the client had its status."""
    if failure.cause in DEADLINES:
        return Ended.DEADLINE
    return Ended.UPSTREAM_CUT if started else Ended.FAILED


def error_for(failure: AttemptFailure) -> RouterError:
    """What a client is told about the last failure. The cause stays in the log."""
    if failure.cause in TIMEOUT_CAUSES:
        return UpstreamTimeout()
    if failure.cause is Cause.POOL_FULL:
        return Overloaded(retry_after=1)
    if failure.cause is Cause.POOL_CLOSED:
        return Draining()
    if failure.cause is Cause.ABORTED:
        return ClientGone()
    return UpstreamFailed()


def result_of_failure(failure: AttemptFailure) -> AttemptResult:
    """How a failed call counts: what tells nothing about the backend is not held against it."""
    return AttemptResult.ROUTER_ERROR if failure.fault is Fault.ROUTER else AttemptResult.FAILED


def status_failure(status: int, retry_after: float | None) -> AttemptFailure:
    """An answer that was not wanted, as a failure."""
    return AttemptFailure(
        Stage.AWAITING_HEAD, Cause.STATUS, began=True, status=status, retry_after=retry_after
    )


def tell_failure(failure: AttemptFailure, request_id: str, outcome: Outcome) -> None:
    """The debug line of a failed call."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    log.debug(
        "Attempt failed",
        extra=fields(
            request_id=request_id,
            backend=outcome.backend,
            attempt=outcome.attempts,
            stage=failure.stage,
            cause=failure.cause,
            detail=failure.detail,
        ),
    )
