"""Answers of trtllm-serve: no bytes raise, each element counts once, tracking stays bounded."""

import json

from continuum_kv_listener.chain_stats import ChainLimits
from continuum_kv_listener.engine_events import DropReason
from continuum_kv_listener.trtllm_chains import TrtllmChains
from continuum_kv_listener.trtllm_decode import decode_answer
from continuum_kv_listener.trtllm_order import EventOrder
from continuum_shared.prefix_key import PrefixKey
from fuzz.target import Target, plain
from support.source_tree import ROOT

SHAPE = ROOT / "tests/fixtures/wire/trtllm/kv_cache_events_shape.json"
BLOCKS = 8
KEY = PrefixKey(bytes(32))


def _elements(data: bytes) -> list[object] | None:
    """The elements of a readable answer, read independently of the product."""
    try:
        answer = json.loads(data.decode("utf-8"), parse_constant=lambda _: 1 / 0)
    except (ValueError, RecursionError, ZeroDivisionError):
        return None
    return answer if isinstance(answer, list) else None


def _run(data: bytes) -> None:
    answer = decode_answer(data)
    elements = _elements(data)
    if elements is None:
        assert answer == ((), (DropReason.UNDECODABLE_BATCH,))
        return
    assert DropReason.UNDECODABLE_BATCH not in answer.drops
    told = sum(element != {} for element in elements)
    assert len(answer.items) <= told <= len(answer.items) + len(answer.drops)
    order = EventOrder()
    chains = TrtllmChains(
        ChainLimits(max_tracked_blocks=BLOCKS), verify_salt=lambda salt, _: (KEY,) if salt else None
    )
    for item in answer.items:
        order.step(item.rank, item.event_id, item.mark)
        for event in item.events:
            chains.apply(event, 0.0)
            chains.drain(0.0)
            assert chains.stats.blocks <= BLOCKS
    assert len(chains.snapshot()) <= 1


def _made() -> tuple[bytes, ...]:
    tokens = [{"token_id": 1, "token_extra_id": 0}]
    root = {"block_hash": 1, "tokens": tokens, "cache_salt": "cr1.a"}
    tail = {"block_hash": 2, "tokens": tokens * 2, "cache_level": 1}
    datas = [
        {"type": "stored", "parent_hash": None, "blocks": [root, tail]},
        {"type": "updated", "block_hash": 2, "cache_level": {"new_value": 0, "old_value": 1}},
        {"type": "removed", "block_hashes": [2, 1]},
    ]
    rows = [{"event_id": n, "data": data, "attention_dp_rank": 0} for n, data in enumerate(datas)]
    return (
        json.dumps(rows).encode(),
        json.dumps(rows, separators=(",", ":")).encode(),
        b"[]",
        b"[{}, null, 1]",
    )


TARGET = Target(
    name="trtllm_answers",
    opened=plain(_run),
    seeds=(SHAPE.read_bytes(), *_made()),
    tokens=(
        b'"event_id":',
        b'"data":',
        b'"type":"stored"',
        b'"type":"removed"',
        b'"type":"updated"',
        b'"type":"created"',
        b'"blocks":[',
        b'"block_hash":',
        b'"block_hashes":[',
        b'"tokens":[0]',
        b'"cache_salt":"cr1.',
        b'"parent_hash":null',
        b'"attention_dp_rank":1',
        b'"window_size":8',
        b"18446744073709551615",
        b"-1",
        b"1e400",
        b"NaN",
        b"null",
        b"{}",
        b"},{",
        b"\xff",
    ),
    watched=("continuum_kv_listener",),
    smoke=6000,
)
