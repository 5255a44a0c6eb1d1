"""Decodes a large batch in slices, so that its reader can give other tasks a turn in between.

The slices together are what :func:`~continuum_kv_listener.decode.decode_batch` makes of the batch.
It is passed over once before its first event is handed out, so that one which breaks off still
costs itself as a whole; that takes half a millisecond for each MiB. Only one slice is in memory as
objects: a whole batch of them would also be looked through by each collection of garbage. One event
is the smallest slice, since msgpack reads an object without a stop.
"""

import io
from collections.abc import Generator, Iterator

import msgpack

from continuum_kv_listener.decode import DecodedBatch, decode_events
from continuum_kv_listener.engine_events import DropReason

SMALL_BYTES = 64 * 1024
"""A batch up to this is better read in one go: it takes a few milliseconds at most."""
SLICE_BYTES = 32 * 1024
"""Read between two pauses, and the rest of the event that goes beyond it."""
PASS_BYTES = 2 * 1024 * 1024
"""Passed over between two pauses."""
FEED_BYTES = 256 * 1024
"""Given to msgpack at once."""

_UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)
_BROKEN = DecodedBatch(drops=(DropReason.UNDECODABLE_BATCH,))
_PAUSE = DecodedBatch()


def decode_slices(payload: bytes, engine: str) -> Iterator[DecodedBatch]:
    """Parts of a batch in their order, some of them empty, without the rank.

    Never raises for bad bytes. ``UNDECODABLE_BATCH`` in a part means that nothing comes after it;
    but for maps with impossible keys, which show only when they are read, nothing came before.
    """
    try:
        at = yield from _find_events(payload)
        if at is None:
            yield _BROKEN
        else:
            yield from _read_events(payload, at, engine)
    except _UNREADABLE:
        yield _BROKEN


def _find_events(payload: bytes) -> Generator[DecodedBatch, None, int | None]:
    """Pass over all of the batch; where its array of events begins, None if it has none."""
    unpacker = _unpacker(payload, 0)
    events: int | None = None
    if _is_map(payload, 0):
        for _ in range(unpacker.read_map_header()):
            name = unpacker.unpack()
            hash(name)  # raises for what no map can have as a key
            if name == "events":
                events = unpacker.tell()
            yield from _pass_over(unpacker, payload)
    elif _is_array(payload, 0):  # [time stamp, events, rank, later fields]
        for place in range(unpacker.read_array_header()):
            if place == 1:
                events = unpacker.tell()
            yield from _pass_over(unpacker, payload)
    if unpacker.tell() != len(payload) or events is None or not _is_array(payload, events):
        return None
    return events


def _pass_over(unpacker: msgpack.Unpacker, payload: bytes) -> Iterator[DecodedBatch]:
    """One object; an array's elements one by one."""
    if not _is_array(payload, unpacker.tell()):
        unpacker.skip()
        return
    stop = unpacker.tell() + PASS_BYTES
    for _ in range(unpacker.read_array_header()):
        unpacker.skip()
        if unpacker.tell() >= stop:
            yield _PAUSE
            stop = unpacker.tell() + PASS_BYTES


def _read_events(payload: bytes, at: int, engine: str) -> Iterator[DecodedBatch]:
    unpacker = _unpacker(payload, at)
    raws: list[object] = []
    stop = SLICE_BYTES
    for _ in range(unpacker.read_array_header()):
        raws.append(unpacker.unpack())
        if unpacker.tell() >= stop:
            yield _part(raws, engine)
            raws = []
            stop = unpacker.tell() + SLICE_BYTES
    yield _part(raws, engine)


def _part(raws: list[object], engine: str) -> DecodedBatch:
    events, drops = decode_events(raws, engine)
    return DecodedBatch(tuple(events), tuple(drops))


def _unpacker(payload: bytes, at: int) -> msgpack.Unpacker:
    """Reads from ``at`` on. It is fed from a file, piece by piece: fed with bytes it would copy
    all of them at once. Text that is not UTF-8 costs its event, as in ``decode_batch``."""
    file = io.BytesIO(payload)
    file.seek(at)
    return msgpack.Unpacker(
        file,
        read_size=min(FEED_BYTES, len(payload)),
        max_buffer_size=len(payload),
        raw=False,
        strict_map_key=False,
        unicode_errors="surrogateescape",
    )


def _is_array(payload: bytes, at: int) -> bool:
    """By msgpack's first byte."""
    first = payload[at] if at < len(payload) else None
    return first is not None and (0x90 <= first <= 0x9F or first in (0xDC, 0xDD))


def _is_map(payload: bytes, at: int) -> bool:
    return 0x80 <= payload[at] <= 0x8F or payload[at] in (0xDE, 0xDF)
