"""Heads of ordinary requests: which are taken, what they say, how they are remembered."""

import pytest

from continuum_router.api.header_memo import (
    FINISHED_BYTES,
    MEMO_ENTRIES,
    MEMO_HEAD_BYTES,
    HeaderMemo,
)
from continuum_router.backends.kinds import BackendType
from continuum_router.backends.pool import Backend
from continuum_router.providers.prepare import Preparer
from continuum_router.request import Endpoint
from continuum_shared.config.kinds import BackendUrl

LINE = "POST /v1/chat/completions HTTP/1.1"


def head(
    *lines: str, line: str = LINE, host: str = "Host: edge", length: str | None = "7"
) -> bytes:
    rows = [line, *([host] if host else []), *lines]
    if length is not None:
        rows.append(f"Content-Length: {length}")
    return "\r\n".join([*rows, "", ""]).encode("latin-1")


ORDINARY = {
    "bare": head(),
    "completions": head(line="POST /v1/completions HTTP/1.1"),
    "embeddings": head(line="POST /v1/embeddings HTTP/1.1"),
    "responses": head(line="POST /v1/responses HTTP/1.1"),
    "usual headers": head(
        "User-Agent: x/1 (a; b)", "Accept: */*", "Content-Type: application/json"
    ),
    "kept": head("Connection: keep-alive"),
    "kept, other case": head("connection: Keep-Alive"),
    "host with port": head(host="Host: [::1]:8080"),
    "empty value": head("X-A:"),
    "tab in a value": head("X-A: a\tb"),
    "many names": head(*[f"X-{n}: 1" for n in range(60)]),
}
OTHERS = {
    "another path": head(line="POST /v1/rerank HTTP/1.1"),
    "a query": head(line="POST /v1/chat/completions?a=1 HTTP/1.1"),
    "absolute form": head(line="POST http://edge/v1/chat/completions HTTP/1.1"),
    "another method": head(line="PUT /v1/chat/completions HTTP/1.1"),
    "lower case": head(line="post /v1/chat/completions HTTP/1.1"),
    "http 1.0": head(line="POST /v1/chat/completions HTTP/1.0"),
    "two spaces": head(line="POST  /v1/chat/completions HTTP/1.1"),
    "no host": head(host=""),
    "two hosts": head("Host: b"),
    "odd host": head(host="Host: a b"),
    "empty host": head(host="Host:"),
    "no length": head(length=None),
    "two lengths": head("content-length: 7"),
    "a signed length": head(length="+7"),
    "a padded length": head(length="07"),
    "a long length": head(length="9" * 13),
    "a list of lengths": head(length="7, 7"),
    "chunked": head("Transfer-Encoding: chunked"),
    "expect": head("Expect: 100-continue"),
    "upgrade": head("Upgrade: h2c"),
    "coded": head("Content-Encoding: gzip"),
    "te": head("TE: trailers"),
    "trailer": head("Trailer: X-A"),
    "keep-alive": head("Keep-Alive: timeout=5"),
    "closing": head("Connection: close"),
    "naming": head("Connection: x-a", "X-A: 1"),
    "the same name twice": head("X-A: 1", "x-a: 2"),
    "a form": head("Content-Type: multipart/form-data; boundary=x"),
    "folded": head("X-A: 1\r\n b"),
    "bare line feed": head("X-A: 1\nX-B: 2"),
    "bare return": head("X-A: 1\rX-B: 2"),
    "nul": head("X-A: a\0b"),
    "delete": head("X-A: a\x7fb"),
    "not ascii": head("X-A: \u00e9"),
    "space in a name": head("X A: 1"),
    "space before the colon": head("X-A : 1"),
    "no colon": head("X-A"),
    "empty name": head(": 1"),
    "too many names": head(*[f"X-{n}: 1" for n in range(64)]),
    "too long": head("X-A: " + "a" * 9000),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary(name: str) -> None:
    found = HeaderMemo().read(ORDINARY[name], trusted=False)
    assert found is not None
    assert found[1] == 7


@pytest.mark.parametrize("name", OTHERS)
def test_not_surely_ordinary(name: str) -> None:
    memo = HeaderMemo()
    assert memo.read(OTHERS[name], trusted=False) is None
    assert len(memo) == 0


def test_what_a_head_says() -> None:
    read = HeaderMemo().read(
        head(
            "X-Request-Id: mine",
            "X-Client-Ref: batch",
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "Authorization: Bearer sk",
            "Cookie: a=b",
            "X-Forwarded-For: 1.2.3.4",
            "X-Own: 1",
            line="POST /v1/completions HTTP/1.1",
        ),
        trusted=False,
    )
    assert read is not None
    found = read[0]
    assert found.endpoint is Endpoint.COMPLETIONS
    assert (found.client_id, found.client_ref) == ("mine", "batch")
    assert found.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert dict(found.inbound.lines).keys() == {
        b"X-Request-Id",
        b"X-Client-Ref",
        b"traceparent",
        b"X-Own",
    }
    assert found.inbound.credentials == ((b"Authorization", b"Bearer sk"),)


def test_the_same_block_is_read_once_whatever_its_length() -> None:
    memo = HeaderMemo()
    one = memo.read(head(length="7"), trusted=False)
    two = memo.read(head(length="1234"), trusted=False)
    assert one is not None
    assert two is not None
    assert two[0] is one[0]
    assert (one[1], two[1]) == (7, 1234)
    assert (len(memo), memo.misses) == (1, 1)


def test_heads_of_trusted_peers_are_apart() -> None:
    memo = HeaderMemo()
    forwarded = head("X-Forwarded-For: 1.2.3.4")
    plain = memo.read(forwarded, trusted=False)
    trusted = memo.read(forwarded, trusted=True)
    assert plain is not None
    assert trusted is not None
    assert plain[0].inbound.lines == ()
    assert trusted[0].inbound.lines == ((b"X-Forwarded-For", b"1.2.3.4"),)


def test_the_memo_is_bounded() -> None:
    memo = HeaderMemo()
    for number in range(MEMO_ENTRIES + 10):
        assert memo.read(head(f"X-Number: {number}"), trusted=False) is not None
    assert len(memo) == 10
    assert memo.read(head("X-Long: " + "a" * MEMO_HEAD_BYTES), trusted=False) is not None
    assert len(memo) == 10


def test_a_client_without_patience_is_only_looked_up() -> None:
    memo = HeaderMemo()
    assert memo.read(head(), trusted=False, remember=False) is not None
    assert len(memo) == 0


def test_where_the_length_stands() -> None:
    read = HeaderMemo().read(head("X-A: 1", length="1234"), trusted=False)
    assert read is not None
    assert read[0].start + b"1234" + read[0].rest == head("X-A: 1", length="1234")


def test_finished_heads_are_bounded_however_many_backends_there_are() -> None:
    """A stranger chooses the heads: their number, their size, and who is asked."""
    backends = [
        Backend(
            name=f"b{n}", type=BackendType.GENERIC, url=BackendUrl.parse(f"http://10.0.0.{n}:80")
        )
        for n in range(200)
    ]
    preparer = Preparer(backends)
    for size, kept in ((10, 200), (4000, 7)):
        found = HeaderMemo().read(head(f"X-A: {'a' * size}"), trusted=False)
        assert found is not None
        for backend in backends:
            made = found[0].head_for(backend, preparer)
            assert made == preparer.open_head(Endpoint.CHAT, found[0].inbound, backend)
        assert len(found[0].heads) == kept
        assert sum(map(len, found[0].heads.values())) <= FINISHED_BYTES
