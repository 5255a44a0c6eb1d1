"""The guard by itself: what it passes on, what it refuses, and that splits change neither.

What becomes of each kind of input is the framing table (tests/fault/test_framing_table.py).
"""

import gc
import itertools
import random

import pytest

from continuum_router.api.wire_guard import (
    MAX_HEAD_BYTES,
    HeadTooLarge,
    Malformed,
    TargetTooLong,
    UnknownCoding,
    UnknownMethod,
    UnknownVersion,
    WireGuard,
)
from support.framing_row import JSON, OTHER, chunked, chunks, post, text
from support.framing_table import SECTIONS


def fed(*pieces: bytes) -> tuple[list[bytes], WireGuard]:
    guard = WireGuard()
    return [clean for piece in pieces for clean in guard.feed(piece)], guard


def test_an_ordinary_request_is_one_untouched_piece() -> None:
    clean, guard = fed(post())
    assert clean == [post()]
    assert guard.between


def test_each_request_is_its_own_piece() -> None:
    wire = post() + post(body=OTHER)
    clean, guard = fed(wire)
    assert clean == [post(), post(body=OTHER)]
    assert guard.between


def test_the_second_request_of_a_piece_may_be_refused() -> None:
    clean, guard = fed(post() + b"garbage\r\n\r\n" + post())
    assert clean == [post()]
    assert type(guard.fault) is Malformed
    assert guard.feed(post()) == []


def test_an_upgrade_is_not_offered() -> None:
    clean, guard = fed(post("UPGRADE: h2c", "Connection: upgrade", "X-Upgrade: y"))
    assert clean == [post("Connection: upgrade", "X-Upgrade: y")]
    assert guard.between


def test_chunks_are_written_anew() -> None:
    body = b"3;a=b\r\n" + JSON[:3] + b"\r\n" + chunks(JSON[3:], last=b"000;x\r\nX-Sum: 1\r\n\r\n")
    clean, guard = fed(chunked(body=body))
    assert clean == [chunked(body=chunks(JSON))]
    assert guard.between


def test_chunks_of_several_reads_are_several_chunks() -> None:
    wire = chunked(body=chunks(JSON[:9], JSON[9:]))
    cut = wire.index(JSON[:9]) + 4
    clean, _ = fed(wire[:cut], wire[cut:])
    assert b"".join(clean) == chunked(body=chunks(JSON[:4], JSON[4:]))


@pytest.mark.parametrize(
    ("wire", "between"),
    [
        (b"", True),
        (post()[:5], False),
        (post()[:-1], False),
        (chunked()[:-1], False),
        (b"\r\n", False),
        (b"\r", False),
        (b"\r\n" + post(), True),
        (post("Connection: close"), False),
        (post(version="HTTP/1.0"), False),
        (b"\0", False),
    ],
)
def test_between(wire: bytes, between: bool) -> None:
    assert fed(wire)[1].between is between


FAULTS: dict[str, tuple[bytes, type[Malformed], int, str]] = {
    "nonsense": (b"nonsense\r\n\r\n", Malformed, 400, "malformed_request"),
    "target": (b"GET /" + b"a" * 17_000, TargetTooLong, 414, "uri_too_long"),
    "whole target": (
        text("GET /" + "a" * 17_000 + " HTTP/1.1"),
        TargetTooLong,
        414,
        "uri_too_long",
    ),
    "header": (post("X: " + "a" * 17_000), HeadTooLarge, 431, "headers_too_large"),
    "part of a header": (
        post(body=b"")[:-2] + b"a" * 17_000,
        HeadTooLarge,
        431,
        "headers_too_large",
    ),
    "headers": (post(*["X: a"] * 127), HeadTooLarge, 431, "headers_too_large"),
    "method": (post(method="BREW"), UnknownMethod, 501, "unknown_method"),
    "coding": (
        post("Transfer-Encoding: gzip, chunked", length=False),
        UnknownCoding,
        501,
        "unknown_transfer_coding",
    ),
    "version": (post(version="HTTP/2.0"), UnknownVersion, 505, "unknown_http_version"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    wire, kind, status, code = FAULTS[name]
    clean, guard = fed(wire)
    assert clean == []
    assert (type(guard.fault), guard.fault and guard.fault.status) == (kind, status)
    assert guard.fault is not None
    assert guard.fault.code == code
    assert not guard.between


def test_a_fault_keeps_nothing_of_the_request() -> None:
    clean, guard = fed(post("X: " + "a" * 17_000))
    assert clean == []
    assert guard.fault is not None
    assert guard.fault.__traceback__ is None
    assert b"aaaa" not in b"".join(o for o in gc.get_referents(guard) if isinstance(o, bytes))


def test_a_head_that_never_ends_is_bounded() -> None:
    guard = WireGuard()
    guard.feed(b"GET / HTTP/1.1\r\n")
    sent = 0
    while guard.fault is None:
        guard.feed(b"X-A: bbbbbbbb\r\n")
        sent += 15
        assert sent <= MAX_HEAD_BYTES
    assert type(guard.fault) is HeadTooLarge


def test_one_byte_chunks_may_cost_what_they_must() -> None:
    body = b"1\r\nx\r\n" * 100_000
    clean, guard = fed(chunked(body=body + b"0\r\n\r\n"))
    assert guard.fault is None
    assert b"".join(clean).endswith(b"%x\r\n%b\r\n0\r\n\r\n" % (100_000, b"x" * 100_000))


def outcome(pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes]], bool, bool]:
    """Requests, as (head, payload), that came through; refused; between.

    How much of a refused body had been passed on before is a matter of the split.
    """
    clean, guard = fed(*pieces)
    found = _requests(b"".join(clean))
    if guard.fault is not None and found:
        found[-1] = (found[-1][0], b"")
    return found, guard.fault is not None, guard.between


def _requests(clean: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    while clean:
        head, _, rest = clean.partition(b"\r\n\r\n")
        if b"\r\ntransfer-encoding:" in head.lower():
            payload = b""
            while rest:
                size, _, rest = rest.partition(b"\r\n")
                count = int(size, 16)
                payload, rest = payload + rest[:count], rest[count + 2 :]
                if not count:
                    break
        else:
            length = head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0]
            count = int(length or 0)
            payload, rest = rest[:count], rest[count:]
        found.append((head, payload))
        clean = rest
    return found


@pytest.mark.parametrize("section", SECTIONS, ids=[section.title for section in SECTIONS])
def test_splits_change_nothing(section) -> None:
    """Every row of the table, in one piece, byte by byte and in pieces at random."""
    rng = random.Random(section.title)
    for row in section.rows:
        wire = b"".join(row.wire)
        whole = outcome([wire])
        places = sorted(rng.randrange(len(wire) + 1) for _ in range(6))
        pieces = [wire[a:b] for a, b in itertools.pairwise([0, *places, len(wire)])]
        assert outcome([piece for piece in pieces if piece]) == whole, row.name
        if len(wire) < 2000:
            assert outcome([wire[i : i + 1] for i in range(len(wire))]) == whole, row.name
