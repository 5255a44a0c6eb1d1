"""Header rules of decisions H6 in both directions, and requests in wire form."""

import ipaddress

import pytest

from continuum_router.backends.kinds import BackendType
from continuum_router.backends.pool import Backend
from continuum_router.errors import BadRequest
from continuum_router.providers.prepare import (
    Preparer,
    TrustedProxies,
    headers_for_client,
    sort_headers,
)
from continuum_router.request import (
    Endpoint,
    RequestRules,
    Upload,
    parse_generate,
    parse_opaque,
)
from continuum_shared.config.kinds import BackendUrl, Secret


def _backend(url: str = "http://h:8000", **more: object) -> Backend:
    values = {"name": "b", "type": BackendType.VLLM, "url": BackendUrl.parse(url), **more}
    return Backend(**values)  # type: ignore[arg-type]


def _head(
    backend: Backend,
    headers: list[tuple[bytes, bytes]] | None = None,
    *,
    query: str = "",
    body: bytes = b"{}",
    endpoint: Endpoint = Endpoint.CHAT,
) -> list[str]:
    inbound = sort_headers(headers or [], query=query)
    request = Preparer([backend]).prepare(endpoint, body, inbound, backend)
    assert request.body is body
    assert request.method == "POST"
    head, end, rest = request.head.partition(b"\r\n\r\n")
    assert (end, rest) == (b"\r\n\r\n", b"")
    return head.decode("latin-1").split("\r\n")


def test_a_bare_request() -> None:
    assert _head(_backend()) == [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: h:8000",
        "Accept-Encoding: identity",
        "Content-Length: 2",
    ]


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://h", "POST /v1/completions HTTP/1.1", "Host: h"),
        ("http://h:8000/v1", "POST /v1/completions HTTP/1.1", "Host: h:8000"),
        ("https://h:443/base/v1/", "POST /base/v1/completions HTTP/1.1", "Host: h"),
        ("http://[::1]:8000", "POST /v1/completions HTTP/1.1", "Host: [::1]:8000"),
        ("unix:///run/e.sock", "POST /v1/completions HTTP/1.1", "Host: localhost"),
    ],
)
def test_where_it_goes(url: str, line: str, host: str) -> None:
    assert _head(_backend(url), endpoint=Endpoint.COMPLETIONS)[:2] == [line, host]


DROPPED = (
    b"Connection: close",
    b"Keep-Alive: 5",
    b"TE: trailers",
    b"Trailer: x",
    b"Transfer-Encoding: chunked",
    b"Upgrade: h2c",
    b"HTTP2-Settings: x",
    b"Proxy-Authorization: x",
    b"Proxy-Connection: x",
    b"Cookie: a=b",
    b"Host: evil",
    b"Content-Length: 99",
    b"Content-Encoding: gzip",
    b"Accept-Encoding: br",
    b"Expect: 100-continue",
    b"X-Continuum-Backend: b9",
    b"x-continuum-anything: 1",
    b"Forwarded: for=1",
    b"X-Forwarded-For: 1",
    b"x-forwarded-host: h",
)
KEPT = (
    b"Content-Type: application/json",
    b"User-Agent: u",
    b"X-Request-Id: r",
    b"traceparent: 00-1-2-3",
    b"X-Odd: \xff\xfe",
)


def _pair(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b": ")
    return name, value


def test_what_is_dropped_and_what_stays_as_it_was() -> None:
    got = _head(_backend(), [_pair(line) for line in (*DROPPED, *KEPT)])
    assert got[2:-2] == [line.decode("latin-1") for line in KEPT]


def test_headers_that_connection_names_are_dropped() -> None:
    headers = [(b"connection", b"X-A , x-b,close"), (b"X-A", b"1"), (b"X-B", b"2"), (b"X-C", b"3")]
    assert _head(_backend(), headers)[2:-2] == ["X-C: 3"]


@pytest.mark.parametrize(
    "name",
    [b"Host", b"content-type", b"Content-Length", b"AUTHORIZATION", b"api-key", b"x-goog-api-key"],
)
def test_connection_must_not_name_what_is_protected(name: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        sort_headers([(b"Connection", b"keep-alive, " + name)])
    assert caught.value.code == "invalid_connection_header"


@pytest.mark.parametrize("bad", [b"a\r\nX: 1", b"a\nb", b"a\x00b"])
def test_a_value_cannot_smuggle_a_line(bad: bytes) -> None:
    with pytest.raises(BadRequest):
        sort_headers([(b"X-A", bad)])


def test_forwarding_headers_of_a_trusted_proxy_pass() -> None:
    headers = [(b"X-Forwarded-For", b"1.2.3.4"), (b"Forwarded", b"for=1")]
    assert sort_headers(headers, trusted=True).lines == tuple(headers)
    assert sort_headers(headers, trusted=False).lines == ()


CREDENTIALS = [
    (b"Authorization", b"Bearer c"),
    (b"X-Api-Key", b"c"),
    (b"api-key", b"c"),
    (b"x-goog-api-key", b"c"),
]


def test_the_clients_credentials_go_to_a_backend_without_any() -> None:
    got = _head(_backend(), CREDENTIALS, query="key=c&v=1")
    assert got[0] == "POST /v1/chat/completions?key=c&v=1 HTTP/1.1"
    assert got[2:6] == [f"{n.decode()}: {v.decode()}" for n, v in CREDENTIALS]


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ({"api_key": Secret("s")}, "Authorization: Bearer s"),
        ({"headers": (("X-API-Key", "s"),)}, "X-API-Key: s"),
    ],
)
def test_and_never_to_one_with_its_own(own: dict[str, object], line: str) -> None:
    got = _head(_backend(**own), CREDENTIALS, query="v=1&key=c&To%6ben=c&api_key=c&z")
    assert got[0] == "POST /v1/chat/completions?v=1&z HTTP/1.1"
    assert got[2:-2] == [line]


