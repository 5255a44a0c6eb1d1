"""Published bytes to typed engine events; the only place that knows their encodings.

Whether an event is an array or a map is decided by its msgpack type, event by event, never by an
engine version (decisions C15); a batch may be a map too. Arrays are read by position and may be
shorter or longer than the table, unknown keys of maps are ignored. What cannot be read costs one
event, or one batch when its envelope is broken, and is counted by reason; nothing raises.

Origin of the tables: recordings of real engines, wire/README.md.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgpack

from continuum_kv_listener.engine_events import (
    BlockHash,
    Cleared,
    DropReason,
    EngineEvent,
    Medium,
    Removed,
    Stored,
    Tokens,
)

MAX_EVENTS = 1 << 18
"""In one batch. An engine's step tells of some ten thousand blocks at most; a batch of a million
scraps would hold up every other source."""
MAX_ITEMS = 1 << 22
"""In one array: more than any prompt has tokens. What is longer is not read into memory."""
_BATCH_RANK_NAMES = ("data_parallel_rank", "attn_dp_rank", "rank")

_STORED_COMMON = (
    "block_hashes",  # ints of 64 bits, signed (SGLang) or not (vLLM), or bytes
    "parent_block_hash",  # the same, or nil for a chain's first block
    "token_ids",  # ints, or pairs of ints in SGLang's bigram mode
    "block_size",
    "lora_id",
    "medium",  # "GPU", "CPU", "CPU_PINNED", "DISK", "STORAGE", "EXTERNAL"; nil = GPU
)
_STORED: Mapping[str, Sequence[str]] = {
    "vllm": (
        *_STORED_COMMON,
        "lora_name",
        "extra_keys",  # from 0.23 on: one entry a block, nil or an array of values
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "sglang": _STORED_COMMON,  # its map form adds cache_salt, session_id, lora_name
}
_REMOVED: Mapping[str, Sequence[str]] = {
    "vllm": ("block_hashes", "medium", "group_idx"),
    "sglang": ("block_hashes", "medium"),
}

_FULL_ATTENTION_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
_MEDIA: Mapping[object, Medium] = {
    None: Medium.GPU,
    "": Medium.GPU,
    "GPU": Medium.GPU,
    "CPU": Medium.CPU,
    "CPU_PINNED": Medium.CPU,
    "DISK": Medium.DISK,
    "STORAGE": Medium.DISK,
    "EXTERNAL": Medium.EXTERNAL,
}
_MASK64 = (1 << 64) - 1
_GPU = Medium.GPU


class DecodedBatch(NamedTuple):
    """The readable events of one message in their order, one reason for each unreadable one, and
    the data-parallel rank that it names (None when it names none)."""

    events: tuple[EngineEvent, ...] = ()
    drops: tuple[DropReason, ...] = ()
    rank: int | None = None


class _MalformedError(Exception):
    """One event that has a known name and an impossible shape."""


def decode_batch(payload: bytes, engine: str) -> DecodedBatch:
    """Decode the last frame of one message of an ``engine`` ("vllm" or "sglang", whose tables
    differ in the optional fields; another name reads as "vllm"). Never raises for bad bytes."""
    try:
        # text that is not UTF-8 must cost its event, not the batch: see _text
        batch = msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=False,
            unicode_errors="surrogateescape",
            max_array_len=MAX_ITEMS,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return DecodedBatch(drops=(DropReason.UNDECODABLE_BATCH,))
    raws: object = None
    rank: object = None
    if isinstance(batch, list) and len(batch) > 1:  # [time stamp, events, rank, later fields]
        raws = batch[1]
        rank = batch[2] if len(batch) > 2 else None
    elif isinstance(batch, dict):
        raws = batch.get("events")
        rank = next((batch[name] for name in _BATCH_RANK_NAMES if name in batch), None)
    if not isinstance(raws, list) or len(raws) > MAX_EVENTS:
        return DecodedBatch(drops=(DropReason.UNDECODABLE_BATCH,))
    events, drops = decode_events(raws, engine)
    known_rank = rank if type(rank) is int and rank >= 0 else None
    return DecodedBatch(tuple(events), tuple(drops), known_rank)


def decode_events(raws: list[object], engine: str) -> tuple[list[EngineEvent], list[DropReason]]:
    """All events in their order. Engines tell each block's removal by an event of its own: those
    that follow each other on one medium become one :class:`Removed`."""
    table = engine if engine in _STORED else "vllm"
    events: list[EngineEvent] = []
    drops: list[DropReason] = []
    merged: list[tuple[Removed, list[BlockHash]]] = []
    last: Removed | None = None
    more: list[BlockHash] | None = None
    place: tuple[object, object] | None = None
    for raw in raws:
        here = None
        try:
            if isinstance(raw, dict) and raw.get("type") == "BlockRemoved":
                here = (raw.get("medium"), raw.get("group_idx"))
                if last is not None and place == here:
                    found = _hashes(raw.get("block_hashes"))
                    if more is None:
                        more = list(last.hashes)
                        merged.append((last, more))
                    more += found
                    last.merged += 1
                    continue
            event = _event(raw, table)
        except _MalformedError:
            drops.append(DropReason.MALFORMED_EVENT)
            continue
        last = more = None
        if event is None:
            drops.append(DropReason.UNKNOWN_TAG)
            continue
        events.append(event)
        if here is not None and isinstance(event, Removed):
            last, place = event, here
    for whole, hashes in merged:
        whole.hashes = tuple(hashes)
    return events, drops


def _event(raw: object, table: str) -> EngineEvent | None:
    """One event; None when its name is not known."""
    if isinstance(raw, dict):
        tag = raw.get("type")
        fields: Mapping[object, object] = raw
    elif isinstance(raw, list) and raw:
        tag = raw[0]
        slots = _STORED if tag == "BlockStored" else _REMOVED
        fields = dict(zip(slots[table], raw[1:], strict=False))
    else:
        raise _MalformedError
    if tag == "BlockStored":
        return _stored(fields)
    if tag == "BlockRemoved":
        return Removed(
            _hashes(fields.get("block_hashes")),
            _medium(fields.get("medium")),
            _count(fields.get("group_idx")),
        )
    if tag == "AllBlocksCleared":
        return Cleared()
    if not isinstance(tag, str):
        raise _MalformedError
    return None


def _stored(fields: Mapping[object, object]) -> Stored:
    """There is one for nearly every block: what is common is looked at without a call."""
    get = fields.get
    parent = get("parent_block_hash")
    if parent is not None:
        parent = parent & _MASK64 if type(parent) is int else _hashes([parent])[0]
    lora_id = get("lora_id")
    lora_name = get("lora_name")
    if lora_name is not None:
        lora_name = _text(lora_name)
    cache_salt = get("cache_salt")
    if cache_salt is not None:
        cache_salt = _text(cache_salt)
    if lora_name is None and lora_id is not None:
        # an adapter without a name: no request can name it, so it may not count as the base model
        lora_name = f"lora_id:{_count(lora_id)}"
    group = _count(get("group_idx"))
    extra_keys = get("extra_keys")
    kind, window = get("kv_cache_spec_kind"), get("kv_cache_spec_sliding_window")
    return Stored(  # in the order of its fields
        _hashes(get("block_hashes")),
        _count(get("block_size")),
        parent,
        _tokens(get("token_ids")),
        lora_name,
        _medium(get("medium")),
        () if extra_keys is None else _extra_keys(extra_keys, lora_id),
        cache_salt,
        group,
        _full_attention(group, kind, window),
    )


def _hashes(value: object) -> tuple[BlockHash, ...]:
    """Ints become unsigned 64 bits, whatever sign the engine gave them (decisions C16)."""
    if not isinstance(value, list) or not value:
        raise _MalformedError
    if len(value) == 1 and type(value[0]) is int:  # the usual removal
        return (value[0] & _MASK64,)
    hashes: list[BlockHash] = []
    for each in value:
        if type(each) is int:
            hashes.append(each & _MASK64)
        elif type(each) is bytes and each:
            hashes.append(each)
        else:
            raise _MalformedError
    return tuple(hashes)


def _tokens(value: object) -> Tokens:
    if value is None:
        return array("I")
    if not isinstance(value, list):
        raise _MalformedError
    try:
        return array("I", value)
    except (TypeError, OverflowError):
        pass
    try:  # bigrams: each token with the one that follows it
        return array("I", [first for first, _ in value])
    except (TypeError, ValueError, OverflowError):
        raise _MalformedError from None


def _count(value: object) -> int:
    """A non-negative int; absent counts as 0."""
    if type(value) is int and value >= 0:
        return value
    if value is None:
        return 0
    raise _MalformedError


def _text(value: object) -> str | None:
    """Proper text, or None where it is absent or empty."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise _MalformedError
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _MalformedError from None
    return value


