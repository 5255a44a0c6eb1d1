"""A first attempt that the fast path has begun, for the general loop to go on with."""

from dataclasses import dataclass

from continuum_router.backends.exchange import UpstreamReply
from continuum_router.backends.fleet import Lease
from continuum_router.errors import AttemptFailure
from continuum_router.routing.selector import Choice


@dataclass(slots=True, kw_only=True)
class Begun:
    """What there is of it.

    `choice` was made and counted, and so was the request (retry budget); `lease` is that of the
    attempt. `started` is when the request came, on the state's clock, `sent_at` when it went out:
    None, not yet. Otherwise there is the `reply` (its head has come, its latency is noted) or the
    `failure` that came of it. The result of the attempt is not recorded yet.
    """

    choice: Choice
    lease: Lease
    started: float
    sent_at: float | None = None
    reply: UpstreamReply | None = None
    failure: AttemptFailure | None = None
