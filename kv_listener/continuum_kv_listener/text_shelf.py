"""The token ids that are kept while a prefix key may still be found in them.

4-byte ids in one array a block, only down to the keyed text (design/chains.md). The shelf holds
``max_retained_tokens`` at most at any moment: what was least recently needed goes first, and only
the text goes; the blocks, their counts and their keys stay.
"""

from collections import OrderedDict

from continuum_kv_listener.block_graph import Node
from continuum_kv_listener.engine_events import Tokens


class TextShelf:
    """Owns ``Node.tokens``. Counts in token ids. ``holders`` are the nodes whose text is kept, the
    least recently needed first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.holders: OrderedDict[Node, None] = OrderedDict()
        self.used = 0
        self.dropped_total = 0

    def put(self, node: Node, tokens: Tokens) -> bool:
        """Keep a new node's text, making room first; False if it alone is over the limit."""
        size = len(tokens)
        if size > self.capacity:
            self.dropped_total += 1
            return False
        while self.used + size > self.capacity:
            oldest = next(iter(self.holders))
            self.take(oldest)
            self.dropped_total += 1
        node.tokens = tokens
        self.holders[node] = None
        self.used += size
        return True

    def take(self, node: Node) -> None:
        """Forget a node's text, if it has any."""
        if node.tokens is not None:
            del self.holders[node]
            self.used -= len(node.tokens)
            node.tokens = None

    def touch(self, node: Node) -> None:
        """This node's text was needed just now."""
        if node.tokens is not None:
            self.holders.move_to_end(node)

    def clear(self) -> None:
        """Forget all texts."""
        self.holders.clear()
        self.used = 0
