"""The block graph: one node for each (group, hash), its links, and the order of their age.

Structure only: who is whose child, who waits for an unseen parent, who is oldest. There is one
Python object a block and none a token; what else is known about a block hangs on plain slots that
``residency.py`` (worth), ``text_shelf.py`` (tokens) and ``inquiry.py`` (asking) own.
"""

from collections import OrderedDict
from enum import Enum, auto
from typing import Union

from continuum_kv_listener.engine_events import BlockHash
from continuum_kv_listener.scope import Scope

NodeKey = BlockHash | tuple[int, BlockHash]
"""A block's name in the graph: the hash alone in group 0, (group, hash) elsewhere."""

Kids = Union["Node", dict["Node", None], None]
"""Children of one block: most have none or one, so a container is made only for a branch."""


class Phase(Enum):
    """Where a block whose text may yet complete a key stands in the asking (``inquiry.py``)."""

    NONE = auto()
    """Nothing to ask: settled, mute, sealed, or of unknown beginning."""
    COVERED = auto()
    """A question through this block was answered: its own text is not enough."""
    ASKABLE = auto()
    """Not judged; the question waits at a tip at or below this block."""
    FLYING = auto()
    """At or below the last block of a question whose answer is awaited."""


class TipState(Enum):
    """What a tip waits for."""

    READY = auto()
    SLOW = auto()
    """Grown a little since the last answer: for more growth, or for its time."""
    BACKOFF = auto()
    """For its time only: the last question failed."""
    DORMANT = auto()
    """For any growth: nothing new since the last answer."""
    FLYING = auto()
    DEAD = auto()


class Tip:
    """The end of one path that is to be asked about: one question at a time per path.

    ``base`` is the depth that was judged already, ``step`` how many tokens more make asking again
    worth it at once; it doubles with each answer that was not enough.
    """

    __slots__ = ("base", "due", "node", "state", "step")

    def __init__(self, node: "Node", base: int) -> None:
        self.node = node
        self.base = base
        self.step = 0
        self.state = TipState.DORMANT
        self.due = 0.0


class Node:
    """One block. ``parent`` is a node, the key of a block that is not known, or None at a root.

    ``depth`` counts tokens from the root to the end of this block (from the first known block in an
    orphan), ``size`` its own. ``gpu`` counts GPU copies; ``low`` packs the copies on lower tiers.
    ``cut`` says that an ancestor is known to be gone, so the engine cannot reach the block.
    ``hot_kids`` and ``live_kids`` count reachable children (with a GPU copy, with any); ``bag``
    says as what kind of leaf the ledger counts this node. ``seen`` is the age in which it was last
    shown to be there (``doubts.py``), ``reason`` what it is counted under while it has no key.
    """

    __slots__ = (
        "alive",
        "bag",
        "cut",
        "depth",
        "gpu",
        "hot_kids",
        "key",
        "kids",
        "live_kids",
        "low",
        "mentions",
        "parent",
        "phase",
        "reason",
        "scope",
        "seen",
        "size",
        "tip",
        "tokens",
    )

    def __init__(
        self,
        key: NodeKey,
        parent: "Node | NodeKey | None",
        size: int,
        depth: int,
        scope: Scope,
        seen: int = 0,
    ) -> None:
        self.key = key
        self.parent = parent
        self.kids: Kids = None
        self.size = size
        self.depth = depth
        self.gpu = 0
        self.low = 0
        self.cut = False
        self.hot_kids = 0
        self.live_kids = 0
        self.bag = 0
        self.scope = scope
        self.seen = seen
        self.reason = scope.reason
        self.tokens: bytes | None = None
        self.mentions = 0
        self.phase = Phase.NONE
        self.tip: Tip | None = None
        self.alive = True

    def children(self) -> tuple["Node", ...]:
        """The known children, oldest link first."""
        kids = self.kids
        if kids is None:
            return ()
        return tuple(kids) if isinstance(kids, dict) else (kids,)

    def path(self) -> list["Node"]:
        """The known blocks from the top of this block's chain down to itself."""
        nodes = [self]
        parent = self.parent
        while isinstance(parent, Node):
            nodes.append(parent)
            parent = parent.parent
        nodes.reverse()
        return nodes


def with_kid(kids: Kids, kid: Node) -> Kids:
    """``kids`` and ``kid``."""
    if kids is None:
        return kid
    if isinstance(kids, dict):
        kids[kid] = None
        return kids
    return {kids: None, kid: None}


def without_kid(kids: Kids, kid: Node) -> Kids:
    """``kids`` but ``kid``; a stranger is no error."""
    if kids is kid:
        return None
    if isinstance(kids, dict):
        kids.pop(kid, None)
        return kids or None
    return kids


class BlockGraph:
    """Known blocks by key, oldest mention first, and who waits for which unknown parent."""

    def __init__(self) -> None:
        self.nodes: OrderedDict[NodeKey, Node] = OrderedDict()
        self._waiting: dict[NodeKey, Node | dict[Node, None]] = {}

    def add(self, node: Node) -> tuple[Node, ...]:
        """Enter a new node below its parent; the orphans that waited for it, now to be joined."""
        parent = node.parent
        if isinstance(parent, Node):
            parent.kids = node if parent.kids is None else with_kid(parent.kids, node)
        elif parent is not None:
            self._wait(parent, node)
        self.nodes[node.key] = node
        if not self._waiting:
            return ()
        waited = self._waiting.pop(node.key, None)
        if waited is None:
            return ()
        top = node.path()[0]  # an orphan may not become a descendant of its own descendant
        return tuple(kid for kid in _each(waited) if kid is not top)

    def join(self, parent: Node, orphan: Node) -> None:
        """Link an orphan below the parent that it waited for."""
        orphan.parent = parent
        parent.kids = with_kid(parent.kids, orphan)

    def leave(self, node: Node) -> tuple[Node, ...]:
        """Take a node out; its children, which now wait for it to reappear."""
        self.nodes.pop(node.key, None)
        node.alive = False
        parent, node.parent = node.parent, None
        if isinstance(parent, Node):
            parent.kids = None if parent.kids is node else without_kid(parent.kids, node)
        elif parent is not None and parent in self._waiting:
            rest = without_kid(self._waiting[parent], node)
            if rest is None:
                del self._waiting[parent]
            else:
                self._waiting[parent] = rest
        if node.kids is None:
            return ()
        children = node.children()
        node.kids = None
        for child in children:
            child.parent = node.key
            self._wait(node.key, child)
        return children

    def touch(self, node: Node) -> None:
        """Make this the most recently mentioned node."""
        self.nodes.move_to_end(node.key)

    def oldest(self) -> Node:
        """The node whose last mention is longest ago; KeyError-free only while there is one."""
        return next(iter(self.nodes.values()))

    def clear(self) -> None:
        """Forget everything."""
        self.nodes.clear()
        self._waiting.clear()

    @property
    def waiting(self) -> int:
        """How many unknown parents are waited for."""
        return len(self._waiting)

    def _wait(self, parent: NodeKey, orphan: Node) -> None:
        kids = with_kid(self._waiting.get(parent), orphan)
        if kids is not None:
            self._waiting[parent] = kids


def _each(kids: Node | dict[Node, None]) -> tuple[Node, ...]:
    return tuple(kids) if isinstance(kids, dict) else (kids,)
