"""Questions and verdicts: what the chain tracker and the attributor say to each other.

The tracker hands out a :class:`Question` for a path of blocks whose prefix key is not known yet;
the attributor answers with a :class:`PathVerdict`. Both are plain values, so an answer may arrive
late or never, and the tracker applies it as a proposal (design/chains.md, "Asking for text").
"""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from continuum_shared.prefix_key import PrefixKey


class UnattributedReason(StrEnum):
    """Why a path has no prefix key (decisions C22, C23, A3; the value is the metric label)."""

    NO_FORMAT = "no_format"
    """No prompt format is known yet: probes failed or have not answered."""
    NO_MATCH = "no_match"
    """The text does not begin the way the source's prompt format says."""
    UNKNOWN_PARENT = "unknown_parent"
    """The chain's beginning was never seen, so its text does not start at the prompt's start."""
    BLOCK_SIZE = "block_size"
    """Tokens do not fit the announced block size, so they cannot be trusted (decisions C20)."""
    UNSUPPORTED_CONTENT = "unsupported_content"
    """The keyed text holds an image or audio placeholder (decisions A3)."""


class AttributionMode(StrEnum):
    """What a source's prefixes are found by (``GET /sources``, decisions J4)."""

    PROBE = "probe"
    TOKENIZER = "tokenizer"
    REQUEST = "request"
    FAMILY = "family"
    SALT = "salt"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whose prompt does this path begin?

    ``node`` is the tracker's handle for the path's last block and means nothing to others.
    ``tokens`` runs from the root to the end of that block. ``block_ends`` are the token offsets at
    which the path's blocks end, ascending; the last one is ``len(tokens)``. ``lora_name`` is the
    adapter of the chain, whose name then replaces the source's served names.
    """

    node: int
    tokens: "array[int]" = field(repr=False)
    block_ends: tuple[int, ...]
    lora_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """``keys`` are complete as of block ``block_index`` (an index into ``Question.block_ends``)."""

    block_index: int
    keys: tuple[PrefixKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathVerdict:
    """What the text of a path says.

    ``completions`` ascend by block; there may be several, at different depths (decisions A18).
    ``done`` is False when more tokens of this path could complete a further key: the tracker asks
    again once the path has grown. ``reason`` is set when the path can never have a key, or while
    it has none for a reason worth counting; None with ``done`` False is plain "pending".
    """

    completions: tuple[Completion, ...] = ()
    done: bool
    reason: UnattributedReason | None = None