def _medium(value: object) -> Medium:
    """Absent is the GPU; a tier that we do not know is one below it (decisions C13)."""
    if value == "GPU":
        return _GPU
    if value is None or isinstance(value, str):
        return _MEDIA.get(value) or Medium.EXTERNAL
    raise _MalformedError


def _extra_keys(value: object, lora_id: object) -> tuple[tuple[object, ...] | None, ...]:
    """One entry a block, nothing when all are empty. An adapter's number, where an engine puts it,
    is not an extra key."""
    if not isinstance(value, list):
        raise _MalformedError
    if value.count(None) == len(value):
        return ()
    entries: list[tuple[object, ...] | None] = []
    for entry in value:
        if entry is None:
            entries.append(None)
        elif isinstance(entry, list):
            entries.append(
                tuple(each for each in entry if not (type(each) is int and each == lora_id))
            )
        else:
            raise _MalformedError
    return tuple(entries)


def _full_attention(group: int, kind: object, window: object) -> bool:
    """Whether the group's blocks describe a whole prefix (decisions C19). Without a kind only
    group 0 does, unless it names a window."""
    if kind == "full_attention":
        return True
    if isinstance(kind, str) and kind != "unknown":
        return kind in _FULL_ATTENTION_KINDS
    return group == 0 and not window
