"""Calling backends in tests: a request in wire form, a pool that closes, a recording sink."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from continuum_router.backends.exchange import UpstreamRequest
from continuum_router.errors import AttemptFailure
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.pool import UpstreamPool
from continuum_router.upstream.response_head import HeadFacts


def request(body: bytes = b"{}", *, method: str = "POST", path: str = "/v1/x") -> UpstreamRequest:
    """A request with its framing headers."""
    head = f"{method} {path} HTTP/1.1\r\nHost: b\r\nContent-Length: {len(body)}\r\n\r\n"
    return UpstreamRequest(method=method, head=head.encode(), body=body)


@contextlib.asynccontextmanager
async def pool(**options: object) -> AsyncIterator[UpstreamPool]:
    """A pool on the real clock, closed at the end; every connection must be accounted for."""
    made = UpstreamPool(**({"clock": time.monotonic} | options))  # type: ignore[arg-type]
    try:
        yield made
        assert sum(count for (_, state), count in made.connections() if state != "idle") == 0
    finally:
        await made.close()


def counts(pool: UpstreamPool) -> dict[str, int]:
    """Connections by state, all backends together."""
    found = {"active": 0, "idle": 0, "waiting": 0}
    for (_, state), count in pool.connections():
        found[state] += int(count)
    return found


async def until(condition: Callable[[], bool], within: float = 2.0) -> None:
    """Let the loop work until something is true; fails after `within` seconds."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.002)


class RecordingSink:
    """Writes down what a connection tells it; `finished` is set by the last word."""

    def __init__(self, *, wire: bool = False) -> None:
        self.wire = wire
        self.log: list[object] = []
        self.body = b""
        self.facts: HeadFacts | None = None
        self.failure: AttemptFailure | None = None
        self.finished = asyncio.Event()

    def on_sent(self) -> None:
        self.log.append("sent")

    def on_whole(self, facts: HeadFacts, body: bytes) -> None:
        self.on_head(facts, len(body))
        if body:
            self.on_body(body)
        self.on_end()

    def on_head(self, facts: HeadFacts, length: int | None) -> None:
        self.facts = facts
        self.log.append(("head", facts.status, length))

    def on_body(self, data: bytes) -> None:
        assert data
        self.body += data
        if self.log[-1] != "body":
            self.log.append("body")

    def on_chunks(self, data: bytes, size: int) -> None:
        self.log.append(("chunks", data, size))

    def on_end(self) -> None:
        self.log.append("end")
        self.finished.set()

    def on_failure(self, failure: AttemptFailure) -> None:
        self.failure = failure
        self.log.append(("failed", failure.stage.value, failure.cause.value))
        self.finished.set()


class RecordingOwner:
    """Keeps nothing, writes down what it is given."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def released(self, connection: Connection, keep_for: float | None) -> None:
        self.log.append("released" if keep_for is None else f"released {keep_for:g}")

    def lost(self, connection: Connection) -> None:
        self.log.append("lost")
