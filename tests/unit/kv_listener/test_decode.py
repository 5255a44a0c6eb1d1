"""Every encoding that engines have used, and every way in which bytes can be wrong."""

import base64
import json
from array import array
from pathlib import Path

import msgpack
import pytest

from continuum_kv_listener.decode import MAX_EVENTS, MAX_ITEMS, DecodedBatch, decode_batch
from continuum_kv_listener.engine_events import Cleared, DropReason, Medium, Removed, Stored

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"


def batch(*events: object, rank: object = 0) -> bytes:
    return msgpack.packb([1.5, list(events), rank])


def one(event: object, engine: str = "vllm") -> object:
    decoded = decode_batch(batch(event), engine)
    assert decoded.drops == ()
    return decoded.events[0]


def a_map(**changes: object) -> dict[str, object]:
    event = {
        "type": "BlockStored",
        "block_hashes": [11, 12],
        "parent_block_hash": 10,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return {**event, **changes}


PLAIN = Stored(hashes=(11, 12), parent=10, tokens=array("I", [1, 2, 3, 4]), block_size=2)


@pytest.mark.parametrize(
    ("engine", "event"),
    [
        ("vllm", a_map()),
        ("vllm", a_map(group_idx=0, kv_cache_spec_kind="full_attention", extra_keys=[None, None])),
        ("vllm", a_map(unheard_of={"a": [1]}, session_id="s", locality="LOCAL")),
        ("vllm", ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU", None]),
        ("vllm", ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2]),
        (
            "vllm",
            [
                "BlockStored",
                [11, 12],
                10,
                [1, 2, 3, 4],
                2,
                None,
                "GPU",
                None,
                [None, None],
                0,
                "full_attention",
                None,
                "LOCAL",
                "later",
            ],
        ),
        ("sglang", ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU"]),
        ("sglang", ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU", 7, "not ours"]),
        ("sglang", a_map()),
        ("an engine to come", a_map()),
    ],
)
def test_one_store_in_every_encoding(engine: str, event: object):
    """Decisions C15: by the event's own type; arrays shorter and longer than known."""
    assert one(event, engine) == PLAIN


@pytest.mark.parametrize(
    ("engine", "event", "expected"),
    [
        ("vllm", ["BlockRemoved", [5], "GPU", 2], Removed(hashes=(5,), group=2)),
        ("vllm", ["BlockRemoved", [5]], Removed(hashes=(5,))),
        ("sglang", ["BlockRemoved", [5, 6], "DISK", 9], Removed(hashes=(5, 6), medium=Medium.DISK)),
        (
            "vllm",
            {"type": "BlockRemoved", "block_hashes": [5], "medium": "CPU", "group_idx": 1},
            Removed(hashes=(5,), medium=Medium.CPU, group=1),
        ),
        ("vllm", {"type": "AllBlocksCleared"}, Cleared()),
        ("sglang", ["AllBlocksCleared"], Cleared()),
        ("vllm", ["AllBlocksCleared", 1, 2], Cleared()),
    ],
)
def test_removals_and_clears(engine: str, event: object, expected: object):
    assert one(event, engine) == expected


def test_signed_and_unsigned_hashes_are_one_and_bytes_are_themselves():
    """User reports K1, K2; decisions C16."""
    negative = one(a_map(block_hashes=[-1, -(2**63)], parent_block_hash=-2), "sglang")
    unsigned = one(a_map(block_hashes=[2**64 - 1, 2**63], parent_block_hash=2**64 - 2))
    assert negative == unsigned
    raw = one(a_map(block_hashes=[b"\x01" * 32, b"\x02" * 32], parent_block_hash=b"\x00"))
    assert isinstance(raw, Stored)
    assert raw.hashes == (b"\x01" * 32, b"\x02" * 32)
    assert raw.parent == b"\x00"


@pytest.mark.parametrize(
    ("name", "medium"),
    [
        (None, Medium.GPU),
        ("", Medium.GPU),
        ("GPU", Medium.GPU),
        ("CPU", Medium.CPU),
        ("CPU_PINNED", Medium.CPU),
        ("DISK", Medium.DISK),
        ("STORAGE", Medium.DISK),
        ("EXTERNAL", Medium.EXTERNAL),
        ("a tier to come", Medium.EXTERNAL),
    ],
)
def test_media(name: object, medium: Medium):
    stored = one(a_map(medium=name))
    assert isinstance(stored, Stored)
    assert stored.medium is medium


@pytest.mark.parametrize(
    ("fields", "full"),
    [
        ({}, True),
        ({"group_idx": 0}, True),
        ({"group_idx": 1}, False),
        ({"group_idx": 1, "kv_cache_spec_kind": "full_attention"}, True),
        ({"group_idx": 1, "kv_cache_spec_kind": "mla_attention"}, True),
        ({"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}, False),
        ({"group_idx": 0, "kv_cache_spec_kind": "mamba"}, False),
        ({"group_idx": 0, "kv_cache_spec_kind": "unknown"}, True),
        ({"group_idx": 0, "kv_cache_spec_sliding_window": 1024}, False),
    ],
)
def test_which_groups_describe_a_prefix(fields: dict[str, object], full: bool):
    """Decisions C19, user report K7."""
    stored = one(a_map(**fields))
    assert isinstance(stored, Stored)
    assert stored.full_attention is full


def test_extra_keys_salt_and_adapter():
    stored = one(
        a_map(
            extra_keys=[["tiny-lora", "salt"], ["tiny-lora"]],
            lora_id=1,
            lora_name="tiny-lora",
        )
    )
    assert isinstance(stored, Stored)
    assert stored.extra_keys == (("tiny-lora", "salt"), ("tiny-lora",))
    assert stored.lora_name == "tiny-lora"
    numbered = one(a_map(extra_keys=[[1, "x"], None], lora_id=1, lora_name="l"))
    assert isinstance(numbered, Stored)
    assert numbered.extra_keys == (("x",), None)
    salted = one(a_map(cache_salt="tenant-a", session_id="s"), "sglang")
    assert isinstance(salted, Stored)
    assert salted.cache_salt == "tenant-a"
    assert one(a_map(cache_salt="", lora_name="", extra_keys=[None, None])) == PLAIN


def test_an_adapter_without_a_name_is_not_the_base_model():
    stored = one(a_map(lora_id=3))
    assert isinstance(stored, Stored)
    assert stored.lora_name == "lora_id:3"


def test_bigrams_give_their_first_tokens():
    stored = one(a_map(token_ids=[[1, 2], [2, 3], [3, 4], [4, 5]]), "sglang")
    assert stored == PLAIN


def test_lower_tiers_may_tell_no_tokens():
    stored = one(a_map(token_ids=[], block_size=0, medium="CPU"))
    assert stored == Stored(hashes=(11, 12), parent=10, block_size=0, medium=Medium.CPU)
    assert one(a_map(token_ids=None, block_size=None, medium="CPU")) == stored


@pytest.mark.parametrize(
    "changes",
    [
        {"block_hashes": []},
        {"block_hashes": None},
        {"block_hashes": 5},
        {"block_hashes": ["5"]},
        {"block_hashes": [1.5]},
        {"block_hashes": [True]},
        {"block_hashes": [b""]},
        {"block_hashes": [[1]]},
        {"parent_block_hash": "10"},
        {"parent_block_hash": [10]},
        {"token_ids": "abc"},
        {"token_ids": [1, -2]},
        {"token_ids": [1, 2**32]},
        {"token_ids": [1, 2.5]},
        {"token_ids": [1, None]},
        {"token_ids": [[1, 2, 3]]},
        {"token_ids": [["a", "b"]]},
        {"block_size": -1},
        {"block_size": "16"},
        {"block_size": True},
        {"lora_name": 7},
        {"lora_id": "x"},
        {"medium": 3},
        {"extra_keys": "salt"},
        {"extra_keys": ["salt"]},
        {"cache_salt": 5},
        {"group_idx": -1},
        {"group_idx": "0"},
    ],
    ids=str,
)
def test_a_malformed_store_costs_itself(changes: dict[str, object]):
    decoded = decode_batch(batch(a_map(), a_map(**changes), ["AllBlocksCleared"]), "vllm")
    assert decoded.events == (PLAIN, Cleared())
    assert decoded.drops == (DropReason.MALFORMED_EVENT,)


def test_text_that_is_not_utf8_costs_its_event():
    bad = msgpack.packb(a_map(lora_name="QQQQ")).replace(b"QQQQ", b"\xff\xfe\xfd\xfc")
    payload = b"\x93\xcb" + b"\0" * 8 + b"\x92" + msgpack.packb(a_map()) + bad + b"\x00"
    decoded = decode_batch(payload, "vllm")
    assert decoded == DecodedBatch(events=(PLAIN,), drops=(DropReason.MALFORMED_EVENT,), rank=0)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"type": "BlockMigrated", "block_hashes": [1]}, DropReason.UNKNOWN_TAG),
        (["BlockMigrated", [1]], DropReason.UNKNOWN_TAG),
        ({"block_hashes": [1]}, DropReason.MALFORMED_EVENT),
        ({"type": 5}, DropReason.MALFORMED_EVENT),
        ({"type": ["BlockStored"]}, DropReason.MALFORMED_EVENT),
        ([], DropReason.MALFORMED_EVENT),
        ([5, [1]], DropReason.MALFORMED_EVENT),
        ([["BlockStored"], [1]], DropReason.MALFORMED_EVENT),
        ("BlockStored", DropReason.MALFORMED_EVENT),
        (None, DropReason.MALFORMED_EVENT),
        (7, DropReason.MALFORMED_EVENT),
    ],
    ids=str,
)
def test_what_is_no_known_event(event: object, reason: DropReason):
    decoded = decode_batch(batch(event, a_map()), "vllm")
    assert decoded.events == (PLAIN,)
    assert decoded.drops == (reason,)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93\xcb",
        b"not msgpack",
        msgpack.packb([1.0]),
        msgpack.packb([1.0, None, 0]),
        msgpack.packb([1.0, {"a": 1}, 0]),
        msgpack.packb({"ts": 1.0}),
        msgpack.packb("events"),
        msgpack.packb(5),
        msgpack.packb(None),
        batch(a_map()) + b"\x00",
        batch(a_map())[:-7],
        b"\x91" * 2_000,
        b"\x81\x91\x01\x02",  # a map whose key is an array
        b"\xd7\xff" + b"\xff" * 8,  # a time stamp out of range
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million elements that are not there
    ],
    ids=repr,
)
def test_a_broken_batch_is_one_drop(payload: bytes):
    """User report K3: counted, and the next batch is read as if nothing had been."""
    assert decode_batch(payload, "vllm") == DecodedBatch(drops=(DropReason.UNDECODABLE_BATCH,))


