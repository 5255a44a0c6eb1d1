"""The token ids that are kept while a prefix key may still be found in them.

4-byte ids in one string of bytes a block, only down to the keyed text (design/chains.md). The shelf
holds ``max_retained_tokens`` at most at any moment: what was least recently needed goes first, and
only the text goes; the blocks, their counts and their keys stay.
"""

from collections import deque

from continuum_kv_listener.block_graph import Node

TOKEN_BYTES = 4
_SWEEP = 64


class TextShelf:
    """Owns ``Node.tokens`` and ``Node.mentions``. Counts in token ids; ``count`` is of texts.

    A text that is needed again is mentioned again at the end of :attr:`order`; only a node's last
    mention counts.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.count = 0
        self.dropped_total = 0
        self.order: deque[Node] = deque()
        """Nodes as their texts were needed; some have none any more."""

    def put(self, node: Node, tokens: bytes) -> bool:
        """Keep a new node's text, making room first; False if it alone is over the limit."""
        size = len(tokens) // TOKEN_BYTES
        if size > self.capacity:
            self.dropped_total += 1
            return False
        while self.used + size > self.capacity:
            self._drop_oldest()
        node.tokens = tokens
        node.mentions = 1
        self.order.append(node)
        self.added(1, size)
        return True

    def added(self, texts: int, tokens: int) -> None:
        """So many texts were put at the end of :attr:`order`, for which there was room."""
        self.used += tokens
        self.count += texts
        self._sweep()

    def take(self, node: Node) -> None:
        """Forget a node's text, if it has any."""
        if node.tokens is not None:
            self.used -= len(node.tokens) // TOKEN_BYTES
            self.count -= 1
            node.tokens = None

    def touch(self, node: Node) -> None:
        """This node's text was needed just now."""
        if node.tokens is not None:
            node.mentions += 1
            self.order.append(node)
            self._sweep()

    def clear(self) -> None:
        """Forget all texts."""
        self.order.clear()
        self.used = self.count = 0

    def _drop_oldest(self) -> None:
        while True:
            node = self.order.popleft()
            node.mentions -= 1
            if not node.mentions and node.tokens is not None:
                self.take(node)
                self.dropped_total += 1
                return

    def _sweep(self) -> None:
        """Leave out mentions that do not count, once they are the greater part."""
        if len(self.order) <= 2 * self.count + _SWEEP:
            return
        kept: deque[Node] = deque()
        for node in self.order:
            if node.mentions > 1:
                node.mentions -= 1
            elif node.tokens is not None:
                kept.append(node)
        self.order = kept
