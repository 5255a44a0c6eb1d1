"""Runs of blocks through graph, residency, shelf, inquiry and ledger, one operation at a time."""

from array import array

from continuum_kv_listener.block_chains import BlockChains, Run
from continuum_kv_listener.chain_stats import ChainLimits, TokenCount, Unattributed
from continuum_kv_listener.engine_events import Medium
from continuum_kv_listener.prefix_ledger import PrefixLedger
from continuum_kv_listener.scope import Head, Kind, Scope
from continuum_shared.prefix_key import PrefixKey

A = PrefixKey(b"a" * 32)
KEYED = Scope(Kind.SETTLED, keys=(A,), heads=(Head(0, 2),))
OPEN = Scope(Kind.OPEN, reason=Unattributed.PENDING)
ORPHAN = Scope(Kind.ORPHAN, reason=Unattributed.UNKNOWN_PARENT)
SEALED = Scope(Kind.SEALED, reason=Unattributed.BLOCK_SIZE)


class Fixture:
    def __init__(self, **limits: int) -> None:
        self.ledger = PrefixLedger(TokenCount.LONGEST_CHAIN)
        self.chains = BlockChains(ChainLimits(**limits), self.ledger)

    def store(
        self, keys: list[int], parent: int | None, scope: Scope, *, sealed: bool = False
    ) -> None:
        """Blocks of two tokens, each token the block's key."""
        tokens = array("I", [key for key in keys for _ in range(2)])
        ends = range(2, 2 * len(keys) + 1, 2)
        self.chains.store(Run(keys, parent, ends, tokens, Medium.GPU, scope, sealed), 0.0)

    @property
    def known(self) -> list[object]:
        return list(self.chains.graph.nodes)

    def told(self, now: float) -> list[tuple[str, int | None]]:
        return [(event.action.value, event.tokens) for event in self.ledger.drain(now)]

    def counts(self) -> dict[object, int]:
        return {reason: n for reason, n in self.chains.counts.items() if n}


def test_settled_chains_keep_no_tokens_and_ask_nothing():
    fix = Fixture()
    fix.store([1, 2, 3], None, KEYED)
    assert fix.chains.shelf.used == 0
    assert fix.chains.inquiry.claim(0.0) is None
    assert fix.told(0.0) == [("cache_created", 6)]
    assert fix.counts() == {None: 3}


def test_open_chains_keep_tokens_until_they_are_judged():
    fix = Fixture()
    fix.store([1, 2, 3], None, OPEN)
    assert fix.chains.shelf.used == 6
    second = fix.chains.graph.nodes[2]
    fix.chains.rescope(
        second, lambda old: old.completed({A: Head(2, 4)}).turned(Kind.SETTLED, None)
    )
    assert fix.chains.shelf.used == 2  # the root's: a sibling may diverge below it
    assert fix.told(0.0) == [("cache_created", 6)]
    assert fix.counts() == {Unattributed.PENDING: 1, None: 2}


def test_sealed_blocks_never_inherit():
    fix = Fixture()
    fix.store([1], None, KEYED)
    fix.store([2], 1, SEALED, sealed=True)
    fix.store([3], 2, KEYED)
    fix.chains.rescope(fix.chains.graph.nodes[1], lambda _: KEYED.turned(Kind.SETTLED, None))
    assert fix.told(0.0) == [("cache_created", 2)]
    assert fix.counts() == {None: 1, Unattributed.BLOCK_SIZE: 2}


def test_the_oldest_single_block_goes_and_its_child_stays_attributed():
    fix = Fixture(max_tracked_blocks=3)
    fix.store([1, 2, 3], None, KEYED)
    fix.told(0.0)
    fix.store([4], None, OPEN)
    assert fix.known == [2, 3, 4]
    assert fix.chains.evicted_total == 1
    assert fix.told(1.0) == []  # the prefix has a block yet
    fix.store([5], None, OPEN)
    assert fix.told(1.0) == []
    fix.store([6], None, OPEN)
    assert fix.known == [4, 5, 6]
    assert fix.told(1.0) == [("cache_evicted", None)]


def test_a_parent_in_use_is_not_the_oldest():
    fix = Fixture(max_tracked_blocks=3)
    fix.store([1], None, KEYED)
    fix.store([2], None, OPEN)
    fix.store([3], 1, KEYED)
    fix.store([4], 1, KEYED)
    assert fix.known == [3, 1, 4]


def test_a_run_longer_than_the_limit_keeps_its_end():
    fix = Fixture(max_tracked_blocks=2)
    fix.store([1, 2, 3, 4, 5], None, KEYED)
    assert fix.known == [4, 5]
    assert fix.told(0.0) == [("cache_created", 10)]
    fix.store([6, 7, 8], None, OPEN)
    assert fix.known == [7, 8]
    assert fix.counts() == {Unattributed.UNKNOWN_PARENT: 2}
    assert fix.chains.inquiry.claim(0.0) is None


def test_a_limit_of_one_block():
    fix = Fixture(max_tracked_blocks=1)
    fix.store([1, 2, 3], None, KEYED)
    assert fix.known == [3]
    assert fix.told(0.0) == [("cache_created", 6)]
    fix.chains.release(fix.chains.graph.nodes[3], Medium.GPU)
    assert fix.known == []
    assert fix.told(0.0) == [("cache_evicted", None)]
    assert fix.chains.graph.waiting == 0


