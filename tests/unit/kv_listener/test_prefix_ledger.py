"""Records are the difference between what is true and what was last said, at most one a prefix."""

import random
from collections import Counter

import pytest

from continuum_kv_listener.chain_stats import TokenCount
from continuum_kv_listener.prefix_ledger import HOT, WARM, DepthBag, PrefixLedger
from continuum_kv_listener.scope import Head, Kind, Scope
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import PrefixKey

A, B = PrefixKey(b"a" * 32), PrefixKey(b"b" * 32)


def scope(*keys: PrefixKey, base: int = 0, depth: int = 16) -> Scope:
    return Scope(Kind.SETTLED, keys=keys, heads=tuple(Head(base, depth) for _ in keys))


def said(action: KvAction, tokens: int | None = None, key: PrefixKey = A) -> KvEvent:
    return KvEvent(action=action, prefix=key, tokens=tokens)


def test_bag_knows_its_largest_through_any_history():
    rng = random.Random(7)
    bag, model = DepthBag(), Counter()
    for _ in range(5_000):
        value = rng.randrange(40)
        if model and rng.random() < 0.5:
            value = rng.choice(sorted(model))
            bag.remove(value)
            model -= Counter([value])
        else:
            bag.add(value)
            model[value] += 1
        assert bag.total == model.total()
        if model:
            assert bag.largest() == max(model)


def test_bag_keeps_no_trace_of_a_leaf_that_moves_for_ever():
    bag = DepthBag()
    bag.add(0)
    bag.add(10**6)
    for depth in range(10_000):
        bag.move(depth, depth + 1)
    assert len(bag._heap) < 100
    assert bag.largest() == 10**6


def test_creation_growth_shrinkage_eviction():
    ledger, one = PrefixLedger(TokenCount.LONGEST_CHAIN), scope(A)
    ledger.add(one, 32, HOT)
    assert ledger.drain(0.0) == [said(KvAction.CREATED, 32)]
    ledger.move(one, 32, 48)
    assert ledger.drain(0.2) == [said(KvAction.CREATED, 48)]
    ledger.move(one, 48, 16)
    assert ledger.drain(0.2) == [said(KvAction.CREATED, 16)]
    ledger.remove(one, 16, HOT)
    assert ledger.drain(0.2) == [said(KvAction.EVICTED)]
    assert ledger.announced == 0
    assert ledger.next_due(0.2) is None


def test_growth_waits_for_its_interval_and_is_told_once():
    ledger, one = PrefixLedger(TokenCount.LONGEST_CHAIN), scope(A)
    ledger.add(one, 16, HOT)
    assert ledger.next_due(5.0) == 5.0
    ledger.drain(5.0)
    for depth in (16, 32, 48):
        ledger.move(one, depth, depth + 16)
        assert ledger.drain(5.05) == []
    assert ledger.next_due(5.05) == pytest.approx(5.1)
    assert ledger.snapshot() == [(A, 16, False)]
    assert ledger.drain(5.1) == [said(KvAction.CREATED, 64)]
    assert ledger.next_due(5.1) is None
    assert ledger.snapshot() == [(A, 64, False)]


def test_shrinkage_eviction_and_tier_changes_do_not_wait():
    ledger, one = PrefixLedger(TokenCount.LONGEST_CHAIN), scope(A)
    ledger.add(one, 64, HOT)
    ledger.drain(0.0)
    ledger.move(one, 64, 48)
    assert ledger.drain(0.01) == [said(KvAction.CREATED, 48)]
    ledger.remove(one, 48, HOT)
    ledger.add(one, 80, WARM)
    assert ledger.drain(0.02) == [said(KvAction.OFFLOADED, 80)]
    ledger.add(one, 16, HOT)
    assert ledger.drain(0.03) == [said(KvAction.RELOADED, 16)]
    ledger.remove(one, 16, HOT)
    ledger.remove(one, 80, WARM)
    assert ledger.drain(0.04) == [said(KvAction.EVICTED)]


