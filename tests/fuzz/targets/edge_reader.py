"""A client's bytes against two routers, one on the fast path and one on the general way.

Both run in this process on real sockets, each with a backend that records. Answers, the end of the
connection and what the backend saw must be the same, and whatever reached the backend is clean.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from fuzz.target import Run, Target, splits
from fuzz.targets.wire_guard import WIRE_SEEDS, WIRE_TOKENS
from support.edge import CHAT, Edge, running
from support.framing_play import framing_config
from support.framing_row import post
from support.recording_backend import ANSWER, CleanRequest, Recorder, recording
from support.scripted_backend import LAST_CHUNK, chunk, chunked_head, reply, sse

QUIET_TURNS = 15
MAX_TURNS = 5000

_ID = re.compile(rb"[0-9a-f]{32}")
_DATE = re.compile(rb"\r\nDate: [^\r\n]*", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")
_REFUSED = frozenset({400, 414, 431, 501, 505})
_NEVER = frozenset({500, 502, 503, 504})


_TYPES = ("Content-Type: text/event-stream", "Server: x", "X-A: b")
_EVENTS = chunk(sse('{"model":"m","choices":[]}')) + chunk(sse("[DONE]")) + LAST_CHUNK
_BY_BODY = {
    b'"stream":true': chunked_head(headers=_TYPES) + _EVENTS,
    b"teapot": reply(b'{"error":{}}', status="418 I'm a teapot"),
    b"nothing": b"HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n",
    b"pieces": chunked_head(headers=("Content-Type: application/json",))
    + chunk(b"{}")
    + LAST_CHUNK,
    b"last": reply(b"{}", headers=("Content-Type: application/json", "Connection: close")),
}


def _answer(request: CleanRequest) -> bytes:
    return next((wire for word, wire in _BY_BODY.items() if word in request.body), ANSWER)


def _ordinary(path: str, body: bytes, *headers: str) -> bytes:
    return post(*headers, target=path, body=body)


_CHAT_BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}'
_CLIENT = (
    "User-Agent: OpenAI/Python 1.0",
    "Accept: application/json",
    "Accept-Encoding: gzip, deflate",
    "Connection: keep-alive",
    "Authorization: Bearer sk-x",
    "x-request-id: r-1",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
_ORDINARY = (
    *(_ordinary(CHAT, _CHAT_BODY % word, *_CLIENT) for word in (b"teapot", b"nothing", b"pieces")),
    _ordinary(CHAT, _CHAT_BODY % b"last") + _ordinary(CHAT, _CHAT_BODY % b"next"),
    _ordinary(
        CHAT, b'{"model":"m","stream":true,"messages":[{"role":"user","content":"u"}]}', *_CLIENT
    ),
    _ordinary("/v1/completions", b'{"model":"m","prompt":"p","stream":true}'),
    _ordinary("/v1/completions", b'{"model":"other","prompt":"p"}'),
    _ordinary("/v1/embeddings", b'{"model":"m","input":"i"}', *_CLIENT[:3]),
    _ordinary("/v1/responses", b'{"model":"m","input":"i","previous_response_id":"r"}'),
    _ordinary(CHAT, b"{}") + _ordinary(CHAT, b"[") + _ordinary(CHAT, b""),
    _ordinary(
        CHAT, _CHAT_BODY % b"a", "X-Forwarded-For: 1.2.3.4", "Cookie: a=b", "X-Long: " + "y" * 99
    ),
)


class _Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.got = bytearray()
        self.closed = False

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


@dataclass(slots=True)
class Outcome:
    """What came of some bytes: the answers without ids and dates, the end, the backend's record."""

    answers: bytes
    closed: bool
    seen: list[tuple[str, str, tuple[tuple[str, str], ...], bytes]]

    @property
    def statuses(self) -> list[int]:
        return [int(found) for found in _STATUS.findall(self.answers)]

    def agrees(self, whole: "Outcome") -> bool:
        """Whether this may come of the same bytes in pieces.

        Of refusals only that they are refusals counts. An error that is answered before the body
        has come closes the connection, so what stood behind it may be missing; and damage in a body
        that nobody reads is refused by itself or not, depending on whether the answer was out.
        """
        short, long = sorted((self, whole), key=lambda outcome: len(outcome.statuses))
        (mine, seen), (other, other_seen) = short._gist(), long._gist()
        if (mine, seen, short.closed) == (other, other_seen, long.closed):
            return True
        if mine != other[: len(mine)] or seen != other_seen[: len(seen)]:
            return False
        if mine and mine[-1] >= 400:
            return short.closed or mine == other
        return short.closed and other[len(mine) :] == [400] and seen == other_seen

    def _gist(self) -> tuple[list[int], list[tuple[str, str, bytes]]]:
        shown = [400 if status in _REFUSED else status for status in self.statuses]
        return shown, [(method, target, body) for method, target, _, body in self.seen]


