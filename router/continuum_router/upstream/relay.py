"""From a backend's answer to the client: headers, body, deadlines, and how it ended.

A plain answer is collected first, so that a backend that breaks in the middle costs a clean error
and not half an answer. A stream is relayed event by event; when it breaks after bytes were relayed,
its last event is an error object and there is no `[DONE]` (decisions E10, user report S3).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import orjson

from continuum_router.backends.exchange import UpstreamReply
from continuum_router.error_bodies import ErrorForm, to_stream_event
from continuum_router.errors import AttemptFailure, Cause, RouterError, Stage
from continuum_router.providers.json_scan import BodyRewrite
from continuum_router.providers.prepare import headers_for_client
from continuum_router.upstream.content_coding import CodingDamaged, inflater_for
from continuum_router.upstream.deadlines import Deadlines
from continuum_router.upstream.first_event import EventError, FirstEvent
from continuum_router.upstream.whole_events import WholeEvents
from continuum_shared.sse import encode_event

COLLECT_LIMIT = 1024 * 1024
"""Bytes of a plain answer that are collected before the client gets its status."""

PLAYED = ("audio/", "video/", "application/octet-stream")
"""Types that are used while they arrive: collecting them would be heard."""

EVENT_STREAM = "text/event-stream"
JSON = "application/json"

KEEPALIVE = b": ping\n"
"""What a silent stream gets (user report S6)."""


class ClientSink(Protocol):
    """Where the answer goes: the client. Its methods raise ClientGone when nobody is there."""

    @property
    def started(self) -> bool:
        """True once status and headers are on their way: the status cannot change any more."""

    @property
    def congested(self) -> bool:
        """True while the client reads slower than it is written to."""

    async def send(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send a whole answer."""

    async def start(
        self, status: int, headers: Sequence[tuple[str, str]], length: int | None
    ) -> None:
        """Send status and headers; `length` is the body's size when it is known."""

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; waits while the client is congested."""

    async def finish(self) -> None:
        """End the body in good order."""

    async def finish_and_close(self) -> None:
        """End the body in good order and the connection with it."""

    def cut(self) -> None:
        """Break the connection: the body cannot be completed and the client must notice."""


class StreamTap(Protocol):
    """Sees the decoded body as it passes. Synchronous, bounded, never raises."""

    def feed(self, data: bytes) -> None:
        """Look at the next piece."""


class FirstFrame(Protocol):
    """Told once, when the first data event of a stream has come."""

    def __call__(self) -> None:
        """Note the moment."""


class ErrorEvent(Exception):
    """A stream opened with an error object; nothing was relayed (decisions E16)."""

    def __init__(self, error: EventError) -> None:
        super().__init__(f"error event, status {error.status}")
        self.error = error


class Relay:
    """Relays one reply to one client.

    `wants_stream` says that the client asked for a stream; `taps` see the decoded body. `keepalive`
    is after how many silent seconds a stream gets a comment (user report S6). Under an alias
    `answers_as` is the client's name for the model, put into the answer (decisions H7);
    `error_form` is how errors look. `run` does the work; after a failure `break_off` tells the
    client.
    """

    def __init__(  # noqa: PLR0913  what one relay is made of
        self,
        reply: UpstreamReply,
        sink: ClientSink,
        *,
        wants_stream: bool,
        deadlines: Deadlines,
        taps: Sequence[StreamTap],
        on_first_frame: FirstFrame,
        keepalive: float | None = None,
        answers_as: str | None = None,
        error_form: ErrorForm = ErrorForm.OPENAI,
    ) -> None:
        self._reply = reply
        self._sink = sink
        self._deadlines = deadlines
        self._taps = taps
        self._on_first_frame = on_first_frame
        self._keepalive = keepalive
        self._error_form = error_form
        self._whole = WholeEvents()
        self._inflater = inflater_for(reply.head.header("content-encoding"))
        self._headers = headers_for_client(reply.headers, decoded=self._inflater is not None)
        kind = (reply.head.header("content-type") or "").partition(";")[0].strip().lower()
        self._is_events = reply.status < 300 and kind == EVENT_STREAM
        self._rewrite = self._rewrite_to(answers_as, kind)
        plays = kind.startswith(PLAYED)
        self._collect = reply.status >= 300 or kind == JSON or not (wants_stream or plays)

    async def run(self) -> None:
        """Relay everything.

        Raises AttemptFailure (stage streaming) when the backend broke, ErrorEvent when a stream
        opened with an error, ClientGone. Whether the client has a status by then, `sink.started`
        tells.
        """
        try:
            if self._is_events:
                await self._run_events()
            else:
                await self._run_plain()
        except CodingDamaged:
            raise AttemptFailure(Stage.STREAMING, Cause.BAD_CODING) from None

    async def break_off(self, err: RouterError, request_id: str) -> None:
        """End an answer that was started and cannot be completed.

        An event stream ends with an error event, whatever else breaks the connection, because a
        clean end would pass half an answer off as a whole one. Anthropic's clients pass over events
        without a name, so theirs is named.
        """
        if not self._is_events or self._sink.congested:
            self._sink.cut()
            return
        data = orjson.dumps(to_stream_event(err, request_id, self._error_form))
        named = self._error_form is ErrorForm.ANTHROPIC
        event = encode_event(data, event="error" if named else None)
        await self._sink.write(event if self._whole.between_events else b"\n\n" + event)
        await self._sink.finish_and_close()

    async def _run_plain(self) -> None:
        """Collect and send whole; what is too long to collect is passed on as it comes."""
        pieces: list[bytes] = []
        size = 0
        async for raw in self._reply.chunks():
            for chunk in self._decoded(raw):
                if self._sink.started:
                    await self._write(chunk)
                    continue
                pieces.append(chunk)
                size += len(chunk)
                if not self._collect or size > COLLECT_LIMIT:
                    await self._start()
                    await self._write(b"".join(pieces))
                    pieces.clear()
            self._deadlines.await_chunk()
        self._body_ended()
        if self._sink.started:
            await self._sink.finish()
        else:
            await self._sink.send(self._reply.status, self._headers, b"".join(pieces))

    async def _run_events(self) -> None:
        """Hold back until the first event is known, then relay whole events."""
        first = FirstEvent()
        async for raw in self._reply.chunks(idle=self._keepalive):
            if not raw:
                await self._keep_alive(first)
                continue
            for chunk in self._decoded(raw):
                if first.seen:
                    await self._write(self._whole.feed(chunk))
                else:
                    await self._before_first_event(first, chunk)
            if first.seen:
                self._deadlines.await_chunk()
            else:
                self._deadlines.still_await_first()
        self._body_ended()
        if not self._sink.started:
            await self._start()
        await self._write(self._whole.feed(first.take()) + self._whole.rest())
        await self._sink.finish()

    async def _before_first_event(self, first: FirstEvent, chunk: bytes) -> None:
        held = not first.open
        first.feed(chunk)
        if first.error is not None:
            raise ErrorEvent(first.error)
        if first.seen:
            self._on_first_frame()
        if not first.open:
            return
        if not self._sink.started:
            await self._start()
        await self._write(self._whole.feed(first.take() if held else chunk))

    async def _keep_alive(self, first: FirstEvent) -> None:
        """A comment, between two events only. The backend's time runs on; a slow reader gets none.

        A comment and one line feed: a blank line after it would be an event to some clients.
        """
        if first.seen and self._whole.between_events and not self._sink.congested:
            await self._sink.write(KEEPALIVE)

    def _decoded(self, raw: bytes) -> Iterable[bytes]:
        pieces = (raw,) if self._inflater is None else self._inflater.feed(raw)
        for piece in pieces:
            for tap in self._taps:
                tap.feed(piece)
            if self._rewrite is not None:
                piece = self._rewrite.feed(piece)
            if piece:
                yield piece

    def _rewrite_to(self, name: str | None, kind: str) -> BodyRewrite | None:
        """What exchanges the model's name; only in text that can be read, and of a known form."""
        coded = self._inflater is None and self._reply.head.header("content-encoding")
        if name is None or (coded and coded.strip().lower() != "identity"):
            return None
        if kind == EVENT_STREAM:
            return BodyRewrite(name, events=True)
        return BodyRewrite(name, events=False) if kind == JSON else None

    def _body_ended(self) -> None:
        if self._inflater is not None:
            self._inflater.close()
        self._deadlines.await_nothing()

    async def _start(self) -> None:
        # A stream may have to end with an error event of ours, so its length is not promised.
        changed = self._inflater is not None or self._rewrite is not None or self._is_events
        length = None if changed else self._reply.head.body_length
        await self._sink.start(self._reply.status, self._headers, length)

    async def _write(self, data: bytes) -> None:
        if data:
            self._deadlines.await_nothing()
            await self._sink.write(data)