def test_a_held_growth_is_overtaken_by_an_eviction():
    ledger, one = PrefixLedger(TokenCount.LONGEST_CHAIN), scope(A)
    ledger.add(one, 16, HOT)
    ledger.drain(0.0)
    ledger.move(one, 16, 32)
    assert ledger.drain(0.01) == []
    ledger.remove(one, 32, HOT)
    assert ledger.drain(0.02) == [said(KvAction.EVICTED)]
    assert ledger.drain(1.0) == []
    ledger.add(one, 16, HOT)
    assert ledger.drain(1.0) == [said(KvAction.CREATED, 16)]


def test_what_comes_and_goes_between_two_drains_is_not_told():
    ledger, one = PrefixLedger(TokenCount.LONGEST_CHAIN), scope(A)
    ledger.add(one, 16, HOT)
    ledger.remove(one, 16, HOT)
    assert ledger.drain(0.0) == []
    ledger.add(one, 16, HOT)
    ledger.drain(0.0)
    ledger.remove(one, 16, HOT)
    ledger.add(one, 16, HOT)
    assert ledger.drain(0.0) == []


def test_the_first_record_of_a_warm_prefix_is_offloaded():
    ledger = PrefixLedger(TokenCount.LONGEST_CHAIN)
    ledger.add(scope(A), 32, WARM)
    assert ledger.drain(0.0) == [said(KvAction.OFFLOADED, 32)]
    assert ledger.snapshot() == [(A, 32, True)]


def test_every_key_of_a_scope_is_told():
    ledger, both = PrefixLedger(TokenCount.LONGEST_CHAIN), scope(A, B)
    ledger.add(both, 32, HOT)
    assert ledger.drain(0.0) == [
        said(KvAction.CREATED, 32, A),
        said(KvAction.CREATED, 32, B),
    ]


def test_a_purge_is_one_record_and_silences_the_rest():
    ledger, one = PrefixLedger(TokenCount.LONGEST_CHAIN), scope(A)
    ledger.add(one, 16, HOT)
    ledger.drain(0.0)
    ledger.add(one, 32, HOT)
    ledger.purge()
    ledger.purge()
    assert ledger.next_due(0.0) == 0.0
    ledger.add(scope(B), 16, HOT)
    assert ledger.drain(0.0) == [
        KvEvent(action=KvAction.PURGED),
        said(KvAction.CREATED, 16, B),
    ]
    assert ledger.announced == 1


@pytest.mark.parametrize(
    ("heads", "tokens"),
    [
        pytest.param([(96, 128)], 128, id="one completing block: to its end"),
        pytest.param([(96, 128), (96, 128)], 96, id="a branch before it: up to the branch"),
        pytest.param([(0, 32), (0, 32)], 1, id="a branch in the first block: hardly anything"),
    ],
)
def test_shared_head(heads: list[tuple[int, int]], tokens: int):
    ledger = PrefixLedger(TokenCount.SHARED_HEAD)
    for base, depth in heads:
        one = scope(A, base=base, depth=depth)
        ledger.add(one, 5_000, HOT)
        ledger.add(one, 9_000, HOT)
        ledger.move(one, 9_000, 9_016)
    assert ledger.drain(0.0) == [said(KvAction.CREATED, tokens)]


def test_shared_head_of_two_keys_and_back_to_nothing():
    ledger, both = PrefixLedger(TokenCount.SHARED_HEAD), scope(A, B, depth=32)
    ledger.add(both, 64, HOT)
    ledger.add(both, 80, WARM)
    ledger.add(both, 96, WARM)
    assert [event.tokens for event in ledger.drain(0.0)] == [32, 32]
    ledger.remove(both, 64, HOT)
    assert {event.action for event in ledger.drain(0.0)} == {KvAction.OFFLOADED}
    ledger.remove(both, 80, WARM)
    ledger.remove(both, 96, WARM)
    assert {event.action for event in ledger.drain(0.0)} == {KvAction.EVICTED}
