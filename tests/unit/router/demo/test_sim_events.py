"""The event wire's bytes, held against what real engines were recorded to send."""

import msgpack
import pytest

from continuum_router.demo.block_cache import BlockRemoved, BlocksStored, CacheCleared
from continuum_router.demo.sim_events import Encoding, HashForm, ZmqMode, binds, encode_batch

HASH = bytes(24) + (2**64 - 2).to_bytes(8)
PARENT = bytes(31) + b"\x07"
STORED = BlocksStored(
    hashes=(HASH, PARENT), parent=None, tokens=(1, 2, 3, 4), block_size=2, salt="tenant"
)


def decoded(event: object, encoding: Encoding, form: HashForm = HashForm.INT) -> object:
    payload = encode_batch([event], timestamp=1.5, encoding=encoding, hash_form=form)  # type: ignore[list-item]
    timestamp, events, rank = msgpack.unpackb(payload)
    assert (timestamp, rank, len(events)) == (1.5, 0, 1)
    return events[0]


def test_a_stored_event_as_a_map() -> None:
    assert decoded(STORED, Encoding.MAP) == {
        "type": "BlockStored",
        "block_hashes": [2**64 - 2, 7],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["tenant"], None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_a_stored_event_as_an_array() -> None:
    later = BlocksStored(hashes=(HASH,), parent=PARENT, tokens=(5, 6), block_size=2, salt=None)
    assert decoded(later, Encoding.ARRAY) == [
        *("BlockStored", [2**64 - 2], 7, [5, 6], 2),
        *(None, "GPU", None, [None], 0, "full_attention", None),
    ]


def test_hashes_as_bytes_are_whole() -> None:
    event = decoded(STORED, Encoding.ARRAY, HashForm.BYTES)
    assert isinstance(event, list)
    assert event[1] == [HASH, PARENT]


@pytest.mark.parametrize(
    ("event", "as_map", "as_array"),
    [
        pytest.param(
            BlockRemoved(hash=PARENT),
            {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0},
            ["BlockRemoved", [7], "GPU", 0],
            id="removed",
        ),
        pytest.param(
            CacheCleared(), {"type": "AllBlocksCleared"}, ["AllBlocksCleared"], id="cleared"
        ),
    ],
)
def test_small_events(event: object, as_map: object, as_array: object) -> None:
    assert decoded(event, Encoding.MAP) == as_map
    assert decoded(event, Encoding.ARRAY) == as_array


@pytest.mark.parametrize(
    ("endpoint", "mode", "expected"),
    [
        ("tcp://*:5557", ZmqMode.AUTO, True),
        ("tcp://127.0.0.1:*", ZmqMode.AUTO, True),
        ("tcp://[::]:5557", ZmqMode.AUTO, True),
        ("ipc:///run/engine.sock", ZmqMode.AUTO, True),
        ("inproc://engine", ZmqMode.AUTO, True),
        ("tcp://127.0.0.1:5557", ZmqMode.AUTO, False),
        ("tcp://listener:5557", ZmqMode.AUTO, False),
        ("tcp://127.0.0.1:5557", ZmqMode.BIND, True),
        ("tcp://*:5557", ZmqMode.CONNECT, False),
    ],
)
def test_who_binds(endpoint: str, mode: ZmqMode, expected: bool) -> None:
    assert binds(endpoint, mode) is expected
