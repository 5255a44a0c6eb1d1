"""A prompt as a chain of pieces: the value that the piece index is asked and taught with.

design/routing.md 6.2: the prompt's canonical text is cut at 512 bytes, 1 KiB, 2 KiB, then every
2 KiB; the digest of a piece covers everything before it. How far two prompts agree is then the
number of digests they share from the beginning on.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

PIECE = 2048
"""Bytes of a piece from the fourth on."""

HEADS = (512, 1024, 2048)
"""Where the first three pieces end, in bytes."""

DIGEST_SIZE = 16


def piece_end(depth: int) -> int:
    """Bytes of text that the first ``depth`` pieces cover."""
    if depth <= 0:
        return 0
    return HEADS[depth - 1] if depth <= len(HEADS) else PIECE * (depth - len(HEADS) + 1)


def whole_pieces(size: int) -> int:
    """How many pieces a text of ``size`` bytes fills; the rest is no piece."""
    if size >= HEADS[-1]:
        return size // PIECE + len(HEADS) - 1
    return sum(1 for head in HEADS if head <= size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """One prompt. ``digests`` are chained, 16 bytes each; ``size`` is the text's length in bytes.

    ``media`` says at which bytes of the text images and the like stand, in order. ``group`` is the
    prefix key that the engine's events name this prompt by, b"" when there is none.
    """

    digests: tuple[bytes, ...] = field(repr=False)
    size: int
    media: tuple[int, ...] = ()
    group: bytes = field(default=b"", repr=False)

    def text_bytes(self, depth: int) -> int:
        """Bytes of the first ``depth`` pieces, not more than there are."""
        return min(piece_end(depth), self.size)

    def media_within(self, depth: int) -> int:
        """How many media parts stand in the first ``depth`` pieces."""
        return bisect_right(self.media, piece_end(depth)) if self.media else 0
