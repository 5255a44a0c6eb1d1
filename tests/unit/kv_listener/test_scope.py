"""What a block shares with its descendants."""

from continuum_kv_listener.chain_stats import Unattributed
from continuum_kv_listener.scope import Head, Kind, Scope
from continuum_shared.prefix_key import PrefixKey

A, B = PrefixKey(b"a" * 32), PrefixKey(b"b" * 32)


def pending() -> Scope:
    return Scope(Kind.OPEN, lora_name="x", reason=Unattributed.PENDING)


def test_completed_adds_only_what_is_new_and_is_no_longer_unattributed():
    head_a, head_b = Head(0, 16), Head(16, 32)
    first = pending().completed({A: head_a})
    assert (first.keys, first.heads, first.reason) == ((A,), (head_a,), None)
    assert (first.kind, first.lora_name) == (Kind.OPEN, "x")
    both = first.completed({A: Head(0, 99), B: head_b})
    assert both.keys == (A, B)
    assert both.heads == (head_a, head_b)
    assert both.completed({B: Head(0, 1), A: Head(0, 1)}) is both


def test_turned_counts_a_reason_only_while_there_is_no_key():
    settled = pending().turned(Kind.SETTLED, Unattributed.NO_MATCH)
    assert (settled.kind, settled.reason) == (Kind.SETTLED, Unattributed.NO_MATCH)
    keyed = pending().completed({A: Head(0, 16)}).turned(Kind.MUTE, Unattributed.CHAIN_TOO_LONG)
    assert (keyed.kind, keyed.keys, keyed.reason) == (Kind.MUTE, (A,), None)


def test_under_takes_the_parents_keys_and_adapter():
    parent = pending().completed({A: Head(0, 16)})
    orphan = Scope(Kind.ORPHAN, reason=Unattributed.UNKNOWN_PARENT)
    joined = orphan.under(parent)
    assert (joined.kind, joined.keys, joined.lora_name) == (Kind.ORPHAN, (A,), "x")
    assert joined.heads == parent.heads
    assert joined.under(parent) is joined
    bare = orphan.under(Scope(Kind.OPEN))
    assert bare is orphan


def test_heads_count_by_tier():
    head = Head(16, 32)
    assert [head.more(1), head.more(1), head.more(2)] == [1, 2, 1]
    assert [head.less(1), head.less(2), head.less(1)] == [1, 0, 0]
