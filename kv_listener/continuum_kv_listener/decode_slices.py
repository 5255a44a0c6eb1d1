"""Decodes a large batch in slices, so that its reader can give other tasks a turn in between.

It is :func:`~continuum_kv_listener.decode.decode_batch` with pauses: the same events and drops, and
nothing of a batch is handed out before all of it was read, so that a broken one still costs itself
as a whole. One event is the smallest slice: msgpack reads an object without a stop.
"""

import io
from collections.abc import Generator

import msgpack

from continuum_kv_listener.decode import (
    BATCH_RANK_NAMES,
    DecodedBatch,
    decode_batch,
    decode_events,
    named_rank,
)
from continuum_kv_listener.engine_events import DropReason, EngineEvent

SMALL_BYTES = 64 * 1024
"""A batch up to this is read in one go: it takes a few milliseconds at most."""
SLICE_BYTES = 32 * 1024
"""Read between two pauses, and the rest of the event that goes beyond it."""

_UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)
_BROKEN = DecodedBatch(drops=(DropReason.UNDECODABLE_BATCH,))

Slices = Generator[None, None, DecodedBatch]


def decode_slices(payload: bytes, engine: str) -> Slices:
    """What ``decode_batch`` returns; yields between slices. Never raises for bad bytes."""
    if len(payload) <= SMALL_BYTES:
        return decode_batch(payload, engine)
    try:
        return (yield from _Reader(payload, engine).read())
    except _UNREADABLE:
        return _BROKEN


class _Reader:
    """One pass over one payload."""

    def __init__(self, payload: bytes, engine: str) -> None:
        self._payload = payload
        self._engine = engine
        self._events: list[EngineEvent] | None = None
        self._drops: list[DropReason] = []
        self._unpacker = msgpack.Unpacker(
            io.BytesIO(payload),  # shares the bytes; fed whole they would be copied in one go
            max_buffer_size=len(payload),
            raw=False,
            strict_map_key=False,
            unicode_errors="surrogateescape",
        )

    def read(self) -> Slices:
        if self._at_map():
            rank = yield from self._map()
        elif self._at_array():
            rank = yield from self._array()
        else:
            return _BROKEN
        if self._events is None or self._unpacker.tell() != len(self._payload):
            return _BROKEN
        return DecodedBatch(tuple(self._events), tuple(self._drops), named_rank(rank))

    def _array(self) -> Generator[None, None, object]:
        """[time stamp, events, rank, later fields]; returns the rank."""
        rank: object = None
        for at in range(self._unpacker.read_array_header()):
            if at == 1:
                yield from self._events_field()
            else:
                value = self._unpacker.unpack()
                if at == 2:
                    rank = value
        return rank

    def _map(self) -> Generator[None, None, object]:
        ranks: dict[object, object] = {}
        for _ in range(self._unpacker.read_map_header()):
            name = self._unpacker.unpack()
            if name == "events":
                yield from self._events_field()
            else:
                value = self._unpacker.unpack()
                if hash(name) is not None and name in BATCH_RANK_NAMES:
                    ranks[name] = value
        return next((ranks[name] for name in BATCH_RANK_NAMES if name in ranks), None)

    def _events_field(self) -> Generator[None, None, None]:
        self._events = None
        self._drops = []
        if not self._at_array():
            self._unpacker.skip()
            return
        unpacker = self._unpacker
        events: list[EngineEvent] = []
        raws: list[object] = []
        stop = unpacker.tell() + SLICE_BYTES
        for _ in range(unpacker.read_array_header()):
            raws.append(unpacker.unpack())
            if unpacker.tell() >= stop:
                self._take(raws, events)
                raws = []
                yield
                stop = unpacker.tell() + SLICE_BYTES
        self._take(raws, events)
        self._events = events

    def _take(self, raws: list[object], events: list[EngineEvent]) -> None:
        found, drops = decode_events(raws, self._engine)
        events += found
        self._drops += drops

    def _at_array(self) -> bool:
        first = self._next_byte()
        return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)

    def _at_map(self) -> bool:
        first = self._next_byte()
        return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)

    def _next_byte(self) -> int:
        at = self._unpacker.tell()
        return self._payload[at] if at < len(self._payload) else 0xC1  # msgpack never uses it
