"""Links, waiting orphans and age, without anything else."""

from continuum_kv_listener.block_graph import BlockGraph, Node, with_kid, without_kid
from continuum_kv_listener.scope import Kind, Scope

SCOPE = Scope(Kind.OPEN)


def node(key: int, parent: object = None) -> Node:
    base = parent.depth if isinstance(parent, Node) else 0
    return Node(key, parent, size=2, depth=base + 2, scope=SCOPE)  # type: ignore[arg-type]


def test_kids_become_a_container_only_at_a_branch():
    a, b, c = node(1), node(2), node(3)
    assert with_kid(None, a) is a
    two = with_kid(a, b)
    assert isinstance(two, dict)
    assert list(two) == [a, b]
    assert with_kid(two, c) is two
    assert without_kid(two, c) is two
    assert without_kid(two, c) is two
    assert without_kid(a, a) is None
    assert without_kid(a, b) is a
    assert without_kid({a: None}, a) is None


def test_path_and_children_follow_the_links():
    graph = BlockGraph()
    root = node(1)
    graph.add(root)
    left, right = node(2, root), node(3, root)
    graph.add(left)
    graph.add(right)
    leaf = node(4, right)
    graph.add(leaf)
    assert root.children() == (left, right)
    assert leaf.path() == [root, right, leaf]
    assert leaf.depth == 6


def test_orphans_are_handed_to_their_parent_once():
    graph = BlockGraph()
    one, two = node(2, 1), node(3, 1)
    assert graph.add(one) == ()
    assert graph.add(two) == ()
    assert graph.waiting == 1
    parent = node(1)
    assert graph.add(parent) == (one, two)
    assert graph.waiting == 0
    graph.join(parent, one)
    graph.join(parent, two)
    assert parent.children() == (one, two)
    assert one.parent is parent


def test_children_of_a_node_that_leaves_wait_for_it():
    graph = BlockGraph()
    root = node(1)
    graph.add(root)
    kid = node(2, root)
    graph.add(kid)
    assert graph.leave(root) == (kid,)
    assert not root.alive
    assert kid.parent == 1
    assert graph.waiting == 1
    assert graph.leave(kid) == ()
    assert graph.waiting == 0
    assert not graph.nodes


def test_a_node_that_leaves_is_no_child_any_more():
    graph = BlockGraph()
    root = node(1)
    graph.add(root)
    left, right = node(2, root), node(3, root)
    graph.add(left)
    graph.add(right)
    graph.leave(left)
    assert root.children() == (right,)
    graph.leave(right)
    assert root.kids is None


def test_a_block_never_becomes_its_own_ancestor():
    """A publisher that names a block as its own parent, or two as each other's, makes no cycle."""
    graph = BlockGraph()
    own = node(1, 1)
    assert graph.add(own) == ()
    assert own.path() == [own]
    child = node(2, 3)
    graph.add(child)
    grandchild = node(3, child)
    assert graph.add(grandchild) == ()
    assert grandchild.path() == [child, grandchild]
    assert graph.leave(own) == ()
    assert graph.leave(child) == (grandchild,)


def test_age_is_by_last_mention():
    graph = BlockGraph()
    nodes = [node(key) for key in (1, 2, 3)]
    for each in nodes:
        graph.add(each)
    assert graph.oldest() is nodes[0]
    graph.touch(nodes[0])
    assert graph.oldest() is nodes[1]
    graph.clear()
    assert not graph.nodes
