"""Large batches read in slices are the batches that are read in one go."""

import msgpack
import pytest

from continuum_kv_listener.decode import DecodedBatch, decode_batch
from continuum_kv_listener.decode_slices import SLICE_BYTES, SMALL_BYTES, decode_slices
from continuum_kv_listener.engine_events import DropReason
from support.kv_publisher import Encoding, removed, stored

BROKEN = DecodedBatch(drops=(DropReason.UNDECODABLE_BATCH,))
PAD = b"p" * (SMALL_BYTES + 1)


def read(payload: bytes) -> tuple[DecodedBatch, int]:
    """The batch without its rank, and in how many parts it came."""
    parts = list(decode_slices(payload, "vllm"))
    events = tuple(event for part in parts for event in part.events)
    return DecodedBatch(events, tuple(drop for part in parts for drop in part.drops)), len(parts)


def whole(payload: bytes) -> DecodedBatch:
    return decode_batch(payload, "vllm")._replace(rank=None)


def chain(encoding: Encoding, count: int = 2000) -> list[object]:
    made: list[object] = []
    for at in range(count):
        made.append(stored(encoding, [at + 1], at or None, range(16)))
        if not at % 7:
            made.append(removed(encoding, [at + 1]))
    made[5] = {"type": "BlockStored", "block_hashes": 7}
    made[6] = ["Invented", 1]
    return made


ENVELOPES = {
    "array": lambda events: [1.5, events, 3],
    "array with later fields": lambda events: [1.5, events, None, {"later": [1]}],
    "array without a rank": lambda events: [1.5, events],
    "map": lambda events: {"ts": 1.5, "events": events, "attn_dp_rank": 2, "more": [1, 2]},
    "map with two ranks": lambda events: {"rank": 4, "events": events, "data_parallel_rank": 1},
}


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("name", ENVELOPES)
def test_slices_make_the_same_batch(name, encoding):
    payload = msgpack.packb(ENVELOPES[name](chain(encoding)))
    found, parts = read(payload)
    assert len(payload) > SMALL_BYTES
    assert found == whole(payload)
    assert len(found.events) >= 2000
    assert set(found.drops) == {DropReason.MALFORMED_EVENT, DropReason.UNKNOWN_TAG}
    assert len(payload) // SLICE_BYTES - 1 <= parts <= len(payload) // SLICE_BYTES + 2


def test_a_small_batch_is_one_part():
    payload = msgpack.packb([1.5, [stored(Encoding.MAP, [1], None, range(16))], 0])
    assert read(payload) == (whole(payload), 1)


WHOLE = msgpack.packb([1.5, chain(Encoding.MAP), 0])
BAD = {
    "cut in an event": WHOLE[:-100],
    "cut before the rank": WHOLE[:-1],
    "bytes behind it": WHOLE + b"\x00",
    "an impossible byte in it": WHOLE[:90_000] + b"\xc1" * 40 + WHOLE[90_040:],
    "no events": msgpack.packb([1.5, PAD, 0]),
    "events that are a map": msgpack.packb([1.5, {"a": PAD}, 0]),
    "nothing but a time": msgpack.packb([PAD]),
    "no envelope": msgpack.packb(PAD),
    "a map without events": msgpack.packb({"a": PAD}),
    "a key that is a list": b"\x82\x91\x01\x01\xa6events" + msgpack.packb([PAD]),
    "two maps": msgpack.packb({"events": [PAD]}) * 2,
    "more events than there are": b"\x93\x01\xdd\xff\xff\xff\xff" + PAD,
}


@pytest.mark.parametrize("name", BAD)
def test_a_broken_batch_costs_itself_as_a_whole(name):
    assert read(BAD[name])[0] == BROKEN == whole(BAD[name])


def test_the_last_of_two_event_lists_counts():
    one, two = chain(Encoding.MAP), [removed(Encoding.MAP, [9])]
    payload = b"\x82" + b"".join(
        msgpack.packb("events") + msgpack.packb(events) for events in (one, two)
    )
    assert read(payload)[0] == whole(payload)
    assert len(read(payload)[0].events) == 1


def test_a_key_that_no_map_can_have_costs_the_rest():
    events = chain(Encoding.MAP)
    head, tail = events[:1500], events[1500:]
    payload = b"".join(
        (
            b"\x93\x01\xdd",
            (len(events) + 1).to_bytes(4, "big"),
            *map(msgpack.packb, head),
            b"\x81\x91\x01\x01",
            *map(msgpack.packb, tail),
            b"\x00",
        )
    )
    found, _ = read(payload)
    assert found.drops[-1] is DropReason.UNDECODABLE_BATCH
    before = decode_batch(msgpack.packb([1, head]), "vllm").events
    assert found.events == before[: len(found.events)]
    assert len(before) - 400 < len(found.events)


def test_a_cut_between_removals_leaves_all_of_them():
    events = [removed(Encoding.MAP, [at]) for at in range(5000)]
    payload = msgpack.packb([1.5, events])
    hashes = [each for event in read(payload)[0].events for each in event.hashes]
    assert hashes == list(range(5000))
    assert sum(event.merged for event in read(payload)[0].events) == 5000
