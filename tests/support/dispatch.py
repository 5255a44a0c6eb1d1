"""A dispatcher without sockets: scripted replies on one side, a recording client on the other."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

from continuum_router.backends.exchange import BodyState, ReplyHead, UpstreamRequest
from continuum_router.backends.fleet import Fleet
from continuum_router.backends.holding import Holding
from continuum_router.backends.kinds import BackendType
from continuum_router.backends.pool import Backend, Pool
from continuum_router.errors import AttemptFailure, ClientGone
from continuum_router.providers.prepare import Preparer, sort_headers
from continuum_router.request import ChatRequest, Endpoint, RequestRules, parse_generate
from continuum_router.routing.selector import RoutingMetrics, Selector
from continuum_router.routing.strategies import RoundRobin
from continuum_router.upstream.attempt import Dispatcher
from continuum_router.upstream.begun import Begun
from continuum_router.upstream.deadlines import Limits
from continuum_router.upstream.dispatch_state import DispatchMetrics, DispatchState
from continuum_router.upstream.outcome import Call, Outcome
from continuum_router.upstream.retry import RetryPolicy
from continuum_shared.config.kinds import BackendUrl
from continuum_shared.metrics import Metrics

SSE_HEADERS = (("Content-Type", "text/event-stream"),)
JSON_HEADERS = (("Content-Type", "application/json"),)

Step = bytes | float | AttemptFailure | asyncio.Event
"""A piece of the body, seconds of silence, a failure, or a wait until the event is set (never, for
a hang)."""


class FakeReply:
    """An `UpstreamReply` that yields its steps."""

    def __init__(
        self,
        status: int = 200,
        *steps: Step,
        headers: Sequence[tuple[str, str]] = JSON_HEADERS,
        length: int | None = None,
        reused: bool = False,
    ) -> None:
        self.head = ReplyHead(status=status, reason="", headers=tuple(headers), body_length=length)
        self.steps = list(steps)
        self.state = BodyState.OPEN
        self.reused = reused
        self.idle: float | None = None
        self.waiting = asyncio.Event()

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return self.head.headers

    def chunks(self, *, idle: float | None = None) -> Self:
        self.idle = idle
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await asyncio.sleep(0)
        while self.steps:
            step = self.steps[0]
            if isinstance(step, float) and self.idle is not None and step > self.idle:
                self.steps[0] = step - self.idle
                await asyncio.sleep(self.idle)
                return b""
            self.steps.pop(0)
            if isinstance(step, bytes):
                return step
            if isinstance(step, float):
                await asyncio.sleep(step)
                continue
            if isinstance(step, AttemptFailure):
                self.state = BodyState.FAILED
                raise step
            self.waiting.set()
            await step.wait()
        self.state = BodyState.COMPLETE
        raise StopAsyncIteration

    def ready(self) -> bytes | None:
        if self.steps and isinstance(self.steps[0], bytes):
            found = self.steps.pop(0)
            assert isinstance(found, bytes)
            return found
        if not self.steps:
            self.state = BodyState.COMPLETE
            return None
        return b""

    async def read(self, limit: int) -> bytes:
        return b"".join([piece async for piece in self])[:limit]

    def abort(self) -> None:
        if self.state is BodyState.OPEN:
            self.state = BodyState.ABORTED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()


Answer = FakeReply | AttemptFailure | asyncio.Event


@dataclass(slots=True)
class FakeTransport:
    """Gives the answers in turn; an event as an answer is a wait for the head."""

    answers: list[Answer]
    sent: list[tuple[str, bool, UpstreamRequest]] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(
        self,
        backend: Backend,
        request: UpstreamRequest,
        *,
        connect_timeout: float,
        fresh: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> FakeReply:
        assert connect_timeout == 1.0
        self.sent.append((backend.name, fresh, request))
        await asyncio.sleep(0)
        if on_sent is not None:
            on_sent()
        answer = self.answers.pop(0)
        if isinstance(answer, asyncio.Event):
            self.waiting.set()
            await answer.wait()
            raise AssertionError("nobody sets this event")
        if isinstance(answer, AttemptFailure):
            raise answer
        return answer

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.sent]


@dataclass(slots=True)
class RecordingSink:
    """A client that keeps what it is sent. `gone_after`: it leaves after so many pieces."""

    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    length: int | None = None
    pieces: list[bytes] = field(default_factory=list)
    end: str = ""
    congested: bool = False
    gone_after: int | None = None
    blocked: asyncio.Event | None = None
    writing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def started(self) -> bool:
        return self.status is not None

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def send(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        await self.start(status, headers, len(body))
        await self.write(body)
        await self.finish()

    async def start(
        self, status: int, headers: Sequence[tuple[str, str]], length: int | None
    ) -> None:
        assert self.status is None
        self.status, self.headers, self.length = status, list(headers), length
        await asyncio.sleep(0)

    async def write(self, data: bytes) -> None:
        assert data
        if self.gone_after is not None and len(self.pieces) >= self.gone_after:
            raise ClientGone
        self.pieces.append(data)
        if self.blocked is not None:
            self.writing.set()
            await self.blocked.wait()
        await asyncio.sleep(0)

    async def finish(self) -> None:
        assert not self.end
        self.end = "finished"

    async def finish_and_close(self) -> None:
        await self.finish()
        self.end = "closed"

    def cut(self) -> None:
        self.end = "cut"


@dataclass(slots=True)
class Bench:
    """A dispatcher over fakes, and the books to look into."""

    transport: FakeTransport
    dispatcher: Dispatcher
    metrics: Metrics
    served: list[tuple[str, bytes]]
    sink: RecordingSink = field(default_factory=RecordingSink)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def fleet(self) -> Fleet:
        return self.dispatcher.state.fleet

    @property
    def results(self) -> dict[str, float]:
        """Attempts by result, without those at 0."""
        lines = self.metrics.exposition().decode().splitlines()
        marker = 'continuum_upstream_attempts_total{result="'
        found = (line.removeprefix(marker) for line in lines if line.startswith(marker))
        counts = {row.partition('"')[0]: float(row.rpartition(" ")[2]) for row in found}
        return {name: count for name, count in counts.items() if count}

    async def run(
        self,
        *,
        stream: bool = False,
        holdings: Mapping[str, Holding] | None = None,
        model: str = "m",
        begun: Begun | None = None,
    ) -> None:
        await self.dispatcher.run(
            Call(
                request=chat(stream=stream, model=model),
                inbound=sort_headers([]),
                holdings=holdings,
                sink=self.sink,
                request_id="r1",
                outcome=self.outcome,
            ),
            begun,
        )

    def again(self) -> Self:
        """Ready for another request, with the same books."""
        self.sink = RecordingSink()
        self.outcome = Outcome()
        return self

    def change(self, **fields: object) -> None:
        self.dispatcher = replace(self.dispatcher, **fields)  # type: ignore[arg-type]


def chat(*, stream: bool = False, model: str = "m") -> ChatRequest:
    flag = b"true" if stream else b"false"
    raw = b'{"model":"%s","messages":[{"role":"user","content":"hi"}],"stream":%s}'
    return parse_generate(Endpoint.CHAT, raw % (model.encode(), flag), RequestRules())


def backend(name: str, **more: object) -> Backend:
    values: dict[str, object] = {
        "name": name,
        "type": BackendType.GENERIC,
        "url": BackendUrl.parse("http://h:1"),
        "models": frozenset({"m"}),
    }
    return Backend(**(values | more))  # type: ignore[arg-type]


def bench(*answers: Answer, backends: Sequence[Backend] | None = None) -> Bench:
    """A dispatcher with two backends, b1 and b2, that gets these answers. Needs a running loop."""
    members = [backend("b1"), backend("b2")] if backends is None else list(backends)
    metrics = Metrics()
    fleet = Fleet(metrics, [member.name for member in members])
    served: list[tuple[str, bytes]] = []
    transport = FakeTransport(list(answers))
    loop = asyncio.get_running_loop()
    limits = Limits(total=5.0)
    dispatcher = Dispatcher(
        pool=Pool(members),
        selector=Selector(strategy=RoundRobin(), scorer=None, success_rate=fleet.success_rate),
        preparer=Preparer(members),
        retry=RetryPolicy(initial_delay=0.001),
        connect_timeout=1.0,
        standard=limits,
        streaming=replace(limits, first_byte=4.0, chunk_interval=3.0),
        state=DispatchState(
            fleet=fleet,
            transport=transport,
            routing_metrics=RoutingMetrics(metrics),
            metrics=DispatchMetrics(metrics),
            clock=loop.time,
            wall=lambda: 0.0,
            rng=random.Random(3),
            served=lambda name, prefix, _now: served.append((name, bytes(prefix))),
        ),
    )
    return Bench(transport, dispatcher, metrics, served)


@contextmanager
def nothing_left(used: Bench, *replies: FakeReply) -> Iterator[None]:
    """After the block no lease is held and no reply is open, whatever happened inside."""
    try:
        yield
    finally:
        assert set(used.fleet.loads.values()) == {0}
        assert set(used.fleet.by_prefix.values()) == {0}
        assert [reply.state for reply in replies if reply.state is BodyState.OPEN] == []
