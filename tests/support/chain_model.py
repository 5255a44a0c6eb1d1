"""A naive engine and a naive tracker of it that keep whole chains, and an audit of the real one.

The universe of prompts is small so that chains share heads, branch inside and after the keyed text,
and come back. A block's content is one of a few token tuples; its hash is made from its whole path.
The keyed text is told from the tokens alone, so the model knows every key without asking.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from continuum_kv_listener.attribution_types import (
    Completion,
    PathVerdict,
    Question,
    UnattributedReason,
)
from continuum_kv_listener.block_graph import Node, Phase, TipState
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.chain_stats import Unattributed
from continuum_kv_listener.engine_events import Medium, Removed, Stored
from continuum_kv_listener.prefix_ledger import HOT, WARM
from continuum_kv_listener.scope import Kind
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import PrefixKey

END = 9
BLOCKS: tuple[tuple[int, ...], ...] = ((1, 2), (1, END), (0, 3), (3, 3), (4, END, 5))
CUT = 8
"""Tokens after which the keyed text is complete without an END, as max_prefix_length does."""

Path = tuple[int, ...]
"""Indices into BLOCKS from the root down to one block."""


def tokens_of(path: Path) -> list[int]:
    return [token for index in path for token in BLOCKS[index]]


def hash_of(path: Path) -> int:
    return int.from_bytes(sha256(repr(path).encode()).digest()[:8], "big")


def key_of(tokens: Sequence[int]) -> PrefixKey:
    return PrefixKey(sha256(bytes(list(tokens))).digest())


def completions(tokens: Sequence[int]) -> tuple[list[tuple[int, PrefixKey]], bool, bool]:
    """(offset, key) of each key that these tokens complete; whether no more can come; whether the
    text is of no known form. A first token 0 means a built-in default: a second key follows."""
    if tokens and tokens[0] == 3:
        return [], len(tokens) >= 4, True
    found: list[tuple[int, PrefixKey]] = []
    start = 0
    for _ in range(2 if tokens and tokens[0] == 0 else 1):
        head = list(tokens[start : start + CUT])
        end = start + head.index(END) + 1 if END in head else start + CUT
        if end > len(tokens):
            return found, False, False
        found.append((end, key_of(tokens[:end])))
        start = end
    return found, bool(tokens), False


def judge(question: Question) -> PathVerdict:
    """What a perfect attributor answers."""
    found, done, hopeless = completions(question.tokens)
    return PathVerdict(
        completions=tuple(
            Completion(
                block_index=next(i for i, e in enumerate(question.block_ends) if e >= offset),
                keys=(key,),
            )
            for offset, key in found
        ),
        done=done,
        reason=UnattributedReason.NO_MATCH if hopeless and done else None,
    )


def misjudge(question: Question) -> PathVerdict:
    """What an attributor answers that has learnt a format which fits nothing."""
    return PathVerdict(done=len(question.tokens) >= 4, reason=UnattributedReason.NO_MATCH)


def stored(path: Path, start: int, medium: Medium = Medium.GPU) -> Stored:
    """Blocks ``path[start:]`` stored below ``path[:start]``; all have the first one's size if they
    can, else one event would not be well formed (the caller splits)."""
    return Stored(
        hashes=tuple(hash_of(path[:i]) for i in range(start + 1, len(path) + 1)),
        parent=hash_of(path[:start]) if start else None,
        tokens=array("I", tokens_of(path[start:])),
        block_size=len(BLOCKS[path[start]]),
        medium=medium,
    )


def stored_singly(path: Path, start: int, medium: Medium = Medium.GPU) -> list[Stored]:
    return [stored(path[: i + 1], i, medium) for i in range(start, len(path))]


def removed(path: Path, medium: Medium = Medium.GPU) -> Removed:
    return Removed(hashes=(hash_of(path),), medium=medium)


@dataclass
class ChainModel:
    """Copies by path and medium; everything else is worked out anew each time it is asked."""

    copies: Counter[tuple[Path, Medium]] = field(default_factory=Counter)
    _used: dict[Path, None] = field(default_factory=dict)

    def store(self, path: Path, start: int, medium: Medium) -> None:
        for end in range(start + 1, len(path) + 1):
            self._used.pop(path[:end], None)
            self._used[path[:end]] = None
            self.copies[path[:end], medium] += 1

    def remove(self, path: Path, medium: Medium) -> bool:
        """False when there is no such copy to remove."""
        if not self.copies[path, medium]:
            return False
        self.copies[path, medium] -= 1
        self._used.pop(path)
        self._used[path] = None
        return True

    def clear(self) -> None:
        self.copies.clear()
        self._used.clear()

    def paths(self) -> list[Path]:
        """Every path stored since the last clear, the most recently used one first."""
        return list(reversed(self._used))

    def resident(self, path: Path) -> bool:
        return any(self.copies[path, medium] for medium in Medium)

    def expected(self, *, shared_head: bool = False) -> dict[PrefixKey, tuple[int, bool]]:
        """(tokens, warm) of every prefix that some wholly resident path completes."""
        hot: dict[PrefixKey, list[tuple[Path, Path]]] = {}
        warm: dict[PrefixKey, list[tuple[Path, Path]]] = {}
        for path in self.paths():
            if not all(self.resident(path[:i]) for i in range(1, len(path) + 1)):
                continue
            for offset, key in completions(tokens_of(path))[0]:
                ends = range(1, len(path) + 1)
                head = next(path[:i] for i in ends if len(tokens_of(path[:i])) >= offset)
                tier = hot if self.copies[path, Medium.GPU] else warm
                tier.setdefault(key, []).append((path, head))
        worth = _shared_head if shared_head else _longest
        return {
            **{key: (worth(found), True) for key, found in warm.items()},
            **{key: (worth(found), False) for key, found in hot.items()},
        }


def _longest(found: list[tuple[Path, Path]]) -> int:
    return max(len(tokens_of(path)) for path, _ in found)


def _shared_head(found: list[tuple[Path, Path]]) -> int:
    heads = {head for _, head in found}
    depth, base = max((len(tokens_of(head)), len(tokens_of(head[:-1]))) for head in heads)
    return depth if len(heads) == 1 else max(1, base)


class Reader:
    """Applies records as a router does, and refuses those that contradict what it knows."""

    def __init__(self) -> None:
        self.known: dict[PrefixKey, tuple[int, bool]] = {}
        self._grown_at: dict[PrefixKey, float] = {}

    def read(self, events: Sequence[KvEvent], now: float) -> None:
        named = [event.prefix for event in events if event.prefix is not None]
        assert len(named) == len(set(named)), "two records for one prefix in one drain"
        for event in events:
            if event.action is KvAction.PURGED:
                assert event is events[0]
                self.known.clear()
                continue
            assert event.prefix is not None
            before = self.known.get(event.prefix)
            if event.action is KvAction.EVICTED:
                assert before is not None
                assert event.tokens is None
                del self.known[event.prefix]
                continue
            assert event.tokens is not None
            assert event.tokens > 0
            after = (event.tokens, event.action is KvAction.OFFLOADED)
            assert after != before
            if event.action is KvAction.RELOADED:
                assert before is not None
                assert before[1]
            if event.action is KvAction.CREATED:
                assert before is None or not before[1]
            if before is not None and before[1] == after[1] and after[0] > before[0]:
                last = self._grown_at.get(event.prefix)
                assert last is None or now - last >= 0.1 - 1e-9, "growth told too often"
            self._grown_at[event.prefix] = now
            self.known[event.prefix] = after


def audit(tracker: ChainTracker) -> None:
    """Recompute everything that the tracker keeps incrementally, and compare."""
    chains = tracker._chains
    nodes = chains.graph.nodes
    reasons: Counter[object] = Counter()
    bags: dict[PrefixKey, dict[int, Counter[int]]] = {}
    for key, node in nodes.items():
        assert node.key == key
        assert node.alive
        reasons[node.reason] += 1
        _audit_links(node, nodes, chains.graph._waiting)
        _audit_residency(node, chains.doubts.retired)
        if node.bag and not tracker._ledger._shared_head:
            for prefix in node.scope.keys:
                tiers = bags.setdefault(prefix, {HOT: Counter(), WARM: Counter()})
                tiers[node.bag][node.depth] += 1
        _audit_text(node)
    assert {r: n for r, n in chains.scopes.counts.items() if n} == dict(reasons)
    assert chains.gpu_copies == sum(node.gpu for node in nodes.values())
    held = [node for node in nodes.values() if node.tokens is not None]
    assert set(held) == {node for node in chains.shelf.order if node.tokens is not None}
    mentions = Counter(chains.shelf.order)
    assert all(mentions[node] == node.mentions for node in held)
    assert chains.shelf.count == len(held)
    assert chains.shelf.used == sum(node.size for node in held)
    assert all(len(node.tokens) == 4 * node.size for node in held)
    for waiting, kids in chains.graph._waiting.items():
        assert waiting not in nodes
        for kid in kids if isinstance(kids, dict) else (kids,):
            assert kid.parent == waiting
            assert kid.alive
    if not tracker._ledger._shared_head:
        assert bags == {
            key: {HOT: Counter(entry.hot._counts), WARM: Counter(entry.warm._counts)}
            for key, entry in tracker._ledger._entries.items()
            if entry.hot.total or entry.warm.total
        }


def _audit_links(node: Node, nodes: dict, waiting: dict) -> None:
    for kid in node.children():
        assert kid.parent is node
        assert nodes[kid.key] is kid
    parent = node.parent
    if isinstance(parent, Node):
        assert nodes[parent.key] is parent
        assert node in parent.children()
        if parent.scope.kind is not Kind.ORPHAN:  # a chain of unknown beginning has no depth yet
            assert node.depth == parent.depth + node.size
    elif parent is not None and parent not in nodes:
        kids = waiting[parent]
        assert node in (kids if isinstance(kids, dict) else (kids,))
    assert node.gpu >= 0
    assert node.low >= 0
    assert node.gpu or node.low or node.children(), "a node without copies and children lives"


def _audit_residency(node: Node, retired: int) -> None:
    def live(each: Node) -> bool:
        return not each.cut and bool(each.gpu or each.low)

    parent = node.parent
    if isinstance(parent, Node):
        gone = parent.cut or not (parent.gpu or parent.low)
        assert node.cut == (gone or node.seen < retired)
        assert node.seen <= parent.seen or not node.gpu or gone or node.cut
    kids = [kid for kid in node.children() if kid.scope.kind is not Kind.SEALED]
    assert node.live_kids == sum(live(kid) for kid in kids)
    assert node.hot_kids == sum(live(kid) and bool(kid.gpu) for kid in kids)
    want = 0
    if live(node):
        if node.gpu:
            want = 0 if node.hot_kids else HOT
        else:
            want = 0 if node.live_kids else WARM
    assert node.bag == want


def _audit_text(node: Node) -> None:
    kind = node.scope.kind
    parent = node.parent
    if kind not in (Kind.OPEN, Kind.ORPHAN):
        assert node.tokens is None or node.scope.reason is Unattributed.NO_MATCH
    assert (node.phase is not Phase.NONE) == (kind is Kind.OPEN)
    if kind is Kind.OPEN:
        assert parent is None or isinstance(parent, Node)
        assert parent is None or parent.scope.kind is Kind.OPEN
    if node.tip is not None:
        assert node.tip.node is node
        assert node.tip.state is not TipState.DEAD
    if isinstance(parent, Node):
        if parent.scope.kind in (Kind.SETTLED, Kind.MUTE):
            assert kind in (parent.scope.kind, Kind.SEALED, Kind.SETTLED)
        if kind is not Kind.SEALED:
            assert set(parent.scope.keys) <= set(node.scope.keys)
    if node.phase is Phase.ASKABLE:
        kids = [kid for kid in node.children() if kid.phase is not Phase.NONE]
        assert kids or node.tip is not None, "a path that nobody will ask about"
        assert all(kid.phase in (Phase.ASKABLE, Phase.FLYING) for kid in kids)
    if node.phase is Phase.FLYING:
        asked = node.tip is not None and node.tip.state is TipState.FLYING
        assert asked or (isinstance(parent, Node) and parent.phase is Phase.FLYING)
        assert all(k.phase in (Phase.FLYING, Phase.NONE) for k in node.children())
