"""Asks an engine to send batches again.

The replay endpoint is a ROUTER that always binds. Request: ``["", start (8 bytes)]`` from a DEALER
that writes the empty frame itself (a REQ socket would see only the first answer). One answer a
batch, then an end marker whose sequence is eight bytes of 0xff::

    vLLM 0.32, SGLang 0.5.23   ["", topic, sequence, payload]    end ["", "", ff x 8, ""]
    vLLM 0.23                  ["", sequence, payload]           end ["", ff x 8, ""]

Frames are therefore read from the back. A request from beyond the newest batch is answered by the
end marker alone (wire/README.md; decisions C17). Numbers ascend; what does not fit costs itself and
earns no patience, so that a wrong endpoint cannot hold up the live batches for ever.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

import zmq

from continuum_kv_listener.engine_events import DropReason, RawBatch
from continuum_kv_listener.sequence import MAX_SEQUENCE
from continuum_kv_listener.sources.address_family import AddressFamily
from continuum_kv_listener.sources.readable import Socket, wait_readable

END = b"\xff" * 8
CHUNK = 64
FIRST_ANSWER_SECONDS = 5.0
"""An engine serves replays between publishes; a busy one takes its time."""
NEXT_ANSWER_SECONDS = 5.0
RECEIVE_HIGH_WATER = 100_000
"""Ten times an engine's buffer: its ROUTER drops what a full pipe does not take."""
_LAYOUTS = (3, 4)


class ReplayFault(StrEnum):
    """Why a replay did not come to its end; the value is a metric label."""

    NO_ANSWER = "no_answer"
    CUT_SHORT = "cut_short"
    BAD_ENDPOINT = "bad_endpoint"


class _Queue(Enum):
    """What is left to read."""

    EMPTY = auto()
    MORE = auto()
    ENDED = auto()


class ReplayError(Exception):
    """A replay that did not reach the end marker; what came before it is valid."""

    def __init__(self, fault: ReplayFault) -> None:
        super().__init__(f"replay failed: {fault.value}")
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Where to ask, and how long to wait, in seconds, for the first answer and between answers."""

    source: str
    endpoint: str
    rank: int = 0
    max_message_bytes: int = 128 * 1024 * 1024
    first_answer: float = FIRST_ANSWER_SECONDS
    next_answer: float = NEXT_ANSWER_SECONDS


class ReplayClient:
    """Asks one endpoint. Each request has a socket of its own, so no answer can be a stale one."""

    def __init__(
        self,
        settings: ReplaySettings,
        *,
        context: "zmq.Context[Socket]",
        on_drop: Callable[[DropReason], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._context = context
        self._on_drop = on_drop
        self._clock = clock
        self._family = AddressFamily(settings.endpoint)

    @asynccontextmanager
    async def ask(self, start: int) -> AsyncIterator[AsyncIterator[list[RawBatch]]]:
        """``async with client.ask(n) as answers``: chunks of batches from number ``n`` on.

        The iterator ends at the end marker and raises :class:`ReplayError` when the endpoint does
        not answer or falls silent.
        """
        socket: Socket = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER)
            socket.setsockopt(zmq.MAXMSGSIZE, self._settings.max_message_bytes)
            socket.setsockopt(zmq.IPV6, int(self._family.ipv6))
            try:
                socket.connect(self._settings.endpoint)
                socket.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
            except zmq.ZMQError:
                raise ReplayError(ReplayFault.BAD_ENDPOINT) from None
            answers = self._answers(socket)
            try:
                yield answers
            finally:
                await answers.aclose()
        finally:
            socket.close(0)

    async def _answers(self, socket: Socket) -> AsyncGenerator[list[RawBatch], None]:
        deadline = self._clock() + self._settings.first_answer
        fault = ReplayFault.NO_ANSWER
        newest = -1
        while True:
            chunk, state = self._take(socket, newest)
            if chunk:
                newest = chunk[-1].seq
                yield chunk
            if state is _Queue.ENDED:
                return
            now = self._clock()
            if chunk:
                deadline = now + self._settings.next_answer
                fault = ReplayFault.CUT_SHORT
            elif now >= deadline:
                if newest < 0:
                    self._family.failed()
                raise ReplayError(fault)
            elif state is _Queue.EMPTY:
                await wait_readable((socket,), deadline - now)
            else:
                await asyncio.sleep(0)

    def _take(self, socket: Socket, newest: int) -> tuple[list[RawBatch], "_Queue"]:
        """Some of what can be read now: batches above ``newest``, and what is left."""
        chunk: list[RawBatch] = []
        for _ in range(CHUNK):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return chunk, _Queue.EMPTY
            if len(frames) not in _LAYOUTS or len(frames[-2]) != len(END):
                self._on_drop(DropReason.BAD_FRAMES)
                continue
            if frames[-2] == END:
                return chunk, _Queue.ENDED
            seq = int.from_bytes(frames[-2], "big")
            if seq >= MAX_SEQUENCE:
                self._on_drop(DropReason.BAD_FRAMES)
            elif seq <= newest:
                self._on_drop(DropReason.DUPLICATE)
            else:
                newest = seq
                chunk.append(
                    RawBatch(
                        source=self._settings.source,
                        rank=self._settings.rank,
                        seq=seq,
                        payload=frames[-1],
                    )
                )
        return chunk, _Queue.MORE
