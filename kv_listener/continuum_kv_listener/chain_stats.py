"""What a chain tracker may hold, and what it says about itself: limits, counts, reasons."""

from dataclasses import dataclass
from enum import StrEnum

from continuum_kv_listener.attribution_types import UnattributedReason


class TokenCount(StrEnum):
    """What a prefix is said to be worth (decisions C9; the value is the configuration's)."""

    LONGEST_CHAIN = "longest_chain"
    """Tokens of the longest resident chain that starts with the prefix."""
    SHARED_HEAD = "shared_head"
    """Tokens up to the end of the keyed text, or to the branch before it when several resident
    paths complete the key in different blocks."""


class Unattributed(StrEnum):
    """Why a tracked block has no prefix key; the value is the label of
    ``continuum_listener_unattributed_blocks`` and the name in ``GET /sources``.

    Holds every value of :class:`UnattributedReason` and what only the tracker can know.
    """

    PENDING = "pending"
    """Its text was not judged yet, or does not hold the whole keyed text yet (C21)."""
    UNKNOWN_PARENT = "unknown_parent"
    FOREIGN_SALT = "foreign_salt"
    BAD_SALT = "bad_salt"
    BLOCK_SIZE = "block_size"
    CHAIN_TOO_LONG = "chain_too_long"
    """Beyond ``max_chain_tokens`` with no key so far: no tokens are kept."""
    TEXT_DROPPED = "text_dropped"
    """``max_retained_tokens`` took the tokens that would have told."""
    NO_FORMAT = "no_format"
    NO_MATCH = "no_match"
    UNSUPPORTED_CONTENT = "unsupported_content"

    __hash__ = str.__hash__  # Enum's own is Python code, and blocks are counted by reason

    @staticmethod
    def of(reason: UnattributedReason | None) -> "Unattributed":
        """The attributor's reason under its own name; ``PENDING`` when it gave none."""
        return Unattributed(reason.value) if reason is not None else Unattributed.PENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLimits:
    """The three limits of S0 "chain tracking and memory"; never exceeded at any moment.

    ``max_chain_tokens``: longest path whose tokens are kept for /detokenize;
    ``max_tracked_blocks``: blocks known at all; ``max_retained_tokens``: 4-byte token ids kept,
    over all paths.
    """

    max_chain_tokens: int = 16_384
    max_tracked_blocks: int = 100_000
    max_retained_tokens: int = 16_777_216

    def __post_init__(self) -> None:
        if min(self.max_chain_tokens, self.max_tracked_blocks, self.max_retained_tokens) < 1:
            raise ValueError("chain limits must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStats:
    """A tracker's counts at one moment; the ``*_total`` ones only ever grow.

    ``unattributed`` has one entry for each reason with blocks, ``pending`` included.
    """

    blocks: int
    tokens: int
    prefixes: int
    pending: int
    unattributed: dict[Unattributed, int]
    questions_open: int
    block_size_mismatches_total: int
    blocks_evicted_total: int
    texts_dropped_total: int
    ignored_group_events_total: int
    doubted_prefixes: int = 0
    drifted_copies_total: int = 0