@pytest.mark.parametrize(
    ("envelope", "rank"),
    [
        ([1.0, [["AllBlocksCleared"]], 3], 3),
        ([1.0, [["AllBlocksCleared"]]], None),
        ([1.0, [["AllBlocksCleared"]], None], None),
        ([1.0, [["AllBlocksCleared"]], "1"], None),
        ([1.0, [["AllBlocksCleared"]], 1, "more"], 1),
        ({"ts": 1.0, "events": [["AllBlocksCleared"]], "data_parallel_rank": 2}, 2),
        ({"ts": 1.0, "events": [["AllBlocksCleared"]], "attn_dp_rank": 4}, 4),
        ({"events": [["AllBlocksCleared"]]}, None),
    ],
)
def test_envelopes(envelope: object, rank: int | None):
    assert decode_batch(msgpack.packb(envelope), "vllm") == DecodedBatch(
        events=(Cleared(),), rank=rank
    )


def test_an_empty_batch_is_no_fault():
    assert decode_batch(batch(), "vllm") == DecodedBatch(rank=0)


def payloads(folder: str) -> list[tuple[str, bytes]]:
    """(file name, payload) of every event message of a folder's recordings."""
    found = []
    for file in sorted((WIRE / folder).glob("*.jsonl")):
        for line in file.read_text().splitlines():
            frames = [base64.b64decode(each) for each in json.loads(line).get("frames", ())]
            if len(frames) >= 3 and frames[-1]:
                found.append((file.name, frames[-1]))
    return found


