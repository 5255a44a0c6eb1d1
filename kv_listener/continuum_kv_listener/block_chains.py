"""Chains of blocks of one engine: stores, removes, joins, limits. No I/O, no clock, no verdicts.

Puts the parts together: the graph (who is whose child), residency (what the engine can reach), the
text shelf (tokens kept), the inquiry (what to ask) and the ledger (what to tell). Every operation
leaves all five in step; nothing here awaits.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from continuum_kv_listener.block_graph import BlockGraph, Node, NodeKey, Phase
from continuum_kv_listener.chain_stats import ChainLimits, Unattributed
from continuum_kv_listener.engine_events import Medium, Tokens
from continuum_kv_listener.inquiry import Inquiry
from continuum_kv_listener.prefix_ledger import PrefixLedger
from continuum_kv_listener.residency import Residency, last_copy
from continuum_kv_listener.scope import Kind, Scope
from continuum_kv_listener.text_shelf import TextShelf

_TEXTUAL = (Kind.OPEN, Kind.ORPHAN)
"""Kinds whose tokens are kept: a key may still be found in them."""
UNMATCHED_TEXT = 4096
"""Tokens from the root that a chain which fits no format keeps, for the day the format is learnt
anew: more than any keyed text of the default ``max_prefix_length`` with what stands before it."""


class Run(NamedTuple):
    """Blocks to store one below the other, the first below ``parent``.

    ``ends`` are the offsets in ``tokens`` at which the blocks end. ``scope`` is what new blocks get
    when ``parent`` is None or not known; with ``sealed`` every new block gets it (C20).
    """

    keys: Sequence[NodeKey]
    parent: NodeKey | None
    ends: Sequence[int]
    tokens: Tokens
    medium: Medium
    scope: Scope
    sealed: bool


class BlockChains:
    """All known blocks of one engine, within ``limits``."""

    def __init__(self, limits: ChainLimits, ledger: PrefixLedger) -> None:
        self._limits = limits
        self.graph = BlockGraph()
        self.shelf = TextShelf(limits.max_retained_tokens)
        self.inquiry = Inquiry()
        self._residency = Residency(ledger)
        self.counts: defaultdict[Unattributed | None, int] = defaultdict(int)
        self.evicted_total = 0

    def store(self, run: Run, now: float) -> None:
        """Count one copy more of each block, creating those not known."""
        nodes = self.graph.nodes
        prev = nodes.get(run.parent) if run.parent is not None else None
        if prev is not None:
            self.graph.touch(prev)
        above: Node | NodeKey | None = prev if prev is not None else run.parent
        fresh: list[Node] = []
        start = 0
        for key, end in zip(run.keys, run.ends, strict=True):
            node = nodes.get(key)
            if node is None:
                node = self._create(key, above, start, end, run)
                fresh.append(node)
            else:
                if fresh:
                    self._finish(fresh, now)
                    fresh = []
                self.graph.touch(node)
                self._residency.gain(node, run.medium)
            above = node
            start = end
        if fresh:
            self._finish(fresh, now)

    def hold(self, node: Node, medium: Medium) -> None:
        """One copy more of a known block, told without its text (C14)."""
        self.graph.touch(node)
        self._residency.gain(node, medium)

    def release(self, node: Node, medium: Medium) -> None:
        """One copy less of a block that has one on ``medium``."""
        if medium is Medium.GPU and node.gpu > 1:
            node.gpu -= 1
        elif node.kids is None and last_copy(node, medium):  # the usual end: tail first
            self._remove(node)
        else:
            self._residency.lose(node, medium)

    def rescope(self, top: Node, change: Callable[[Scope], Scope]) -> None:
        """Give ``top`` and its descendants the scope that ``change`` makes of theirs. Sealed blocks
        keep theirs, and a block whose scope does not change ends the descent."""
        memo: dict[Scope, Scope] = {}
        stack = [top]
        while stack:
            node = stack.pop()
            old = node.scope
            if old.kind is Kind.SEALED:
                continue
            new = memo.get(old)
            if new is None:
                new = memo[old] = change(old)
            if new is old:
                continue
            self._residency.withdraw(node)
            node.scope = new
            if new.reason is not old.reason:
                self.count_as(node, new.reason)
            if new.kind is not Kind.OPEN:
                if node.phase is not Phase.NONE:
                    self.inquiry.forget(node)
                if node.tokens is not None and not (
                    new.kind is Kind.ORPHAN or new.reason is Unattributed.NO_MATCH
                ):
                    self.shelf.take(node)
            self._residency.refresh(node)
            stack.extend(node.children())

    def count_as(self, node: Node, reason: Unattributed | None) -> None:
        """Count the block under another reason, or under none."""
        self.counts[node.reason] -= 1
        node.reason = reason
        self.counts[reason] += 1

    def lose_text(self, top: Node) -> None:
        """Tokens of ``top`` are missing: nothing can be asked through it any more."""
        parent = top.parent
        self._mute(top, Unattributed.TEXT_DROPPED)
        if isinstance(parent, Node):
            self.inquiry.fallen(parent)  # what is left of the path may still tell

    def ask_again(self, now: float) -> int:
        """Texts are read in another way now: ask about every path whose text led to no key.

        Paths that were judged to fit no format are open again as far as their tokens are known; the
        rest of such a path inherits what is found above it. How many paths that are, about.
        """
        tops = [node for node in self.graph.nodes.values() if _baffled(node)]
        for top in tops:
            self._reopen(top)
        return len(tops) + self.inquiry.ask_again(self.graph.nodes.values(), now)

    def clear(self) -> None:
        """Forget every block; totals stay."""
        for node in self.graph.nodes.values():
            node.alive = False
            node.parent = node.kids = node.tip = None  # break the cycles: nothing is left to the GC
        self.graph.clear()
        self.shelf.clear()
        self.inquiry.clear()
        self.counts.clear()

    def _create(
        self, key: NodeKey, above: Node | NodeKey | None, start: int, end: int, run: Run
    ) -> Node:
        while len(self.graph.nodes) >= self._limits.max_tracked_blocks:
            self._remove(self.graph.oldest())
            self.evicted_total += 1
        size = end - start
        if isinstance(above, Node):
            scope = above.scope
            base = above.depth
            if not above.alive:  # a limit took it just now: its child starts a chain of its own
                above = above.key
                if scope.kind is Kind.OPEN:
                    scope = scope.turned(Kind.ORPHAN, Unattributed.UNKNOWN_PARENT)
        else:
            scope = run.scope
            base = 0
        if run.sealed:
            scope = run.scope
        node = Node(key, above, size=size, depth=base + size, scope=scope)
        if scope.kind is Kind.OPEN or scope.kind is Kind.ORPHAN:
            self._keep_text(node, run.tokens[start:end])
        elif scope.reason is Unattributed.NO_MATCH and node.depth <= UNMATCHED_TEXT:
            self.shelf.put(node, run.tokens[start:end])
        self.counts[node.reason] += 1
        orphans = self.graph.add(node)
        self._residency.born(node, run.medium)
        if node.scope.kind is Kind.OPEN:
            self.inquiry.begin(node)
        for orphan in orphans:
            self._join(node, orphan)
        return node

    def _keep_text(self, node: Node, text: Tokens) -> None:
        """Shelve a new node's tokens, or make it mute."""
        if node.depth > self._limits.max_chain_tokens:
            reason = Unattributed.CHAIN_TOO_LONG
        elif not self.shelf.put(node, text):
            reason = Unattributed.TEXT_DROPPED
        else:
            return
        node.scope = node.scope.turned(Kind.MUTE, reason)
        node.reason = reason

    def _mute(self, top: Node, reason: Unattributed) -> None:
        """No question can go through ``top``; what an ancestor completes still holds for it."""
        self.rescope(
            top,
            lambda old: old.turned(Kind.MUTE, reason) if old.kind in _TEXTUAL else old,
        )

    def _finish(self, fresh: list[Node], now: float) -> None:
        """End a run of new blocks: its last one is a leaf, its last askable one a tip."""
        parent = fresh[0].parent
        self._residency.grown(parent, fresh[-1])
        if fresh[0].phase is Phase.NONE and fresh[0].alive:
            return
        last = next((node for node in reversed(fresh) if node.phase is not Phase.NONE), None)
        if last is not None:
            self.inquiry.grown(parent if isinstance(parent, Node) else None, last, now)

    def _remove(self, node: Node) -> None:
        """Take a block out of everything; then its ancestors that no copy and no child holds."""
        while True:
            parent = node.parent
            asked = node.phase is not Phase.NONE
            self._residency.leaving(node)
            if asked:
                self.inquiry.forget(node)
            if node.tokens is not None:
                self.shelf.take(node)
            self.counts[node.reason] -= 1
            for child in self.graph.leave(node):
                self._orphan(child)
            if not isinstance(parent, Node):
                return
            if parent.kids is not None or parent.gpu or parent.low:
                if asked:
                    self.inquiry.fallen(parent)
                return
            node = parent

    def _orphan(self, top: Node) -> None:
        """The path above ``top`` is not known any more. It may come back: texts and keys stay."""
        if top.phase is not Phase.NONE:
            self.rescope(
                top,
                lambda old: (
                    old.turned(Kind.ORPHAN, Unattributed.UNKNOWN_PARENT)
                    if old.kind is Kind.OPEN
                    else old
                ),
            )

    def _join(self, parent: Node, orphan: Node) -> None:
        """The parent of an orphan (re)appeared (invariant 5)."""
        self.graph.join(parent, orphan)
        over = parent.scope
        if over.kind is not Kind.ORPHAN:  # else where the chain begins is not known yet either
            self._deepen(orphan, parent)
        self._residency.joined(parent, orphan)
        if over.kind is Kind.SETTLED:
            self.rescope(orphan, lambda _: over)
        elif over.kind is Kind.MUTE:
            self.rescope(
                orphan,
                lambda old: (
                    old.under(over).turned(Kind.MUTE, over.reason)
                    if old.kind in _TEXTUAL
                    else old.under(over)
                ),
            )
        elif over.kind is not Kind.SEALED:
            if over.kind is Kind.OPEN and orphan.scope.kind is Kind.ORPHAN:
                self._open(orphan, parent)
            else:
                self.rescope(orphan, lambda old: old.under(over))

    def _open(self, top: Node, parent: Node) -> None:
        """A subtree of orphans got its beginning: its texts can be asked about now."""
        over = parent.scope
        memo: dict[Scope, Scope] = {}
        opened: list[Node] = []
        stack = [top]
        while stack:
            node = stack.pop()
            if node.scope.kind is not Kind.ORPHAN:
                self.rescope(node, lambda old: old.under(over))
                continue
            if node.tokens is None or node.depth > self._limits.max_chain_tokens:
                self.rescope(node, lambda old: old.under(over))
                lost = node.tokens is None
                self._mute(node, Unattributed.TEXT_DROPPED if lost else Unattributed.CHAIN_TOO_LONG)
                continue
            old = node.scope
            new = memo.get(old)
            if new is None:
                new = memo[old] = old.under(over).turned(Kind.OPEN, Unattributed.PENDING)
            self._residency.withdraw(node)
            node.scope = new
            self.count_as(node, new.reason)
            self._residency.refresh(node)
            self.inquiry.begin(node)
            opened.append(node)
            stack.extend(node.children())
        for node in opened:
            self.inquiry.fallen(node)  # no askable child: a tip

    def _reopen(self, top: Node) -> None:
        """Judged chains of known beginning are to be asked about again."""
        memo: dict[Scope, Scope] = {}
        opened: list[Node] = []
        stack = [top]
        while stack:
            node = stack.pop()
            old = node.scope
            if old.kind is not Kind.SETTLED:
                continue
            if node.tokens is None or node.depth > self._limits.max_chain_tokens:
                self.rescope(node, lambda old: old.turned(Kind.MUTE, Unattributed.TEXT_DROPPED))
                continue
            new = memo.get(old)
            if new is None:
                new = memo[old] = old.turned(Kind.OPEN, Unattributed.PENDING)
            node.scope = new  # neither has keys: the ledger knows nothing of the node
            self.count_as(node, new.reason)
            self.inquiry.begin(node)
            opened.append(node)
            stack.extend(node.children())
        for node in opened:
            self.inquiry.fallen(node)

    def _deepen(self, top: Node, parent: Node) -> None:
        """A chain's beginning became known: its depths count from there."""
        if top.depth == parent.depth + top.size and top.scope.kind is not Kind.ORPHAN:
            return
        stack = [(top, parent.depth)]
        while stack:
            node, base = stack.pop()
            if node.depth != base + node.size:
                self._residency.withdraw(node)
                node.depth = base + node.size
                self._residency.refresh(node)
            stack.extend((child, node.depth) for child in node.children())


def _baffled(node: Node) -> bool:
    """Whether a chain of known beginning and text was judged to fit no format from here on."""
    if node.scope.kind is not Kind.SETTLED or node.scope.reason is not Unattributed.NO_MATCH:
        return False
    parent = node.parent
    known = parent is None or (isinstance(parent, Node) and parent.scope.kind is Kind.OPEN)
    return known and node.tokens is not None
