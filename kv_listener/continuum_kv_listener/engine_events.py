"""What an engine told us, once its bytes are typed: the only event types the listener knows.

``decode.py`` makes these from msgpack; ``chain.py`` applies them. They hold token ids, so they live
in this process only and are never logged (S0 "security", invariant 7 of design/chains.md): their
representations leave contents out.

``Stored`` and ``Removed`` are values like all others but neither frozen nor keyword-only: there is
one for nearly every block, and both would cost a fifth of what a block may cost each
(tests/bench/bench_listener_blocks.py). Only the decoder makes them without naming the fields.
"""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Tokens = array[int]
else:
    # array is a generic class for type checkers only (it cannot be subscripted before Python 3.12)
    Tokens = array

BlockHash = int | bytes
"""An engine's name for a block: an int in [0, 2**64) or raw bytes; opaque, never compared between
engines, and an int never equals bytes (decisions C16)."""


class Medium(StrEnum):
    """Where a copy of a block lives, by how far it is from the GPU (decisions C13)."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"
    EXTERNAL = "external"


class DropReason(StrEnum):
    """Why something received did not become state; the value is the metric label (J5)."""

    BAD_FRAMES = "bad_frames"
    NOT_ALLOWED = "not_allowed"
    OVERSIZED = "oversized"
    UNDECODABLE_BATCH = "undecodable_batch"
    MALFORMED_EVENT = "malformed_event"
    UNKNOWN_TAG = "unknown_tag"
    UNKNOWN_BLOCK = "unknown_block"
    FOREIGN_SALT = "foreign_salt"
    BAD_SALT = "bad_salt"
    DUPLICATE = "duplicate"


@dataclass(slots=True)
class Stored:
    """Blocks ``hashes`` now hold ``tokens``, each the child of the one before it.

    ``parent`` is the block before the first one, None at the start of a prompt. ``tokens`` may be
    empty: lower tiers name blocks without repeating their text (decisions C14). ``extra_keys`` has
    one entry a block, in the engine's order, or is empty. ``group`` is the cache group of hybrid
    models; only groups with ``full_attention`` describe a prefix (decisions C19).
    """

    hashes: tuple[BlockHash, ...]
    block_size: int
    parent: BlockHash | None = None
    tokens: Tokens = field(default_factory=lambda: array("I"), repr=False)
    lora_name: str | None = None
    medium: Medium = Medium.GPU
    extra_keys: tuple[tuple[object, ...] | None, ...] = field(default=(), repr=False)
    cache_salt: str | None = field(default=None, repr=False)
    group: int = 0
    full_attention: bool = True


@dataclass(slots=True)
class Removed:
    """One copy of each of these blocks on ``medium`` is gone. ``merged`` is how many events of the
    engine this one stands for."""

    hashes: tuple[BlockHash, ...]
    medium: Medium = Medium.GPU
    group: int = 0
    merged: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Every block of the engine is gone (it may be told late: decisions C39)."""


EngineEvent = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch:
    """One published message before decoding: who sent it, where it stands, its msgpack bytes."""

    source: str
    rank: int
    seq: int
    payload: bytes = field(repr=False)