@pytest.mark.parametrize(
    ("folder", "engine", "stored", "removed", "cleared"),
    [
        ("vllm-0.32.0", "vllm", {"events.jsonl": 32, "evict.jsonl": 9, "dup.jsonl": 12}, 83, 1),
        ("vllm-0.23.0", "vllm", {"events.jsonl": 39}, 55, 1),
        ("vllm-0.16.0", "vllm", {"events.jsonl": 53}, 42, 1),
        (
            "sglang-0.5.23",
            "sglang",
            {"page16.jsonl": 6, "page1.jsonl": 6, "dynamo16.jsonl": 6},
            12,
            9,
        ),
        ("sglang-0.5.16", "sglang", {"page16.jsonl": 5}, 2, 2),
    ],
)
def test_recordings_decode_whole(
    folder: str, engine: str, stored: dict[str, int], removed: int, cleared: int
):
    """Every event of every recording; the sums are those of wire/tools/decode_events.py."""
    seen: dict[str, int] = {}
    kinds = {Removed: 0, Cleared: 0}
    for name, payload in payloads(folder):
        decoded = decode_batch(payload, engine)
        assert decoded.drops == ()
        assert decoded.rank == 0
        for event in decoded.events:
            if name not in stored:
                continue
            if isinstance(event, Stored):
                assert len(event.tokens) == event.block_size * len(event.hashes)
                assert event.full_attention
                seen[name] = seen.get(name, 0) + 1
            else:
                kinds[type(event)] += event.merged if isinstance(event, Removed) else 1
    assert seen == stored
    assert (kinds[Removed], kinds[Cleared]) == (removed, cleared)