def test_a_forgotten_parent_that_comes_back_takes_its_children_back():
    fix = Fixture(max_tracked_blocks=3)
    fix.store([1, 2, 3], None, KEYED)
    fix.store([9], None, OPEN)
    assert fix.known == [2, 3, 9]
    fix.chains.release(fix.chains.graph.nodes[9], Medium.GPU)
    fix.store([1], None, KEYED)
    assert fix.chains.graph.nodes[3].path() == [fix.chains.graph.nodes[key] for key in (1, 2, 3)]
    assert fix.told(0.0) == [("cache_created", 6)]


def test_orphans_join_with_their_depth_keys_and_tokens():
    fix = Fixture()
    fix.store([3, 4], 2, ORPHAN)
    assert fix.counts() == {Unattributed.UNKNOWN_PARENT: 2}
    assert fix.chains.shelf.used == 4
    fix.store([1, 2], None, OPEN)
    assert fix.counts() == {Unattributed.PENDING: 4}
    taken = fix.chains.inquiry.claim(0.0)
    assert taken is not None
    assert [node.key for node in taken[1]] == [1, 2, 3, 4]
    assert [node.depth for node in taken[1]] == [2, 4, 6, 8]
    assert fix.chains.inquiry.claim(0.0) is None


def test_blocks_told_last_first_come_to_the_same():
    fix = Fixture()
    for key in (5, 4, 3, 2):
        fix.store([key], key - 1, ORPHAN)
    fix.store([1], None, OPEN)
    taken = fix.chains.inquiry.claim(0.0)
    assert taken is not None
    assert [(node.key, node.depth) for node in taken[1]] == [
        (1, 2),
        (2, 4),
        (3, 6),
        (4, 8),
        (5, 10),
    ]


def test_a_forgotten_parent_that_comes_back_without_its_own_parent_takes_no_worth():
    fix = Fixture(max_tracked_blocks=3)
    fix.store([1, 2, 3], None, KEYED)
    fix.told(0.0)
    fix.store([8, 9], None, OPEN)
    assert fix.known == [3, 8, 9]
    for key in (8, 9):
        fix.chains.release(fix.chains.graph.nodes[key], Medium.GPU)
    fix.store([2], 1, ORPHAN)
    assert fix.chains.graph.nodes[3].parent is fix.chains.graph.nodes[2]
    assert fix.told(1.0) == []
    fix.store([1], None, KEYED)
    assert fix.told(2.0) == []
    assert [node.depth for node in fix.chains.graph.nodes[3].path()] == [2, 4, 6]


def test_orphans_of_a_settled_parent_inherit_and_drop_their_tokens():
    fix = Fixture()
    fix.store([2, 3], 1, ORPHAN)
    fix.store([1], None, KEYED)
    assert fix.chains.shelf.used == 0
    assert fix.told(0.0) == [("cache_created", 6)]
    assert fix.counts() == {None: 3}


def test_an_orphan_without_its_text_joins_mute_beside_one_that_can_be_asked_about():
    fix = Fixture(max_retained_tokens=4)
    fix.store([2], 1, ORPHAN)
    fix.store([3], 1, ORPHAN)
    fix.store([1], None, OPEN)
    assert fix.counts() == {Unattributed.PENDING: 2, Unattributed.TEXT_DROPPED: 1}
    taken = fix.chains.inquiry.claim(0.0)
    assert taken is not None
    assert [node.key for node in taken[1]] == [1, 3]
    assert fix.chains.inquiry.claim(0.0) is None


def test_what_lies_beyond_the_longest_chain_is_mute():
    fix = Fixture(max_chain_tokens=4)
    fix.store([1, 2, 3, 4], None, OPEN)
    assert fix.chains.shelf.used == 4
    assert fix.counts() == {Unattributed.PENDING: 2, Unattributed.CHAIN_TOO_LONG: 2}
    taken = fix.chains.inquiry.claim(0.0)
    assert taken is not None
    assert [node.key for node in taken[1]] == [1, 2]
    fix.chains.rescope(
        fix.chains.graph.nodes[2],
        lambda old: old.completed({A: Head(2, 4)}).turned(Kind.SETTLED, None),
    )
    assert fix.told(0.0) == [("cache_created", 8)]  # mute blocks inherit all the same


def test_orphans_that_join_beyond_the_longest_chain_are_mute():
    fix = Fixture(max_chain_tokens=4)
    fix.store([3, 4], 2, ORPHAN)
    fix.store([1, 2], None, OPEN)
    assert fix.counts() == {Unattributed.PENDING: 2, Unattributed.CHAIN_TOO_LONG: 2}
    assert fix.chains.shelf.used == 4


def test_clear_forgets_all_but_totals():
    fix = Fixture(max_tracked_blocks=2)
    fix.store([1, 2, 3], None, OPEN)
    fix.chains.clear()
    assert fix.known == []
    assert fix.counts() == {}
    assert fix.chains.shelf.used == 0
    assert fix.chains.evicted_total == 1
    assert fix.chains.inquiry.claim(0.0) is None


def test_empty_ancestors_go_with_their_last_descendant():
    fix = Fixture()
    fix.store([1, 2, 3], None, KEYED)
    nodes = fix.chains.graph.nodes
    fix.chains.release(nodes[1], Medium.GPU)
    fix.chains.release(nodes[2], Medium.GPU)
    assert fix.known == [1, 2, 3]
    fix.chains.release(nodes[3], Medium.GPU)
    assert fix.known == []
