"""What the text down to a block says: the scope that a block shares with its descendants.

A prefix key is completed at one block and inherited by every descendant without looking at a token
(design/chains.md). So a block carries no keys of its own, only a pointer to the scope in force.
"""

from enum import Enum, auto

from continuum_kv_listener.chain_stats import Unattributed
from continuum_shared.prefix_key import PrefixKey


class Kind(Enum):
    """How far the text down to a block is known."""

    OPEN = auto()
    """The path starts at a prompt's start and its text may yet complete a key."""
    ORPHAN = auto()
    """The path's beginning is not known; it may (re)appear (invariant 5)."""
    MUTE = auto()
    """No tokens to ask with; inherits what an ancestor completes."""
    SETTLED = auto()
    """Judged for good: every descendant inherits keys or reason."""
    SEALED = auto()
    """Tokens that fit no block size: unattributed, whatever its ancestors are (decisions C20)."""


class Head:
    """Where a path completes one key: ``depth`` at the end of the completing block, ``base`` before
    it. ``hot`` and ``warm`` count the resident leaves below (kept for ``shared_head`` only)."""

    __slots__ = ("base", "depth", "hot", "warm")

    def __init__(self, base: int, depth: int) -> None:
        self.base = base
        self.depth = depth
        self.hot = 0
        self.warm = 0

    def more(self, tier: int) -> int:
        """One resident leaf more of this tier (1 hot, else warm) below; how many there are now."""
        if tier == 1:
            self.hot += 1
            return self.hot
        self.warm += 1
        return self.warm

    def less(self, tier: int) -> int:
        """One resident leaf less of this tier below; how many there are now."""
        if tier == 1:
            self.hot -= 1
            return self.hot
        self.warm -= 1
        return self.warm


class Scope:
    """The keys completed down to here, how final that is, and why there are none if so."""

    __slots__ = ("heads", "keys", "kind", "lora_name", "reason")

    def __init__(
        self,
        kind: Kind,
        *,
        keys: tuple[PrefixKey, ...] = (),
        heads: tuple[Head, ...] = (),
        lora_name: str | None = None,
        reason: Unattributed | None = None,
    ) -> None:
        self.kind = kind
        self.keys = keys
        self.heads = heads
        self.lora_name = lora_name
        self.reason = reason

    def turned(self, kind: Kind, reason: Unattributed | None) -> "Scope":
        """The same keys in another state; ``reason`` counts while there are none."""
        return Scope(
            kind,
            keys=self.keys,
            heads=self.heads,
            lora_name=self.lora_name,
            reason=None if self.keys else reason,
        )

    def completed(self, heads: dict[PrefixKey, Head]) -> "Scope":
        """With these keys too; the scope itself when it has them all."""
        new = [key for key in heads if key not in self.keys]
        if not new:
            return self
        return Scope(
            self.kind,
            keys=(*self.keys, *new),
            heads=(*self.heads, *(heads[key] for key in new)),
            lora_name=self.lora_name,
        )

    def under(self, parent: "Scope") -> "Scope":
        """With the parent's keys and adapter too, as a joined orphan has them."""
        merged = self.completed(dict(zip(parent.keys, parent.heads, strict=True)))
        if merged is self and self.lora_name == parent.lora_name:
            return self
        return Scope(
            self.kind,
            keys=merged.keys,
            heads=merged.heads,
            lora_name=parent.lora_name,
            reason=merged.reason,
        )