def test_bytes_hashes_and_adapters_of_the_recording():
    events = [
        event
        for name, payload in payloads("vllm-0.32.0")
        if name == "lora_bytes_hashes.jsonl"
        for event in decode_batch(payload, "vllm").events
    ]
    stored = [event for event in events if isinstance(event, Stored)]
    assert len(stored) == 14
    assert all(type(each) is bytes and len(each) == 32 for event in stored for each in event.hashes)
    adapters = [event for event in stored if event.lora_name == "tiny-lora"]
    assert len(adapters) == 4
    salted = [e for e in adapters if e.extra_keys and len(e.extra_keys[0] or ()) == 2]
    assert len(salted) == 1


def test_removals_that_follow_each_other_on_one_medium_are_one_event():
    def gone(*hashes: object, medium: str = "GPU", group: int = 0) -> dict[str, object]:
        return {
            "type": "BlockRemoved",
            "block_hashes": list(hashes),
            "medium": medium,
            "group_idx": group,
        }

    rows = [
        gone(1),
        gone(-1, 3),
        gone("no hash"),
        gone(4),
        gone(5, medium="CPU"),
        gone(6, group=1),
        {"type": "AllBlocksCleared"},
        gone(7, group=1),
        gone(8, group=1),
    ]
    decoded = decode_batch(msgpack.packb([0.0, rows, 0]), "vllm")
    assert decoded.drops == (DropReason.MALFORMED_EVENT,)
    assert decoded.events == (
        Removed(hashes=(1, 2**64 - 1, 3, 4)),
        Removed(hashes=(5,), medium=Medium.CPU),
        Removed(hashes=(6,), group=1),
        Cleared(),
        Removed(hashes=(7, 8), group=1),
    )
    assert [event.merged for event in decoded.events if isinstance(event, Removed)] == [3, 1, 1, 2]


@pytest.mark.parametrize(
    ("events", "drops"),
    [
        ([[]] * MAX_EVENTS, (DropReason.MALFORMED_EVENT,) * MAX_EVENTS),
        ([[]] * (MAX_EVENTS + 1), (DropReason.UNDECODABLE_BATCH,)),
        ([[]] * (MAX_ITEMS + 1), (DropReason.UNDECODABLE_BATCH,)),
    ],
    ids=["as many as there may be", "one more", "more than any array may have"],
)
def test_a_batch_of_more_events_than_an_engine_sends(
    events: list[object], drops: tuple[DropReason, ...]
):
    """A byte each, they would take a minute of everybody's time and a hundred times the memory."""
    assert decode_batch(batch(*events), "vllm") == DecodedBatch(
        drops=drops, rank=0 if len(events) <= MAX_EVENTS else None
    )
