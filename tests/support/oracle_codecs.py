"""Events of the oracle's engine as the bytes that each kind of engine publishes."""

import random
from collections.abc import Callable, Sequence

import msgpack

from continuum_kv_listener.engine_events import Medium
from support.oracle_engine import BLOCK, MASKED, Block, Cleared, Event, Removed, Stored

Encode = Callable[[Sequence[Event], random.Random], bytes]

WINDOW_GROUP = 3


def _u64(block: Block) -> int:
    return int.from_bytes(block.hash[:8], "big")


def _signed(block: Block) -> int:
    return int.from_bytes(block.hash[:8], "big", signed=True)


def _tokens(event: Stored) -> list[int]:
    if event.bare:
        return []
    tokens = [token for block in event.blocks for token in block.tokens[-BLOCK:]]
    return [*tokens, 1] if event.blocks[0].salt == MASKED else tokens


def _extra_keys(event: Stored) -> list[object]:
    """vLLM's: the adapter's name on every block, the salt on a chain's first one."""
    rows: list[object] = []
    for block in event.blocks:
        row = [block.lora] if block.lora else []
        if block.salt and block.salt != MASKED and block.parent is None:
            row.append(block.salt)
        rows.append(row or None)
    return rows


def _medium(event: Stored | Removed) -> str:
    return "GPU" if event.medium is Medium.GPU else "CPU"


def vllm_array(events: Sequence[Event], rng: random.Random) -> bytes:
    """vLLM up to 0.23: positions, integers of 64 bits, events of a window group between them."""
    out: list[object] = []
    for event in events:
        if isinstance(event, Cleared):
            out.append(["AllBlocksCleared"])
            continue
        hashes = [_u64(block) for block in event.blocks]
        if isinstance(event, Removed):
            out.append(["BlockRemoved", hashes, _medium(event), 0])
        else:
            parent = event.blocks[0].parent
            fields = [hashes, None if parent is None else _u64(parent), _tokens(event), BLOCK]
            lora = event.blocks[0].lora
            fields += [1 if lora else None, _medium(event), lora, _extra_keys(event)]
            out.append(["BlockStored", *fields, 0, "full_attention", None])
            if rng.random() < 0.2:
                window = [*fields, WINDOW_GROUP, "sliding_window", 128]
                out.append(["BlockStored", *window])
                out.append(["BlockRemoved", hashes[:1], _medium(event), WINDOW_GROUP])
    return bytes(msgpack.packb([1.5, out, 0]))


def vllm_map(events: Sequence[Event], rng: random.Random) -> bytes:
    """vLLM from 0.24 on: names, hashes of 32 bytes, defaults left out."""
    out: list[dict[str, object]] = []
    for event in events:
        if isinstance(event, Cleared):
            out.append({"type": "AllBlocksCleared"})
            continue
        hashes = [block.hash for block in event.blocks]
        if isinstance(event, Removed):
            out.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": _medium(event)})
            continue
        parent = event.blocks[0].parent
        row: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None if parent is None else parent.hash,
            "token_ids": _tokens(event),
            "block_size": BLOCK,
            "lora_id": None,
            "medium": _medium(event),
            "lora_name": event.blocks[0].lora,
            "extra_keys": _extra_keys(event),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        out.append(row)
        if rng.random() < 0.2:
            out.append({**row, "group_idx": WINDOW_GROUP, "kv_cache_spec_kind": "sliding_window"})
    return bytes(msgpack.packb([1.5, out, 0]))


def sglang(events: Sequence[Event], rng: random.Random) -> bytes:
    """SGLang: signed hashes, several in one removal, salt and adapter in fields of their own."""
    out: list[dict[str, object]] = []
    for event in events:
        if isinstance(event, Cleared):
            out.append({"type": "AllBlocksCleared"})
            continue
        hashes = [_signed(block) for block in event.blocks]
        medium = None if event.medium is Medium.GPU and rng.random() < 0.5 else _medium(event)
        if isinstance(event, Removed):
            last = out[-1] if out else {}
            if last.get("type") == "BlockRemoved" and last["medium"] == medium:
                last["block_hashes"] += hashes  # type: ignore[operator]
            else:
                out.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": medium})
            continue
        first = event.blocks[0]
        row: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None if first.parent is None else _signed(first.parent),
            "token_ids": _tokens(event),
            "block_size": BLOCK,
            "lora_id": None,
            "medium": medium,
        }
        if first.salt and first.salt != MASKED:
            row["cache_salt"] = first.salt
        if first.lora:
            row["lora_name"] = first.lora
        out.append(row)
    return bytes(msgpack.packb([1.5, out, 0]))
