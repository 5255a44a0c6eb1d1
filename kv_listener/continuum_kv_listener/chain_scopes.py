"""How far the text down to each block is known, and who inherits it. No I/O, no clock, no verdicts.

A block shares its scope (``scope.py``) with its descendants; what changes one block's changes
theirs: a verdict, the return of a missing ancestor, a lost text, a new reading of all texts.
"""

from collections import defaultdict
from collections.abc import Callable

from continuum_kv_listener.block_graph import BlockGraph, Node, Phase
from continuum_kv_listener.chain_stats import Unattributed
from continuum_kv_listener.doubts import Doubts
from continuum_kv_listener.inquiry import Inquiry
from continuum_kv_listener.prefix_ledger import PrefixLedger
from continuum_kv_listener.residency import Residency
from continuum_kv_listener.scope import Kind, Scope
from continuum_kv_listener.text_shelf import TextShelf

_TEXTUAL = (Kind.OPEN, Kind.ORPHAN)
"""Kinds whose tokens are kept: a key may still be found in them."""


class ChainScopes:
    """Hands scopes down the graph and keeps residency, shelf and inquiry in step with them.

    ``max_chain_tokens`` is the depth down to which texts are asked about.
    """

    def __init__(
        self,
        graph: BlockGraph,
        shelf: TextShelf,
        inquiry: Inquiry,
        *,
        ledger: PrefixLedger,
        doubts: Doubts,
        max_chain_tokens: int,
    ) -> None:
        self._graph = graph
        self._shelf = shelf
        self._inquiry = inquiry
        self._ledger = ledger
        self._doubts = doubts
        self._max_chain_tokens = max_chain_tokens
        self.residency = Residency(ledger, doubts)
        self.counts: defaultdict[Unattributed | None, int] = defaultdict(int)
        """Blocks by the reason for which they have no key; None: they have one."""

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
            bag = node.bag
            if bag:  # only leaves are in the ledger, and they stay what they are
                self._ledger.remove(old, node.depth, bag)
                self._ledger.add(new, node.depth, bag)
            node.scope = new
            if new.reason is not old.reason:
                self.count_as(node, new.reason)
            if new.kind is not Kind.OPEN:
                self._hush(node, new)
            if self._doubts.open and node.seen == self._doubts.age:
                self._ledger.proved(new, node.seen)
            kids = node.kids
            if kids is not None:
                stack.extend((kids,) if isinstance(kids, Node) else kids)

    def _hush(self, node: Node, scope: Scope) -> None:
        """Nothing is asked through this block any more; its text is kept if it may yet matter."""
        if node.phase is not Phase.NONE:
            self._inquiry.forget(node)
        keep = scope.kind is Kind.ORPHAN or scope.reason is Unattributed.NO_MATCH
        if node.tokens is not None and not keep:
            self._shelf.take(node)

    def count_as(self, node: Node, reason: Unattributed | None) -> None:
        """Count the block under another reason, or under none."""
        self.counts[node.reason] -= 1
        node.reason = reason
        self.counts[reason] += 1

    def lose_text(self, top: Node) -> None:
        """Tokens of ``top`` are missing: nothing can be asked through it any more."""
        parent = top.parent
        self.mute(top, Unattributed.TEXT_DROPPED)
        if isinstance(parent, Node):
            self._inquiry.fallen(parent)  # what is left of the path may still tell

    def ask_again(self, now: float) -> int:
        """Texts are read in another way now: ask about every path whose text led to no key.

        Paths that were judged to fit no format are open again as far as their tokens are known; the
        rest of such a path inherits what is found above it. How many paths that are, about.
        """
        tops = [node for node in self._graph.nodes.values() if _baffled(node)]
        for top in tops:
            self._reopen(top)
        return len(tops) + self._inquiry.ask_again(self._graph.nodes.values(), now)

    def mute(self, top: Node, reason: Unattributed) -> None:
        """No question can go through ``top``; what an ancestor completes still holds for it."""
        self.rescope(
            top,
            lambda old: old.turned(Kind.MUTE, reason) if old.kind in _TEXTUAL else old,
        )

    def orphan(self, top: Node) -> None:
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

    def join(self, parent: Node, orphan: Node) -> None:
        """The parent of an orphan (re)appeared (invariant 5)."""
        self._graph.join(parent, orphan)
        over = parent.scope
        if over.kind is not Kind.ORPHAN:  # else where the chain begins is not known yet either
            self._deepen(orphan, parent)
        self.residency.joined(parent, orphan)
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
            if node.tokens is None or node.depth > self._max_chain_tokens:
                self.rescope(node, lambda old: old.under(over))
                lost = node.tokens is None
                self.mute(node, Unattributed.TEXT_DROPPED if lost else Unattributed.CHAIN_TOO_LONG)
                continue
            old = node.scope
            new = memo.get(old)
            if new is None:
                new = memo[old] = old.under(over).turned(Kind.OPEN, Unattributed.PENDING)
            self.residency.withdraw(node)
            node.scope = new
            self.count_as(node, new.reason)
            self.residency.refresh(node)
            self._inquiry.begin(node)
            opened.append(node)
            stack.extend(node.children())
        for node in opened:
            self._inquiry.fallen(node)  # no askable child: a tip

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
            if node.tokens is None or node.depth > self._max_chain_tokens:
                self.rescope(node, lambda old: old.turned(Kind.MUTE, Unattributed.TEXT_DROPPED))
                continue
            new = memo.get(old)
            if new is None:
                new = memo[old] = old.turned(Kind.OPEN, Unattributed.PENDING)
            node.scope = new  # neither has keys: the ledger knows nothing of the node
            self.count_as(node, new.reason)
            self._inquiry.begin(node)
            opened.append(node)
            stack.extend(node.children())
        for node in opened:
            self._inquiry.fallen(node)

    def _deepen(self, top: Node, parent: Node) -> None:
        """A chain's beginning became known: its depths count from there."""
        if top.depth == parent.depth + top.size and top.scope.kind is not Kind.ORPHAN:
            return
        stack = [(top, parent.depth)]
        while stack:
            node, base = stack.pop()
            if node.depth != base + node.size:
                self.residency.withdraw(node)
                node.depth = base + node.size
                self.residency.refresh(node)
            stack.extend((child, node.depth) for child in node.children())


def _baffled(node: Node) -> bool:
    """Whether a chain of known beginning and text was judged to fit no format from here on."""
    if node.scope.kind is not Kind.SETTLED or node.scope.reason is not Unattributed.NO_MATCH:
        return False
    parent = node.parent
    known = parent is None or (isinstance(parent, Node) and parent.scope.kind is Kind.OPEN)
    return known and node.tokens is not None
