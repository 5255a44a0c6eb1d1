"""Runs of blocks through graph, residency, shelf, inquiry and ledger, one operation at a time."""

from continuum_kv_listener.chain_stats import Unattributed
from continuum_kv_listener.engine_events import Medium
from support.small_chains import KEYED, OPEN, ORPHAN, Fixture


def test_settled_chains_keep_no_tokens_and_ask_nothing():
    fix = Fixture()
    fix.store([1, 2, 3], None, KEYED)
    assert fix.chains.shelf.used == 0
    assert fix.chains.inquiry.claim(0.0) is None
    assert fix.told(0.0) == [("cache_created", 6)]
    assert fix.counts() == {None: 3}


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


def test_an_answers_next_block_takes_the_short_way_to_the_same():
    fix = Fixture()
    fix.store([1, 2], None, KEYED)
    assert fix.chains.append(2, 3, 2)
    assert fix.told(0.0) == [("cache_created", 6)]
    assert fix.counts() == {None: 3}
    assert fix.chains.gpu_copies == 3
    assert not fix.chains.append(2, 3, 2)  # known: one copy more
    assert not fix.chains.append(9, 4, 2)  # below nothing that is known
    fix.store([5], None, OPEN)
    assert not fix.chains.append(5, 6, 2)  # its text is wanted
    fix.chains.doubts.begin(0.0)
    assert not fix.chains.append(3, 7, 2)  # its parent is to be proved first
    assert fix.known == [1, 2, 3, 5]
