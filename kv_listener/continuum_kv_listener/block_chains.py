"""Chains of blocks of one engine: stores, removes, joins, limits. No I/O, no clock, no verdicts.

Puts the parts together: the graph (who is whose child), residency (what the engine can reach), the
text shelf (tokens kept), the inquiry (what to ask) and the ledger (what to tell). Every operation
leaves all five in step; nothing here awaits.
"""

from collections.abc import Sequence
from typing import NamedTuple

from continuum_kv_listener.block_graph import (
    BlockGraph,
    Node,
    NodeKey,
    Phase,
    with_kid,
    without_kid,
)
from continuum_kv_listener.chain_scopes import ChainScopes
from continuum_kv_listener.chain_stats import ChainLimits, Unattributed
from continuum_kv_listener.doubts import Doubts
from continuum_kv_listener.engine_events import Medium, Tokens
from continuum_kv_listener.inquiry import Inquiry
from continuum_kv_listener.prefix_ledger import PrefixLedger
from continuum_kv_listener.residency import last_copy
from continuum_kv_listener.scope import Kind, Scope
from continuum_kv_listener.text_shelf import TOKEN_BYTES, TextShelf

_GROWING = (Kind.OPEN, Kind.SETTLED)
"""Kinds of chains that usually grow."""
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

    def __init__(
        self, limits: ChainLimits, ledger: PrefixLedger, *, doubt_seconds: float = 600.0
    ) -> None:
        self._limits = limits
        self._ledger = ledger
        self.doubts = Doubts(doubt_seconds)
        self.graph = BlockGraph()
        self.shelf = TextShelf(limits.max_retained_tokens)
        self.inquiry = Inquiry()
        self.scopes = ChainScopes(
            self.graph,
            self.shelf,
            self.inquiry,
            ledger=ledger,
            doubts=self.doubts,
            max_chain_tokens=limits.max_chain_tokens,
        )
        self._residency = self.scopes.residency
        self.evicted_total = 0
        self.gpu_copies = 0

    def store(self, run: Run, now: float) -> None:
        """Count one copy more of each block, creating those not known."""
        nodes = self.graph.nodes
        prev = nodes.get(run.parent) if run.parent is not None else None
        seen = age = self.doubts.age
        hot = run.medium is Medium.GPU
        if prev is not None:
            self.graph.touch(prev)
            if prev.seen != age:
                if hot:
                    self._prove(prev)
                else:
                    seen = prev.seen  # a lower copy says nothing of those above it
        if hot and (prev is not None or run.parent is None) and self._grow(prev, run, seen, now):
            return
        above: Node | NodeKey | None = prev if prev is not None else run.parent
        fresh: list[Node] = []
        born = 0
        start = 0
        for key, end in zip(run.keys, run.ends, strict=True):
            node = nodes.get(key)
            if node is None:
                node = self._create(key, above, (start, end), run, seen)
                fresh.append(node)
                born += hot
            else:
                if fresh:
                    self._finish(fresh, now)
                    fresh = []
                self.hold(node, run.medium)
                seen = node.seen
            above = node
            start = end
        if fresh:
            self._finish(fresh, now)
        self.gpu_copies += born

    def append(self, parent: NodeKey, key: NodeKey, size: int) -> bool:
        """One block more on the GPU at the end of a chain that is judged for good, as answers grow:
        :meth:`store` at the least cost. False: this is something else, and nothing is done."""
        graph = self.graph
        nodes = graph.nodes
        prev = nodes.get(parent)
        if (
            prev is None
            or prev.scope.kind is not Kind.SETTLED
            or prev.scope.reason is Unattributed.NO_MATCH
            or prev.cut
            or not prev.gpu
            or self.doubts.open
            or prev.seen != self.doubts.age
            or key in nodes
            or graph.waiting
            or len(nodes) >= self._limits.max_tracked_blocks
        ):
            return False
        scope = prev.scope
        nodes.move_to_end(parent)
        node = Node(key, prev, size, prev.depth + size, scope, prev.seen)
        node.gpu = 1
        kids = prev.kids
        prev.kids = node if kids is None else with_kid(kids, node)
        prev.live_kids += 1
        prev.hot_kids += 1
        nodes[key] = node
        self.scopes.counts[scope.reason] += 1
        self.gpu_copies += 1
        self._residency.grown(prev, node)
        return True

    def _grow(self, prev: Node | None, run: Run, seen: int, now: float) -> bool:
        """The usual growth at little cost: blocks on the GPU, none of them known, at a prompt's
        start or below a block that is there. False: this is something else, and nothing is done."""
        scope = run.scope if prev is None else prev.scope
        if not self._may_grow(prev, run, scope):
            return False
        keys, nodes = run.keys, self.graph.nodes
        open_ = scope.kind is Kind.OPEN
        raw = run.tokens.tobytes() if open_ else b""
        texts = self.shelf.order
        phase = Phase.ASKABLE
        if prev is not None and prev.phase is Phase.FLYING:
            phase = Phase.FLYING
        above, base, start = prev, prev.depth if prev is not None else 0, 0
        for key, end in zip(keys, run.ends, strict=True):
            node = Node(key, above, end - start, base + end, scope, seen)
            node.gpu = 1
            if above is not None:
                kids = above.kids
                above.kids = node if kids is None else with_kid(kids, node)
                above.live_kids += 1
                above.hot_kids += 1
            if open_:
                node.tokens = raw[TOKEN_BYTES * start : TOKEN_BYTES * end]
                node.phase = phase
                node.mentions = 1
                texts.append(node)
            nodes[key] = above = node
            start = end
        assert above is not None
        self.scopes.counts[scope.reason] += len(keys)
        self.gpu_copies += len(keys)
        self._residency.grown(prev, above)
        if self.doubts.open:
            self._ledger.proved(scope, seen)
        if open_:
            self.shelf.added(len(keys), start)
            self.inquiry.grown(prev, above, now)
        return True

    def _may_grow(self, prev: Node | None, run: Run, scope: Scope) -> bool:
        keys, nodes, limits = run.keys, self.graph.nodes, self._limits
        if run.sealed or self.graph.waiting or scope.kind not in _GROWING:
            return False
        if prev is not None and (prev.cut or not (prev.gpu or prev.low)):
            return False
        if scope.kind is Kind.OPEN:
            size = len(run.tokens)
            depth = size if prev is None else size + prev.depth
            if depth > limits.max_chain_tokens or self.shelf.used + size > self.shelf.capacity:
                return False
        elif scope.reason is Unattributed.NO_MATCH:
            return False
        return (
            len(nodes) + len(keys) <= limits.max_tracked_blocks
            and nodes.keys().isdisjoint(keys)
            and (len(keys) == 1 or len(set(keys)) == len(keys))
        )

    def hold(self, node: Node, medium: Medium) -> None:
        """One copy more of a known block, told with or without its text (C14)."""
        self.graph.touch(node)
        if medium is Medium.GPU:
            if node.seen != self.doubts.age:
                self._prove(node)
                return
            self.gpu_copies += 1
        self._residency.gain(node, medium)

    def release(self, node: Node, medium: Medium) -> None:
        """One copy less of a block that has one on ``medium``."""
        if medium is Medium.GPU:
            if node.gpu > 1:
                node.gpu -= 1
                self.gpu_copies -= 1
                return
            if node.kids is None and not node.low:  # the usual end: tail first
                parent = node.parent
                if isinstance(parent, Node) and parent.gpu and not node.cut:
                    self._fall(node, parent)
                else:
                    self._remove(node)
                return
            self.gpu_copies -= 1
        elif node.kids is None and last_copy(node, medium):
            self._remove(node)
            return
        self._residency.lose(node, medium)

    def clear(self) -> None:
        """Forget every block; totals stay."""
        for node in self.graph.nodes.values():
            node.alive = False
            node.parent = node.kids = node.tip = None  # break the cycles: nothing is left to the GC
        self.graph.clear()
        self.shelf.clear()
        self.inquiry.clear()
        self.scopes.counts.clear()
        self.doubts.settle()
        self.gpu_copies = 0

    def retire(self, now: float) -> None:
        """Suspects that nothing has proved in time are believed no longer. They stay known: a later
        store below one of them proves it after all."""
        if self.doubts.retire(now):
            bound = self.doubts.retired
            self._residency.cut(
                tuple(node for node in self.graph.nodes.values() if node.seen < bound), True
            )

    def shed(self, most: int) -> int:
        """Drop copies until ``most`` are left on the GPU, which is all that the engine has (C16):
        first those that a block is said to have beside its own, then ends of chains; each time the
        least recently mentioned ones. How many were dropped."""
        over = dropped = max(0, self.gpu_copies - most)
        nodes = self.graph.nodes
        for node in [node for node in nodes.values() if node.gpu > 1] if over else ():
            while over and node.gpu > 1:
                self.release(node, Medium.GPU)
                over -= 1
        while over:
            for node in [node for node in nodes.values() if node.gpu and not node.hot_kids]:
                if not over:
                    break
                self.release(node, Medium.GPU)
                over -= 1
        return dropped

    def _prove(self, node: Node) -> None:
        """The engine has just stored this block again, or one below it, on the GPU: it and all
        above it are there. What was counted before the loss may be gone: one copy is sure."""
        age = self.doubts.age
        path: list[Node] = []
        above: object = node
        while isinstance(above, Node) and above.seen != age:
            path.append(above)
            above = above.parent
        for each in reversed(path):
            each.seen = age
            self.gpu_copies += 1 - each.gpu
            self._residency.proved(each)
            self._ledger.proved(each.scope, age)

    def _create(
        self, key: NodeKey, above: Node | NodeKey | None, ends: tuple[int, int], run: Run, seen: int
    ) -> Node:
        while len(self.graph.nodes) >= self._limits.max_tracked_blocks:
            self._remove(self.graph.oldest())
            self.evicted_total += 1
        start, end = ends
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
        node = Node(key, above, size, base + size, scope, seen)
        if scope.kind is Kind.OPEN or scope.kind is Kind.ORPHAN:
            self._keep_text(node, run.tokens[start:end].tobytes())
        elif scope.reason is Unattributed.NO_MATCH and node.depth <= UNMATCHED_TEXT:
            self.shelf.put(node, run.tokens[start:end].tobytes())
        self.scopes.counts[node.reason] += 1
        orphans = self.graph.add(node)
        self._residency.born(node, run.medium)
        if node.scope.kind is Kind.OPEN:
            self.inquiry.begin(node)
        for orphan in orphans:
            self.scopes.join(node, orphan)
        return node

    def _keep_text(self, node: Node, text: bytes) -> None:
        """Shelve a new node's tokens, or make it mute."""
        if node.depth > self._limits.max_chain_tokens:
            reason = Unattributed.CHAIN_TOO_LONG
        elif not self.shelf.put(node, text):
            reason = Unattributed.TEXT_DROPPED
        else:
            return
        node.scope = node.scope.turned(Kind.MUTE, reason)
        node.reason = reason

    def _finish(self, fresh: list[Node], now: float) -> None:
        """End a run of new blocks: its last one is a leaf, its last askable one a tip."""
        parent = fresh[0].parent
        self._residency.grown(parent, fresh[-1])
        if self.doubts.open and fresh[-1].gpu:
            self._ledger.proved(fresh[-1].scope, self.doubts.age)
        if fresh[0].phase is Phase.NONE and fresh[0].alive:
            return
        last = next((node for node in reversed(fresh) if node.phase is not Phase.NONE), None)
        if last is not None:
            self.inquiry.grown(parent if isinstance(parent, Node) else None, last, now)

    def _fall(self, node: Node, parent: Node) -> None:
        """The usual end of a leaf, its parent on the GPU: :meth:`_remove` with less to look at."""
        self._residency.fell(node, parent)
        if node.tokens is not None:
            self.shelf.take(node)
        self.gpu_copies -= 1
        self.scopes.counts[node.reason] -= 1
        del self.graph.nodes[node.key]
        node.alive = False
        node.parent = None
        parent.kids = None if parent.kids is node else without_kid(parent.kids, node)
        if node.phase is not Phase.NONE:
            self.inquiry.forget(node)
            self.inquiry.fallen(parent)

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
            self.gpu_copies -= node.gpu
            self.scopes.counts[node.reason] -= 1
            for child in self.graph.leave(node):
                self.scopes.orphan(child)
            if not isinstance(parent, Node):
                return
            if parent.kids is not None or parent.gpu or parent.low:
                if asked:
                    self.inquiry.fallen(parent)
                return
            node = parent
