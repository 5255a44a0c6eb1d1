"""Liveness behind holes, counts by medium, and which leaf the ledger hears of."""

import pytest

from continuum_kv_listener.block_graph import BlockGraph, Node
from continuum_kv_listener.chain_stats import TokenCount
from continuum_kv_listener.doubts import Doubts
from continuum_kv_listener.engine_events import Medium
from continuum_kv_listener.prefix_ledger import HOT, WARM, PrefixLedger
from continuum_kv_listener.residency import Residency, copies, last_copy
from continuum_kv_listener.scope import Head, Kind, Scope
from continuum_shared.prefix_key import PrefixKey

A = PrefixKey(b"a" * 32)
SCOPE = Scope(Kind.SETTLED, keys=(A,), heads=(Head(0, 16),))


class Chain:
    """A chain of 16-token blocks with one key, and what the ledger would say of it."""

    def __init__(self, length: int, medium: Medium = Medium.GPU) -> None:
        self.ledger = PrefixLedger(TokenCount.LONGEST_CHAIN)
        self.residency = Residency(self.ledger, Doubts(600.0))
        self.graph = BlockGraph()
        self.nodes: list[Node] = []
        self.now = 0.0
        for index in range(length):
            self.add(self.nodes[-1] if self.nodes else None, index, medium)
        self.residency.grown(None, self.nodes[-1])

    def add(self, parent: Node | None, key: int, medium: Medium = Medium.GPU) -> Node:
        depth = parent.depth if parent else 0
        node = Node(key, parent, size=16, depth=depth + 16, scope=SCOPE)
        self.graph.add(node)
        self.residency.born(node, medium)
        self.nodes.append(node)
        return node

    @property
    def worth(self) -> tuple[int, bool] | None:
        self.now += 10.0
        self.ledger.drain(self.now)
        found = self.ledger.snapshot()
        return found[0][1:] if found else None


def test_only_the_last_block_of_a_run_is_a_leaf():
    chain = Chain(4)
    assert [node.bag for node in chain.nodes] == [0, 0, 0, HOT]
    assert chain.worth == (64, False)


def test_a_leaf_moves_down_with_growth_and_up_with_eviction():
    chain = Chain(2)
    tail = chain.nodes[-1]
    grown = chain.add(tail, 9)
    chain.residency.grown(tail, grown)
    assert chain.worth == (48, False)
    chain.residency.leaving(grown)
    chain.graph.leave(grown)
    assert chain.worth == (32, False)
    assert tail.bag == HOT


def test_a_hole_hides_what_lies_behind_it_until_it_is_filled():
    chain = Chain(4)
    chain.residency.lose(chain.nodes[1], Medium.GPU)
    assert chain.worth == (16, False)
    assert [node.cut for node in chain.nodes] == [False, False, True, True]
    chain.residency.gain(chain.nodes[1], Medium.GPU)
    assert chain.worth == (64, False)
    assert not any(node.cut for node in chain.nodes)


def test_a_second_hole_stays_when_the_first_is_filled():
    chain = Chain(5)
    chain.residency.lose(chain.nodes[3], Medium.GPU)
    chain.residency.lose(chain.nodes[1], Medium.GPU)
    assert chain.worth == (16, False)
    chain.residency.gain(chain.nodes[1], Medium.GPU)
    assert chain.worth == (48, False)
    assert chain.nodes[4].cut
    chain.residency.gain(chain.nodes[3], Medium.GPU)
    assert chain.worth == (80, False)


def test_nothing_reachable_is_nothing_announced():
    chain = Chain(3)
    chain.residency.lose(chain.nodes[0], Medium.GPU)
    assert chain.worth is None


def test_each_medium_counts_for_itself():
    chain = Chain(1)
    node = chain.nodes[0]
    for medium, times in ((Medium.GPU, 1), (Medium.CPU, 2), (Medium.DISK, 3), (Medium.EXTERNAL, 1)):
        for _ in range(times):
            chain.residency.gain(node, medium)
    assert [copies(node, medium) for medium in Medium] == [2, 2, 3, 1]
    chain.residency.lose(node, Medium.DISK)
    assert [copies(node, medium) for medium in Medium] == [2, 2, 2, 1]


@pytest.mark.parametrize("medium", list(Medium))
def test_last_copy(medium: Medium):
    chain = Chain(1, medium)
    node = chain.nodes[0]
    assert last_copy(node, medium)
    other = Medium.CPU if medium is Medium.GPU else Medium.GPU
    chain.residency.gain(node, other)
    assert not last_copy(node, medium)
    chain.residency.lose(node, other)
    chain.residency.gain(node, medium)
    assert not last_copy(node, medium)


def test_offload_reload_and_a_tail_on_a_lower_tier():
    """Decisions C13: a lower copy beside a GPU copy says nothing; the GPU copy gone, it is warm."""
    chain = Chain(2)
    for node in chain.nodes:
        chain.residency.gain(node, Medium.CPU)
    assert chain.worth == (32, False)
    chain.residency.lose(chain.nodes[1], Medium.GPU)
    assert chain.worth == (16, False)
    chain.residency.lose(chain.nodes[0], Medium.GPU)
    assert chain.worth == (32, True)
    assert [node.bag for node in chain.nodes] == [0, WARM]
    chain.residency.gain(chain.nodes[0], Medium.GPU)
    assert chain.worth == (16, False)


def test_a_child_of_a_hole_is_cut_from_the_start():
    chain = Chain(2)
    chain.residency.lose(chain.nodes[0], Medium.GPU)
    late = chain.add(chain.nodes[1], 7)
    chain.residency.grown(chain.nodes[1], late)
    assert late.cut
    assert chain.worth is None