@dataclass(slots=True)
class Side:
    """One router with its backend."""

    edge: Edge
    backend: Recorder
    faults: list[str] = field(default_factory=list)

    async def play(self, pieces: list[bytes]) -> Outcome:
        loop = asyncio.get_running_loop()
        self.backend.forget()
        self.faults.clear()
        transport, client = await loop.create_connection(_Client, "127.0.0.1", self.edge.port)
        for piece in pieces:
            if not transport.is_closing():
                transport.write(piece)
                for _ in range(3):
                    await asyncio.sleep(0)
        await self._quiet(client)
        requests = self.backend.requests
        seen = [(r.method, r.target, _own_headers(r), r.body) for r in requests]
        outcome = Outcome(_shown(client.got), client.closed, seen)
        transport.abort()
        while self.edge.router.state.active.now:
            await asyncio.sleep(0)
        assert self.backend.unclean == []
        assert self.faults == []
        assert _NEVER.isdisjoint(outcome.statuses), outcome.statuses
        return outcome

    async def _quiet(self, client: _Client) -> None:
        """Wait until nothing has moved for some turns of the loop."""
        quiet = turns = 0
        before: object = None
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            active = self.edge.router.state.active.now
            now = (len(client.got), client.closed, self.backend.received, active)
            quiet = quiet + 1 if now == before else 0
            before = now
            turns += 1
            assert turns < MAX_TURNS, "it never rests"


def _own_headers(request: CleanRequest) -> tuple[tuple[str, str], ...]:
    """Without Host: the two backends have ports of their own."""
    return tuple(pair for pair in request.headers if pair[0] != "host")


def _shown(raw: bytearray) -> bytes:
    return _DATE.sub(b"", _ID.sub(b"ID", bytes(raw)))


class Watch(logging.Handler):
    """Notes what must never be logged: defects."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        self._faults.append(record.getMessage())


@contextlib.asynccontextmanager
async def side(*, fast: bool) -> AsyncIterator[Side]:
    async with recording() as backend:
        backend.answers = _answer
        async with running(framing_config(backend.url, fast=fast)) as edge:
            yield Side(edge, backend)


@contextlib.contextmanager
def opened() -> Iterator[Run]:
    stack = contextlib.AsyncExitStack()
    sides: list[Side] = []
    faults: list[str] = []
    watch, root = Watch(faults), logging.getLogger("continuum_router")
    level, propagate = root.level, root.propagate
    root.addHandler(watch)
    root.setLevel(logging.ERROR)
    root.propagate = False

    async def open_both() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(str(context["message"])))
        for fast in (True, False):
            sides.append(await stack.enter_async_context(side(fast=fast)))
            sides[-1].faults = faults

    async def once(data: bytes) -> None:
        fast, general = sides
        whole, _, places = splits(data)
        expected = await general.play(whole)
        taken = await fast.play(whole)
        assert taken == expected, (taken, expected)
        split = await general.play(places)
        assert split.agrees(expected), (split, expected)
        taken = await fast.play(places)
        assert taken == split, (taken, split)

    try:
        with asyncio.Runner() as runner:
            runner.run(open_both())
            try:
                yield lambda data: runner.run(once(data))
            finally:
                runner.run(stack.aclose())
    finally:
        root.removeHandler(watch)
        root.setLevel(level)
        root.propagate = propagate


TARGET = Target(
    name="edge_reader",
    opened=opened,
    seeds=(*WIRE_SEEDS, *_ORDINARY),
    tokens=(*WIRE_TOKENS, *_BY_BODY, *(f"{line}\r\n".encode() for line in _CLIENT)),
    watched=("continuum_router.api", "continuum_router.providers.prepare"),
    smoke=500,
    max_size=2048,
)
