"""Undoes content codings, piece by piece and bounded (decisions E23, user reports S8, S9).

Clients may send coded bodies. Backends are asked for `identity`; what comes compressed anyway is
decoded, so that taps and the first-event check read text and the client gets what it can read.
"""

import zlib
from collections.abc import Iterator

PIECE = 256 * 1024
"""Bytes that one step of decoding may give: a small input cannot become a large allocation."""


def inflater_for(coding: str | None) -> "Inflater | None":
    """Return a decoder for the value of Content-Encoding, or None when there is nothing to undo.

    Codings that cannot be read here (br, zstd, lists) also give None: they pass through, and the
    header must then be kept.
    """
    name = (coding or "").strip().lower()
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(gzip=name != "deflate")
    return None


class CodingDamaged(Exception):
    """The bytes are not what their content coding says, or end too early."""


class Inflater:
    """Decodes gzip (several members too) or deflate (zlib-wrapped or raw), piece by piece."""

    __slots__ = ("_gzip", "_started", "_zlib")

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._started = False
        self._zlib = zlib.decompressobj(31 if gzip else 15)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded bytes of one piece. Raises CodingDamaged."""
        while data:
            if self._zlib.eof:
                if not self._gzip:
                    return
                self._zlib = zlib.decompressobj(31)
            out = self._step(data)
            if out:
                yield out
            data = self._zlib.unconsumed_tail or self._zlib.unused_data

    def close(self) -> None:
        """Check at the end of the body that the coding ended too. Raises CodingDamaged."""
        if self._started and not self._zlib.eof:
            raise CodingDamaged

    def _step(self, data: bytes) -> bytes:
        try:
            out = self._zlib.decompress(data, PIECE)
        except zlib.error:
            if self._started or self._gzip:
                raise CodingDamaged from None
            # Some servers send deflate without its wrapper.
            self._zlib = zlib.decompressobj(-15)
            try:
                out = self._zlib.decompress(data, PIECE)
            except zlib.error:
                raise CodingDamaged from None
        self._started = True
        return out
