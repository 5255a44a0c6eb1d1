"""Reading heads: ordinary ones, odd ones, and those that are refused."""

import pytest

from continuum_router.errors import Cause
from continuum_router.upstream.response_head import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MEMO_ENTRIES,
    MEMO_HEAD_BYTES,
    HeadError,
    HeadReader,
    is_interim,
)


def head(*lines: str, line: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([line, *lines, "", ""]).encode("latin-1")


ACCEPTED = {
    "plain": (head("A: b"), (200, "OK", (("A", "b"),), False, None, True)),
    "no reason": (head(line="HTTP/1.1 404"), (404, "", (), False, None, True)),
    "empty reason": (head(line="HTTP/1.1 404 "), (404, "", (), False, None, True)),
    "length": (head("content-length:  12 "), (200, "OK", (), False, 12, True)),
    "length 0": (head("Content-Length: 0"), (200, "OK", (), False, 0, True)),
    "chunked": (head("Transfer-Encoding: Chunked"), (200, "OK", (), True, None, True)),
    "close": (head("Connection: Close"), (200, "OK", (), False, None, False)),
    "1.0": (
        head("Content-Length: 1", line="HTTP/1.0 200 OK"),
        (200, "OK", (), False, 1, False),
    ),
    "1.0 keep-alive": (
        head("Connection: Keep-Alive", "Content-Length: 1", line="HTTP/1.0 200 OK"),
        (200, "OK", (), False, 1, True),
    ),
    "1.0 chunked is not reused": (
        head("Connection: keep-alive", "Transfer-Encoding: chunked", line="HTTP/1.0 200 OK"),
        (200, "OK", (), True, None, False),
    ),
    "values keep inner space and bytes": (
        head("X: a\t b ", "Y: \xe9\xff"),
        (200, "OK", (("X", "a\t b"), ("Y", "\xe9\xff")), False, None, True),
    ),
    "order and case stay": (
        head("b: 1", "A: 2", "b: 3"),
        (200, "OK", (("b", "1"), ("A", "2"), ("b", "3")), False, None, True),
    ),
    "hop-by-hop fields end here": (
        head("Keep-Alive: x", "Upgrade: h2c", "Trailer: T", "TE: x", "Proxy-Authenticate: p"),
        (200, "OK", (), False, None, True),
    ),
    "named by Connection": (
        head("Connection: X-Hop, close", "X-Hop: 1", "X-Stay: 2"),
        (200, "OK", (("X-Stay", "2"),), False, None, False),
    ),
    "Connection cannot take what the message needs": (
        head("Connection: Content-Type", "Content-Type: text/plain"),
        (200, "OK", (("Content-Type", "text/plain"),), False, None, True),
    ),
    "bare LF, not reused": (
        b"HTTP/1.1 200 OK\nA: b\nContent-Length: 3\n\n",
        (200, "OK", (("A", "b"),), False, 3, False),
    ),
    "folded line, not reused": (
        head("A: b", " c", "Content-Length: 3"),
        (200, "OK", (("A", "b c"),), False, 3, False),
    ),
    "blank line before": (b"\r\n" + head("A: b"), (200, "OK", (("A", "b"),), False, None, False)),
    "interim": (
        head("Link: x", line="HTTP/1.1 103 Early Hints"),
        (103, "Early Hints", (("Link", "x"),), False, None, False),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("rest", [b"", b"body\r\n\r\nmore"], ids=["alone", "with body"])
async def test_heads_that_are_read(name, rest):
    wire, expected = ACCEPTED[name]
    read = HeadReader().read(wire + rest)
    assert read is not None
    facts, length, used = read
    assert (
        facts.status,
        facts.reason,
        facts.headers,
        facts.chunked,
        length,
        facts.keep,
    ) == expected
    assert used == len(wire)


@pytest.mark.parametrize("name", ACCEPTED)
async def test_no_head_is_read_before_it_ended(name):
    wire = ACCEPTED[name][0]
    reader = HeadReader()
    ends = [size for size in range(len(wire) + 1) if reader.read(wire[:size]) is not None]
    assert ends == [len(wire)]


REFUSED = {
    "garbage": (b"garbage\r\n\r\n", Cause.BAD_HEAD),
    "garbage without an end": (b"SSH-2.0-x\r\n", Cause.BAD_HEAD),
    "HTTP/2": (b"HTTP/2.0 200 OK\r\n\r\n", Cause.BAD_HEAD),
    "two spaces": (b"HTTP/1.1  200 OK\r\n\r\n", Cause.BAD_HEAD),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", Cause.BAD_HEAD),
    "four digits": (b"HTTP/1.1 2000 OK\r\n\r\n", Cause.BAD_HEAD),
    "space before colon": (head("A : b"), Cause.BAD_HEAD),
    "no colon": (head("nocolon"), Cause.BAD_HEAD),
    "empty name": (head(": x"), Cause.BAD_HEAD),
    "control byte": (head("A: b\x01c"), Cause.BAD_HEAD),
    "NUL": (head("A: b\x00c"), Cause.BAD_HEAD),
    "bare CR": (head("A: b\rc"), Cause.BAD_HEAD),
    "two lengths": (head("Content-Length: 1", "Content-Length: 2"), Cause.BAD_HEAD),
    "the same length twice": (head("Content-Length: 1", "content-length: 1"), Cause.BAD_HEAD),
    "length list": (head("Content-Length: 1, 1"), Cause.BAD_HEAD),
    "signed length": (head("Content-Length: +1"), Cause.BAD_HEAD),
    "hex length": (head("Content-Length: 0x1"), Cause.BAD_HEAD),
    "empty length": (head("Content-Length: "), Cause.BAD_HEAD),
    "huge length": (head("Content-Length: " + "9" * 19), Cause.BAD_HEAD),
    "length and chunked": (head("Content-Length: 1", "Transfer-Encoding: chunked"), Cause.BAD_HEAD),
    "other coding": (head("Transfer-Encoding: gzip, chunked"), Cause.BAD_HEAD),
    "chunked twice": (
        head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        Cause.BAD_HEAD,
    ),
    "many blank lines": (b"\r\n\r\n\r\n", Cause.BAD_HEAD),
    "long": (head("A: " + "x" * MAX_HEAD_BYTES), Cause.HEAD_TOO_LARGE),
    "long without an end": (
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * MAX_HEAD_BYTES,
        Cause.HEAD_TOO_LARGE,
    ),
    "many fields": (head(*["A: b"] * (MAX_HEADERS + 1)), Cause.HEAD_TOO_LARGE),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_heads_that_are_refused(name):
    wire, cause = REFUSED[name]
    reader = HeadReader()
    for _ in range(2):  # the second time no memo may have learnt it
        with pytest.raises(HeadError) as caught:
            reader.read(wire)
        assert caught.value.cause is cause


def test_the_same_head_gives_the_same_facts_whatever_its_length():
    reader = HeadReader()
    first = reader.read(head("A: b", "Content-Length: 5", "C: d"))
    second = reader.read(head("A: b", "Content-Length: 12345", "C: d"))
    assert first is not None
    assert second is not None
    assert first[0] is second[0]
    assert (first[1], second[1]) == (5, 12345)


def test_a_remembered_length_is_not_taken_for_an_empty_one():
    reader = HeadReader()
    assert reader.read(head("Content-Length: 5")) is not None
    with pytest.raises(HeadError):
        # Nothing asynchronous is needed to refuse it: it is a plain head with a bad length.
        reader.read(head("Content-Length:"))


async def test_a_remembered_head_is_not_known_again_with_a_nul_for_its_length():
    reader = HeadReader()
    known = reader.read(head("Content-Length: 5"))
    assert known is not None
    with pytest.raises(HeadError) as caught:
        reader.read(head("Content-Length: \0"))
    assert caught.value.cause is Cause.BAD_HEAD


def test_the_memo_is_bounded():
    reader = HeadReader()
    for number in range(MEMO_ENTRIES + 10):
        reader.read(head(f"X-Id: {number}"))
    assert len(reader._memo) == 10
    big = head("X: " + "y" * MEMO_HEAD_BYTES)
    assert reader.read(big) is not None
    assert len(reader._memo) == 10


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Keep-Alive: timeout=5", 5.0),
        ("keep-alive: max=10, timeout = 7", 7.0),
        ("Keep-Alive: max=10", None),
        ("Keep-Alive: xtimeout=5", None),
        ("X: timeout=5", None),
    ],
)
def test_the_peers_idle_limit_is_read(line, seconds):
    read = HeadReader().read(head(line))
    assert read is not None
    assert read[0].keep_for == seconds


@pytest.mark.parametrize(
    ("status", "interim"), [(100, True), (101, False), (103, True), (199, True), (200, False)]
)
def test_interim_statuses(status, interim):
    assert is_interim(status) is interim


def test_the_last_head_is_known_again_with_any_length_and_nothing_else_is():
    reader = HeadReader()
    lines = ("Content-Type: a/b", "Content-Length: 7", "X-A: 1")
    for _ in range(3):
        read = reader.read(head(*lines) + b"body")
        assert read is not None
        facts = read[0]
        assert read[1:] == (7, len(head(*lines)))
    longer = head("Content-Type: a/b", "Content-Length: 123456", "X-A: 1")
    assert reader.read(longer) == (facts, 123456, len(longer))
    for bad in ("+7", "7 7", "0x7", "1" * 19):
        with pytest.raises(HeadError):
            reader.read(head("Content-Type: a/b", f"Content-Length: {bad}", "X-A: 1"))
    two = head("Content-Type: a/b", "Content-Length: 7", "X-A: 1", "Content-Length: 7")
    with pytest.raises(HeadError):
        reader.read(two)
    other = reader.read(head("Content-Type: a/b", "Content-Length: 7", "X-A: 2"))
    assert other is not None
    assert other[0].headers[-1] == ("X-A", "2")


@pytest.mark.parametrize(
    ("status", "lines", "has_body"),
    [
        ("200 OK", ["Content-Length: 2"], True),
        ("500 X", ["Content-Length: 0"], True),
        ("204 X", ["Content-Length: 2"], False),
        ("304 X", ["Content-Length: 2"], False),
        ("200 OK", ["Transfer-Encoding: chunked"], False),
    ],
)
def test_whether_a_body_of_the_announced_length_follows(status, lines, has_body):
    read = HeadReader().read(head(*lines, line=f"HTTP/1.1 {status}"))
    assert read is not None
    assert read[0].has_body is has_body
