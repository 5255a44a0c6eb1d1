"""Which blocks an engine can reach, in which tier, and therefore what each prefix is worth.

A block is *live* while it has a copy, is still believed in (``doubts.py``) and no ancestor is known
to be gone: engines look a prompt up
from its first block on, so what lies behind a hole is no hit. (An ancestor that only *we* forgot,
at a limit or because we came late, is taken to be there.) Counts of copies are references (C16):
they equal stores minus removes and never go below zero.

The ledger is told of leaves only: a live block with a GPU copy and no such child is a hot leaf, one
without GPU copy and without live children a warm one. Its ancestors are worth less for every key
that they have, so they need no entry.
"""

from continuum_kv_listener.block_graph import Node
from continuum_kv_listener.doubts import Doubts
from continuum_kv_listener.engine_events import Medium
from continuum_kv_listener.prefix_ledger import HOT, WARM, PrefixLedger
from continuum_kv_listener.scope import Kind

_FIELD_BITS = 32
_FIELD_MASK = (1 << _FIELD_BITS) - 1
_FIELDS = {Medium.CPU: 0, Medium.DISK: _FIELD_BITS, Medium.EXTERNAL: 2 * _FIELD_BITS}
"""Where in ``Node.low`` the copies of each lower tier are counted."""


def copies(node: Node, medium: Medium) -> int:
    """How many copies of this block lie on ``medium``."""
    if medium is Medium.GPU:
        return node.gpu
    return node.low >> _FIELDS[medium] & _FIELD_MASK


def last_copy(node: Node, medium: Medium) -> bool:
    """Whether the copy on ``medium``, which there is, is the block's only one."""
    if medium is Medium.GPU:
        return node.gpu == 1 and not node.low
    return not node.gpu and node.low == 1 << _FIELDS[medium]


