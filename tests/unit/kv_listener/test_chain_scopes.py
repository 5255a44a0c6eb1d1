"""Who inherits what when a block is judged, joined, orphaned or loses its text."""

from continuum_kv_listener.chain_stats import Unattributed
from continuum_kv_listener.engine_events import Medium
from continuum_kv_listener.scope import Head, Kind
from support.small_chains import KEYED, OPEN, ORPHAN, SEALED, A, Fixture


def test_open_chains_keep_tokens_until_they_are_judged():
    fix = Fixture()
    fix.store([1, 2, 3], None, OPEN)
    assert fix.chains.shelf.used == 6
    second = fix.chains.graph.nodes[2]
    fix.chains.scopes.rescope(
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
    fix.chains.scopes.rescope(fix.chains.graph.nodes[1], lambda _: KEYED.turned(Kind.SETTLED, None))
    assert fix.told(0.0) == [("cache_created", 2)]
    assert fix.counts() == {None: 1, Unattributed.BLOCK_SIZE: 2}


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
    fix.chains.scopes.rescope(
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
