"""One call to one backend, as values: what is sent, what comes back.

`UpstreamRequest` is complete before it is handed over: `providers.prepare` wrote the request line
and all headers, the pool only carries bytes. `UpstreamReply` is the shape of an answer whose head
has arrived; `upstream.reply` has the real one, tests may bring their own.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self


class BodyTail(Protocol):
    """The rest of a request body that was not read whole before the request was sent.

    `started` is True once a piece was taken: from then on the request cannot be sent again.
    """

    @property
    def started(self) -> bool:
        """See the class."""

    async def next(self) -> bytes:
        """The next bytes, b"" at the end. Raises what the client's side raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """A request in wire form.

    `head` is the request line and all header lines, ending in CRLF CRLF; its framing headers
    (Content-Length) agree with `body`. Neither is shown by repr: they hold prompts and keys.
    `method` is needed to read the answer: HEAD has no body. `tail` gives what follows `body`,
    framed as the head says; it is read piece by piece while it is sent.
    """

    method: str
    head: bytes = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    tail: BodyTail | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """Status and headers of a final answer (never a 1xx).

    `headers` are the end-to-end fields in wire order, names as sent, values without outer white
    space, decoded as ISO-8859-1 so that every byte survives. Framing and hop-by-hop fields are not
    among them: they were for this connection. An ordinary head that comes again gives the same
    tuple object. `body_length` is the announced Content-Length when that decides the end of the
    body, 0 when there can be no body, None when the length is not known.
    """

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body_length: int | None

    def header(self, name: str) -> str | None:
        """Return the first value of a header, any case, or None."""
        wanted = name.lower()
        for key, value in self.headers:
            if key.lower() == wanted:
                return value
        return None


class BodyState(StrEnum):
    """Where the body of a reply stands."""

    OPEN = "open"
    COMPLETE = "complete"
    FAILED = "failed"
    ABORTED = "aborted"


class UpstreamReply(Protocol):
    """An answer whose head has arrived.

    Use it as a context manager: leaving aborts what is not finished.
    """

    @property
    def head(self) -> ReplyHead:
        """Status, reason, headers."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The end-to-end header fields, see ReplyHead."""

    @property
    def state(self) -> BodyState:
        """Where the body stands as the reader sees it."""

    @property
    def reused(self) -> bool:
        """True when the call went out on a kept connection."""

    def chunks(self, *, idle: float | None = None) -> AsyncIterator[bytes]:
        """Iterate over the body's payload, de-chunked, as it arrives.

        An empty piece tells, if `idle` is given, that nothing came for so many seconds.
        Pieces that wait are joined. Raises AttemptFailure (stage streaming) when the body breaks.
        Cancelling the wait aborts the connection.
        """

    def ready(self) -> bytes | None:
        """Take what has arrived without waiting.

        b"" means nothing at the moment, None that the body is complete. Raises AttemptFailure as
        `chunks` does.
        """

    async def read(self, limit: int) -> bytes:
        """Read the whole body. Over `limit` bytes: the call is aborted and ValueError raised."""

    def abort(self) -> None:
        """End the call at once; closes the connection unless the body is complete. Idempotent."""

    def __enter__(self) -> Self:
        """Return self."""

    def __exit__(self, *exc: object) -> None:
        """Call abort(): nothing happens when the body is complete."""