class Residency:
    """Keeps liveness, the counts of live children and the ledger's leaves in step."""

    def __init__(self, ledger: PrefixLedger, doubts: Doubts) -> None:
        self._ledger = ledger
        self._doubts = doubts

    def born(self, node: Node, medium: Medium) -> None:
        """The first copy of a new node that was just linked and has no children yet.

        The caller ends a run of new nodes with :meth:`grown`: all but the last are no leaves, and
        so cost nothing here.
        """
        if medium is Medium.GPU:
            node.gpu = 1
        else:
            node.low = 1 << _FIELDS[medium]
        parent = node.parent
        if not isinstance(parent, Node):
            return
        if parent.cut or not (parent.gpu or parent.low):
            node.cut = True
            return
        if node.scope.kind is Kind.SEALED:
            return
        parent.live_kids += 1
        if node.gpu:
            parent.hot_kids += 1

    def grown(self, parent: object, last: Node) -> None:
        """A run of new nodes below ``parent`` (a node, or nothing known) ends at ``last``."""
        if isinstance(parent, Node) and parent.bag:
            if (
                parent.bag == HOT
                and parent.hot_kids
                and parent.scope is last.scope
                and last.gpu
                and not last.bag
                and not last.hot_kids
            ):  # the usual growth: the leaf moves down its chain (a live parent: not cut)
                self._ledger.move(last.scope, parent.depth, last.depth)
                parent.bag = 0
                last.bag = HOT
                return
            self.refresh(parent)
        self.refresh(last)

    def gain(self, node: Node, medium: Medium) -> None:
        """One more copy of a known node."""
        if medium is Medium.GPU and node.gpu:
            node.gpu += 1
            return
        was = _standing(node)
        hole = not (node.gpu or node.low)
        if medium is Medium.GPU:
            node.gpu += 1
        else:
            node.low += 1 << _FIELDS[medium]
        self._moved(node, was)
        if hole and not node.cut:
            self.cut(node.children(), False)

    def lose(self, node: Node, medium: Medium) -> None:
        """One copy less, of which there must be one. A node with children may be left without."""
        was = _standing(node)
        if medium is Medium.GPU:
            node.gpu -= 1
        else:
            node.low -= 1 << _FIELDS[medium]
        self._moved(node, was)
        if not (node.gpu or node.low) and not node.cut:
            self.cut(node.children(), True)

    def joined(self, parent: Node, orphan: Node) -> None:
        """An orphan was linked below ``parent``: count it and let it share the parent's fate."""
        if orphan.scope.kind is not Kind.SEALED:
            live, hot = _standing(orphan)
            parent.live_kids += live
            parent.hot_kids += hot
        gone = parent.cut or not (parent.gpu or parent.low) or orphan.seen < self._doubts.retired
        if orphan.cut != gone:
            self.cut((orphan,), gone)
        self.refresh(parent)

    def leaving(self, node: Node) -> None:
        """The node is about to leave the graph: out of the ledger and its parent's counts."""
        parent = node.parent
        if node.cut or not isinstance(parent, Node) or node.scope.kind is Kind.SEALED:
            self.withdraw(node)
            return
        if node.gpu:
            parent.live_kids -= 1
            parent.hot_kids -= 1
        elif node.low:
            parent.live_kids -= 1
        self.withdraw(node)
        if not parent.hot_kids:
            self.refresh(parent)

    def fell(self, node: Node, parent: Node) -> None:
        """The same for a leaf on the GPU alone, reachable, below a parent on the GPU."""
        if node.scope.kind is Kind.SEALED:
            self.withdraw(node)
            return
        parent.live_kids -= 1
        parent.hot_kids -= 1
        if not parent.hot_kids:
            if node.bag == HOT and parent.scope is node.scope and not parent.bag:
                self._ledger.move(node.scope, node.depth, parent.depth)  # up its chain
                node.bag = 0
                parent.bag = HOT
                return
            self.withdraw(node)
            self.refresh(parent)
        elif node.bag:
            self.withdraw(node)

    def cut(self, tops: tuple[Node, ...], gone: bool) -> None:
        """An ancestor of these subtrees, or belief in them, went or came back."""
        retired = 0 if gone else self._doubts.retired
        stack = list(tops)
        touched: list[Node] = []
        while stack:
            node = stack.pop()
            if node.cut is gone or node.seen < retired:
                continue
            live, hot = _standing(node)
            node.cut = gone
            parent = node.parent
            if isinstance(parent, Node) and node.scope.kind is not Kind.SEALED:
                now_live, now_hot = _standing(node)
                parent.live_kids += now_live - live
                parent.hot_kids += now_hot - hot
                touched.append(parent)
            touched.append(node)
            if node.gpu or node.low:  # what lies behind another hole stays as it is
                stack.extend(node.children())
        for node in touched:
            self.refresh(node)

    def proved(self, node: Node) -> None:
        """The block is on the GPU now, whatever was counted before; so are those above it."""
        if not node.gpu:
            self.gain(node, Medium.GPU)
        node.gpu = 1
        node.low = 0
        if node.cut:
            self.cut((node,), False)

    def refresh(self, node: Node) -> None:
        """Tell the ledger if the node became a leaf or is one no longer."""
        want = 0
        if not node.cut:
            if node.gpu:
                want = 0 if node.hot_kids else HOT
            elif node.low:
                want = 0 if node.live_kids else WARM
        if want != node.bag:
            if node.bag:
                self._ledger.remove(node.scope, node.depth, node.bag)
            if want:
                self._ledger.add(node.scope, node.depth, want)
            node.bag = want

    def withdraw(self, node: Node) -> None:
        """Take the node out of the ledger before its scope or depth changes; then refresh."""
        if node.bag:
            self._ledger.remove(node.scope, node.depth, node.bag)
            node.bag = 0

    def _moved(self, node: Node, was: tuple[int, int]) -> None:
        live, hot = _standing(node)
        parent = node.parent
        if (live, hot) != was and isinstance(parent, Node) and node.scope.kind is not Kind.SEALED:
            parent.live_kids += live - was[0]
            parent.hot_kids += hot - was[1]
            self.refresh(parent)
        self.refresh(node)


def _standing(node: Node) -> tuple[int, int]:
    """(live, live with a GPU copy), as numbers to count with."""
    if node.cut:
        return (0, 0)
    if node.gpu:
        return (1, 1)
    return (1, 0) if node.low else (0, 0)