def test_the_backends_headers_win() -> None:
    backend = _backend(headers=(("User-Agent", "mine"), ("Cookie", "c=1")))
    got = _head(backend, [(b"user-agent", b"theirs"), (b"X-A", b"1")])
    assert got[2:-2] == ["X-A: 1", "User-Agent: mine", "Cookie: c=1"]


def test_a_backends_host_header_replaces_the_authority() -> None:
    backend = _backend(headers=(("Host", "tenant.example"), ("Content-Length", "1")))
    assert _head(backend)[1:] == [
        "Host: tenant.example",
        "Accept-Encoding: identity",
        "Content-Length: 2",
    ]


def test_the_answers_headers() -> None:
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", "5"),
        ("Content-Encoding", "br"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close, X-Hop, content-type"),
        ("X-Hop", "1"),
        ("Set-Cookie", "a"),
        ("Server", "s"),
        ("Alt-Svc", "a"),
        ("Date", "d"),
        ("X-Cache", "HIT"),
        ("x-continuum-route", "forged"),
        ("Proxy-Authenticate", "x"),
        ("Retry-After", "1"),
        ("X-Name", "\xed\x95\x9c"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
    ]
    kept = [
        ("Content-Type", "application/json"),
        ("Content-Encoding", "br"),
        ("Retry-After", "1"),
        ("X-Name", "한"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
    ]
    assert headers_for_client(headers, decoded=False) == kept
    kept.remove(("Content-Encoding", "br"))
    assert headers_for_client(headers, decoded=True) == kept


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.0.0.1", False),
        ("fd00::7", True),
        ("fd00::7%eth0", True),
        ("", False),
        (None, False),
        ("unix", False),
    ],
)
def test_trusted_proxies(peer: str | None, trusted: bool) -> None:
    networks = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")]
    assert TrustedProxies(networks).trusts(peer) is trusted
    assert not TrustedProxies().trusts(peer)


def test_configured_values_outside_ascii_are_sent_as_utf_8() -> None:
    inbound = sort_headers([])
    backend = _backend(headers=(("x-team", "日本"),), api_key=Secret("clé"))
    request = Preparer([backend]).prepare(Endpoint.CHAT, b"", inbound, backend)
    assert "x-team: 日本\r\nAuthorization: Bearer clé\r\n".encode() in request.head


def test_nothing_secret_is_shown_by_repr() -> None:
    headers = [(b"Authorization", b"canary"), (b"x", b"canary")]
    assert "canary" not in repr(sort_headers(headers, query="key=canary&a=canary"))
    backend = _backend(headers=(("x-team", "canary"),), api_key=Secret("canary"))
    assert "canary" not in repr(vars(Preparer([backend])))


class _Tail:
    started = False

    async def next(self) -> bytes:
        return b""


RAW = b"--B..m..rest"
TAIL = _Tail()


@pytest.mark.parametrize(
    ("method", "upload", "framing", "body"),
    [
        ("POST", None, ["Content-Length: 12"], RAW),
        ("POST", Upload(length=12, model_at=(5, 6)), ["Content-Length: 15"], b"--B..real..rest"),
        (
            "POST",
            Upload(length=99, model_at=(5, 6), tail=TAIL),
            ["Content-Length: 102"],
            b"--B..real..rest",
        ),
        (
            "PUT",
            Upload(length=None, model_at=(5, 6), tail=TAIL),
            ["Transfer-Encoding: chunked"],
            b"f\r\n--B..real..rest\r\n",
        ),
        ("GET", None, [], b""),
        ("DELETE", None, [], b""),
        ("POST", None, ["Content-Length: 0"], b""),
    ],
)
def test_uploads_and_their_framing(
    method: str, upload: Upload | None, framing: list[str], body: bytes
) -> None:
    used = _backend(aliases={"m": "real"})
    request = parse_opaque(
        Endpoint.AUDIO,
        RAW if body else b"",
        model=b"m" if upload else None,
        path="/v1/audio/x",
        method=method,
        upload=upload,
    )
    sent = Preparer([used]).prepare_request(request, sort_headers([]), used)
    head = sent.head.decode().removesuffix("\r\n\r\n").split("\r\n")
    assert head[0] == f"{method} /v1/audio/x HTTP/1.1"
    assert [row for row in head if row.startswith(("Content-Length", "Transfer"))] == framing
    assert (sent.method, sent.body) == (method, body)
    assert (sent.tail is None) is (upload is None or upload.tail is None)


def test_a_name_is_put_back_only_where_it_was_changed() -> None:
    used = _backend(aliases={"m": "real"})
    plain = parse_opaque(Endpoint.AUDIO, b"", model=b"real")
    alias = parse_opaque(Endpoint.AUDIO, b"", model=b"m")
    assert Preparer([used]).answers_as(alias, used) == "m"
    assert Preparer([used]).answers_as(plain, used) is None
    assert Preparer([used], rewrite_response_model=False).answers_as(alias, used) is None


def test_without_an_alias_the_body_is_the_very_same() -> None:
    raw = b'{"model":"other","messages":[{}]}'
    request = parse_generate(Endpoint.CHAT, raw, RequestRules())
    used = _backend(aliases={"m": "real"})
    assert Preparer([used]).prepare_request(request, sort_headers([]), used).body is raw
