"""What engines publish: no bytes raise, every event is counted once, tracking stays bounded."""

import base64
import json

import msgpack

from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.chain_stats import ChainLimits
from continuum_kv_listener.decode import decode_batch
from fuzz.target import Run, Target, plain
from support.source_tree import ROOT

WIRE = ROOT / "tests/fixtures/wire"
BLOCKS, TOKENS = 8, 64


def _events(payload: bytes) -> list[object] | None:
    """The events of a readable batch, read independently of the product."""
    try:
        batch = msgpack.unpackb(
            payload, raw=False, strict_map_key=False, unicode_errors="surrogateescape"
        )
    except Exception:
        return None
    if isinstance(batch, list):
        batch = batch[1] if len(batch) > 1 else None
    elif isinstance(batch, dict):
        batch = batch.get("events")
    return batch if isinstance(batch, list) else None


def _run_for(engine: str) -> Run:
    def run(data: bytes) -> None:
        decoded = decode_batch(data, engine)
        events = _events(data)
        if events is None:
            assert (decoded.events, len(decoded.drops)) == ((), 1)
        else:
            assert len(decoded.events) + len(decoded.drops) == len(events)
        tracker = ChainTracker(ChainLimits(max_tracked_blocks=BLOCKS, max_retained_tokens=TOKENS))
        for event in decoded.events:
            tracker.apply(event, 0.0)
            tracker.questions(1, 0.0)
            tracker.drain(0.0)
            assert tracker.stats.blocks <= BLOCKS
            assert tracker.stats.tokens <= TOKENS

    return run


def _recorded(folder: str) -> tuple[bytes, ...]:
    """Small messages of the recordings of one engine's version."""
    found: set[bytes] = set()
    for file in sorted((WIRE / folder).glob("*.jsonl")):
        for line in file.read_text().splitlines():
            frames = json.loads(line).get("frames")
            if frames:
                found.add(base64.b64decode(frames[-1]))
    return tuple(sorted(found, key=lambda payload: (len(payload), payload))[:12])


def _made() -> tuple[bytes, ...]:
    stored = ["BlockStored", [1, 2], None, [1, 2, 3, 4], 2, None, "GPU", None, [None, ["salt"]]]
    named = {
        "type": "BlockStored",
        "block_hashes": [b"\1\2", 7],
        "parent_block_hash": 1,
        "token_ids": [[1, 2], [2, 3]],
        "block_size": 1,
        "medium": "CPU",
        "cache_salt": "s",
        "lora_name": "l",
    }
    removed = ["BlockRemoved", [1], "GPU", 0]
    batches: tuple[object, ...] = (
        [1.0, [stored, removed, ["AllBlocksCleared"]], 0],
        {"ts": 1.0, "events": [named, {"type": "BlockRemoved", "block_hashes": [7]}], "rank": 1},
        [1.0, [["Unknown", 1], {}, [], None, 5]],
    )
    return tuple(msgpack.packb(batch) for batch in batches)


def _target(engine: str, folder: str) -> Target:
    return Target(
        name=f"engine_events_{engine}",
        opened=plain(_run_for(engine)),
        seeds=(*_made(), *_recorded(folder)),
        tokens=(
            msgpack.packb("BlockStored"),
            msgpack.packb("BlockRemoved"),
            msgpack.packb("AllBlocksCleared"),
            msgpack.packb("block_hashes"),
            msgpack.packb("token_ids"),
            msgpack.packb(-(2**63)),
            msgpack.packb(2**64 - 1),
            msgpack.packb(1.5),
            b"\xc0",
            b"\xc3",
            b"\x90",
            b"\x91",
            b"\x92",
            b"\x80",
            b"\x81",
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\x00\x00\x00\x01",
            b"\xa1\xff",
            b"\xc4\x01\x00",
            b"\xd6\xff\x00\x00\x00\x00",
        ),
        watched=("continuum_kv_listener",),
        smoke=6000,
    )


TARGETS = (_target("vllm", "vllm-0.32.0"), _target("sglang", "sglang-0.5.23"))
