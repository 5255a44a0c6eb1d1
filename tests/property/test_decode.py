"""No bytes make the decoder raise, and what it gives can always be tracked."""

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.chain_stats import ChainLimits
from continuum_kv_listener.decode import decode_batch
from continuum_kv_listener.engine_events import DropReason, Removed

ENGINES = st.sampled_from(["vllm", "sglang"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
SMALL = st.integers(0, 5)
FIELDS = {
    "block_hashes": st.one_of(st.lists(SMALL, max_size=4), VALUES),
    "parent_block_hash": st.one_of(st.none(), SMALL, VALUES),
    "token_ids": st.one_of(st.lists(SMALL, max_size=8), VALUES),
    "block_size": st.one_of(SMALL, VALUES),
    "medium": st.one_of(st.sampled_from([None, "GPU", "CPU", "DISK"]), VALUES),
    "lora_name": st.one_of(st.none(), st.text(max_size=3), VALUES),
    "extra_keys": st.one_of(st.none(), st.lists(st.none(), max_size=3), VALUES),
    "group_idx": st.one_of(st.none(), st.integers(0, 2), VALUES),
    "kv_cache_spec_kind": st.one_of(st.none(), st.just("full_attention"), VALUES),
    "cache_salt": st.one_of(st.none(), st.text(max_size=3), VALUES),
}
TAGS = st.sampled_from(["BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared", "Else"])
EVENTS = st.one_of(
    st.fixed_dictionaries({"type": TAGS}, optional=FIELDS),
    st.builds(
        lambda tag, fields: [tag, *fields],
        TAGS,
        st.lists(st.one_of(*FIELDS.values()), max_size=12),
    ),
    VALUES,
)


@given(st.binary(max_size=200), ENGINES)
@settings(max_examples=300, deadline=None)
def test_any_bytes(payload: bytes, engine: str) -> None:
    decode_batch(payload, engine)


@given(st.lists(EVENTS, max_size=8), ENGINES)
@settings(max_examples=400, deadline=None)
def test_any_batch_is_decoded_and_tracked(events: list[object], engine: str) -> None:
    decoded = decode_batch(msgpack.packb([0.0, events, 0]), engine)
    told = sum(each.merged if isinstance(each, Removed) else 1 for each in decoded.events)
    assert told + len(decoded.drops) == len(events)
    assert set(decoded.drops) <= {DropReason.MALFORMED_EVENT, DropReason.UNKNOWN_TAG}
    tracker = ChainTracker(ChainLimits(max_tracked_blocks=4, max_retained_tokens=9))
    for event in decoded.events:
        tracker.apply(event, 0.0)
        tracker.questions(1, 0.0)
        tracker.drain(0.0)
        assert tracker.stats.blocks <= 4
        assert tracker.stats.tokens <= 9


@given(
    st.lists(EVENTS, min_size=1, max_size=4), st.integers(0, 10_000), st.integers(0, 255), ENGINES
)
@settings(max_examples=300, deadline=None)
def test_a_flipped_byte_costs_at_most_what_it_hit(
    events: list[object], at: int, value: int, engine: str
) -> None:
    payload = bytearray(msgpack.packb([0.0, events, 0]))
    payload[at % len(payload)] = value
    decode_batch(bytes(payload), engine)
    decode_batch(bytes(payload[: at % len(payload)]), engine)
