"""Codings are undone exactly, in any split, and damage is told."""

import gzip
import zlib

import pytest

from continuum_router.upstream.content_coding import (
    PIECE,
    CodingDamaged,
    Inflater,
    inflater_for,
)

TEXT = b"hello world " * 1000
FORMS = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "two members": ("gzip", gzip.compress(TEXT[:500]) + gzip.compress(TEXT[500:])),
    "x-gzip": (" X-Gzip ", gzip.compress(TEXT)),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "raw deflate": ("deflate", zlib.compress(TEXT, wbits=-15)),
}


def _inflate(coding: str, *pieces: bytes) -> bytes:
    inflater = inflater_for(coding)
    assert inflater is not None
    out = b"".join(part for piece in pieces for part in inflater.feed(piece))
    inflater.close()
    return out


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("step", [2, 7, 100_000])
def test_any_split(name: str, step: int) -> None:
    coding, wire = FORMS[name]
    pieces = [wire[i : i + step] for i in range(0, len(wire), step)]
    assert _inflate(coding, *pieces) == TEXT


@pytest.mark.parametrize("coding", [None, "", "identity", "br", "zstd", "gzip, gzip"])
def test_nothing_to_undo(coding: str | None) -> None:
    assert inflater_for(coding) is None


@pytest.mark.parametrize(
    ("coding", "wire"),
    [
        ("gzip", b"not gzip"),
        ("gzip", gzip.compress(TEXT)[:-1]),
        ("gzip", gzip.compress(TEXT)[:30]),
        ("gzip", gzip.compress(TEXT)[:-8] + b"\0" * 8),
        ("gzip", gzip.compress(TEXT) + b"rubbish"),
        ("deflate", b"\xff\xff\xff\xff"),
        ("deflate", zlib.compress(TEXT)[:-2]),
    ],
)
def test_damage(coding: str, wire: bytes) -> None:
    with pytest.raises(CodingDamaged):
        _inflate(coding, wire)


def test_an_empty_body_is_no_damage() -> None:
    assert _inflate("gzip") == b""


def test_a_bomb_comes_in_bounded_pieces() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    sizes = [len(piece) for piece in Inflater(gzip=True).feed(bomb)]
    assert max(sizes) <= PIECE
    assert sum(sizes) == 50_000_000
