"""A paged KV cache as engines keep it: physical blocks, chained hashes, copies, LRU. No I/O.

What it imitates (recorded from a real engine, wire notes):

- A block is known by the hash of its own tokens and its parent's hash, so equal prefixes share.
- Only whole blocks are shared, and the last token of a prompt is always computed anew; so a
  prompt of whole blocks recomputes its last block and the cache then holds it twice. Each copy
  is stored by an event of its own and, when its physical block is taken for something else,
  removed by an event of its own.
- A finished sequence's blocks stay until they are needed. They are given up least recently used
  first, and of one sequence the tail before the head.
- A reset forgets every block; the event that says so rides in front of the next events.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_TOKEN_ARRAY: Final = "I"
_ROOT: Final = hashlib.sha256(b"root").digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """Consecutive blocks of one chain became resident.

    `hashes` are the 32-byte hashes, `parent` the hash of the block before the first (None at the
    root), `tokens` all of the blocks' tokens; `salt` is set on a chain's first block only.
    """

    hashes: tuple[bytes, ...]
    parent: bytes | None
    tokens: tuple[int, ...]
    block_size: int
    salt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """One copy of the block with this hash is gone."""

    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCleared:
    """Everything that was resident is gone."""


CacheEvent = BlocksStored | BlockRemoved | CacheCleared


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentChain:
    """A longest run of resident blocks from the root: its tokens and the salt of its root."""

    tokens: tuple[int, ...]
    salt: str | None


@dataclass(slots=True, kw_only=True)
class RunningSequence:
    """One running sequence and the physical blocks that it holds. Made by `BlockCache.begin`."""

    salt: str | None
    cached_tokens: int
    capacity_blocks: int
    tokens: "array[int]"
    blocks: list[int]
    hashes: list[bytes]
    ended: bool = False


@dataclass(slots=True)
class _Known:
    """What the cache remembers of a hash while at least one copy is resident."""

    parent: bytes | None
    tokens: tuple[int, ...]
    salt: str | None
    copies: OrderedDict[int, None] = field(default_factory=OrderedDict)


class BlockCache:
    """`blocks` physical blocks of `block_size` tokens each, shared by all sequences.

    Events pile up inside and are fetched, in order, by `take_events`.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError("a cache needs at least one block of at least one token")
        self.total = blocks
        self.block_size = block_size
        self._users = [0] * blocks
        self._hash_of: list[bytes | None] = [None] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._known: dict[bytes, _Known] = {}
        self._promised = 0
        self._events: list[CacheEvent] = []

    @property
    def in_use(self) -> int:
        """Physical blocks that running sequences hold."""
        return self.total - len(self._free)

    @property
    def resident_copies(self) -> int:
        """Physical blocks with known content, copies of one hash counted one by one."""
        return sum(len(known.copies) for known in self._known.values())

    def blocks_for(self, tokens: int) -> int:
        """Physical blocks that a sequence of `tokens` tokens takes."""
        return -(-tokens // self.block_size)

    def can_begin(self, prompt: Sequence[int], answer_tokens: int, salt: str | None) -> bool:
        """Whether `begin` with the same arguments would find room now."""
        hits = self._hits(prompt, salt)
        from_free = sum(1 for block in hits if self._users[block] == 0)
        needed = self.blocks_for(len(prompt) + answer_tokens) - len(hits)
        return len(self._free) - from_free - self._promised >= needed

    def begin(self, prompt: Sequence[int], answer_tokens: int, salt: str | None) -> RunningSequence:
        """Take the blocks of a prompt: resident ones are shared, the others are taken anew.

        Blocks for `answer_tokens` more tokens are promised, so that a sequence that began can
        always go on. Raises ValueError when there is no room (see `can_begin`). The caller must
        call `end` for the sequence, whatever happens to it.
        """
        if not prompt or not self.can_begin(prompt, answer_tokens, salt):
            raise ValueError("no room for this sequence")
        hits = self._hits(prompt, salt)
        for block in hits:
            self._hold(block)
        fresh = self.blocks_for(len(prompt)) - len(hits)
        blocks = [*hits, *(self._take() for _ in range(fresh))]
        capacity = self.blocks_for(len(prompt) + answer_tokens)
        self._promised += capacity - len(blocks)
        hashes = [hash_ for block in hits if (hash_ := self._hash_of[block]) is not None]
        return RunningSequence(
            salt=salt,
            cached_tokens=len(hits) * self.block_size,
            capacity_blocks=capacity,
            tokens=array(_TOKEN_ARRAY, prompt),
            blocks=blocks,
            hashes=hashes,
        )

    def commit(self, sequence: RunningSequence) -> None:
        """The prompt is computed: its whole blocks that were not shared become resident."""
        self._store(sequence)

    def append(self, sequence: RunningSequence, token: int) -> None:
        """One more token of the answer; a block that it fills becomes resident."""
        if len(sequence.tokens) == len(sequence.blocks) * self.block_size:
            if len(sequence.blocks) == sequence.capacity_blocks:
                raise ValueError("the sequence is longer than it was announced")
            self._promised -= 1
            sequence.blocks.append(self._take())
        sequence.tokens.append(token)
        self._store(sequence)

    def end(self, sequence: RunningSequence) -> None:
        """Give the sequence's blocks back, tail first; their content stays. Repeats do nothing."""
        if sequence.ended:
            return
        sequence.ended = True
        self._promised -= sequence.capacity_blocks - len(sequence.blocks)
        for block in reversed(sequence.blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None

    def reset(self) -> bool:
        """Forget all content. False, and nothing done, while a sequence holds blocks."""
        if self.in_use:
            return False
        self._known.clear()
        self._hash_of = [None] * self.total
        self._events.append(CacheCleared())
        return True

    def take_events(self) -> list[CacheEvent]:
        """What happened since the last call, in order.

        A clear waits: it is handed out together with the first events after it (C39).
        """
        if all(isinstance(event, CacheCleared) for event in self._events):
            return []
        events, self._events = self._events, []
        return events

    def resident_chains(self) -> list[ResidentChain]:
        """All longest resident chains that reach the root, in no particular order."""
        parents = {known.parent for known in self._known.values()}
        chains = (self._path(leaf) for leaf in self._known if leaf not in parents)
        return [chain for chain in chains if chain is not None]

    def _hits(self, prompt: Sequence[int], salt: str | None) -> list[int]:
        """Physical blocks of the longest resident prefix, one copy each; never the last token."""
        hits: list[int] = []
        usable = (len(prompt) - 1) // self.block_size
        for hash_, _ in self._chain(prompt, usable, salt):
            known = self._known.get(hash_)
            if known is None:
                break
            hits.append(next(iter(known.copies)))
        return hits

    def _chain(
        self, tokens: Sequence[int], blocks: int, salt: str | None
    ) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        parent: bytes | None = None
        for start in range(0, blocks * self.block_size, self.block_size):
            part = tuple(tokens[start : start + self.block_size])
            parent = block_hash(parent, part, salt if parent is None else None)
            yield parent, part

    def _store(self, sequence: RunningSequence) -> None:
        size = self.block_size
        first = len(sequence.hashes)
        whole = len(sequence.tokens) // size
        if first == whole:
            return
        before = sequence.hashes[-1] if sequence.hashes else None
        parent = before
        for index in range(first, whole):
            part = tuple(sequence.tokens[index * size : (index + 1) * size])
            salt = sequence.salt if parent is None else None
            hash_ = block_hash(parent, part, salt)
            block = sequence.blocks[index]
            known = self._known.get(hash_)
            if known is None:
                known = self._known[hash_] = _Known(parent, part, salt)
            known.copies[block] = None
            self._hash_of[block] = hash_
            sequence.hashes.append(hash_)
            parent = hash_
        self._events.append(
            BlocksStored(
                hashes=tuple(sequence.hashes[first:]),
                parent=before,
                tokens=tuple(sequence.tokens[first * size : whole * size]),
                block_size=size,
                salt=sequence.salt if before is None else None,
            )
        )

    def _hold(self, block: int) -> None:
        if self._users[block] == 0:
            del self._free[block]
        self._users[block] += 1

    def _take(self) -> int:
        """The least recently used free block, emptied."""
        block, _ = self._free.popitem(last=False)
        self._users[block] = 1
        hash_ = self._hash_of[block]
        if hash_ is not None:
            self._hash_of[block] = None
            known = self._known[hash_]
            del known.copies[block]
            if not known.copies:
                del self._known[hash_]
            self._events.append(BlockRemoved(hash=hash_))
        return block

    def _path(self, leaf: bytes) -> ResidentChain | None:
        parts: list[tuple[int, ...]] = []
        salt: str | None = None
        at: bytes | None = leaf
        while at is not None:
            known = self._known.get(at)
            if known is None:
                return None
            parts.append(known.tokens)
            salt, at = known.salt, known.parent
        return ResidentChain(
            tokens=tuple(token for part in reversed(parts) for token in part), salt=salt
        )


def block_hash(parent: bytes | None, tokens: Sequence[int], salt: str | None) -> bytes:
    """32-byte hash of one block: its parent's hash, its tokens and, at the root, its salt."""
    digest = hashlib.sha256(_ROOT if parent is None else parent)
    digest.update(array(_TOKEN_ARRAY, tokens).tobytes())
    if salt is not None:
        digest.update(b"\0salt\0" + salt.encode("utf-8", "surrogatepass"))
    return digest.digest()
