"""A client's request becomes one backend's: request line, headers, body, complete and in wire form.

The header policy of decisions H6 lives here, in both directions. The client's bytes are the body,
untouched. What can be worked out once per backend is worked out when the configuration is built.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from continuum_router.backends.credentials import own_headers
from continuum_router.backends.exchange import BodyTail, UpstreamRequest
from continuum_router.backends.pool import Backend
from continuum_router.errors import BadRequest
from continuum_router.providers.chunked_tail import ChunkedTail, chunk
from continuum_router.providers.model_splice import splice_model
from continuum_router.providers.salt_stamp import SaltStamp
from continuum_router.request import ChatRequest, Endpoint

RawHeaders = Sequence[tuple[bytes, bytes]]

CREDENTIAL_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})
CREDENTIAL_PARAMETERS = frozenset({"key", "token", "api_key", "api-key", "access_token"})

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
# Written anew for the backend: framing, coding (the body is decoded by then), Host, Expect (H9).
_REWRITTEN = frozenset(
    {b"host", b"content-length", b"content-encoding", b"accept-encoding", b"expect"}
)
_NEVER = _HOP_BY_HOP | _REWRITTEN | {b"cookie", b"cookie2"}
_NEVER_PREFIXES = (b"proxy-", b"x-continuum-")
_FORWARDING_PREFIXES = (b"forwarded", b"x-forwarded-")

# Names that a Connection header must not strip: the backend relies on them (request smuggling).
_PROTECTED = CREDENTIAL_HEADERS | {b"host"}
_PROTECTED_PREFIXES = (b"content-", b"x-continuum-")

_NOT_FOR_CLIENTS = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "set-cookie",
        "set-cookie2",
        "server",
        "alt-svc",
        "date",
        "x-cache",
        "x-cache-mode",
    }
)
_NOT_FOR_CLIENTS_PREFIXES = ("proxy-", "x-continuum-")

SESSION_HEADERS = (b"x-continuum-session-id", b"x-session-id")
"""Where a client may name its session; the first one that is there counts."""

_MAX_SESSION = 256

_BODILESS = frozenset({"GET", "DELETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """What of a client's head goes on, sorted once per request and used by every attempt.

    `lines` are header lines for any backend, `credentials` those that only a backend without
    credentials of its own gets (decisions P3); `query` and `bare_query` (without credential
    parameters) are raw, without the question mark. `session` is the client's name for its session
    (decisions A8), b"" for none. None of it is shown by repr.
    """

    lines: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    credentials: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    query: str = field(default="", repr=False)
    bare_query: str = field(default="", repr=False)
    session: bytes = field(default=b"", repr=False)


class TrustedProxies:
    """The networks of `server.trusted_proxies`: peers whose forwarding headers are passed on."""

    def __init__(
        self, networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network] = ()
    ) -> None:
        self._networks = tuple(networks)

    def trusts(self, peer: str | None) -> bool:
        """True when the peer's address lies in one of the networks; never for a unix socket."""
        if not self._networks or peer is None:
            return False
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)


def sort_headers(headers: RawHeaders, *, query: str = "", trusted: bool = False) -> Inbound:
    """Apply the request half of H6.

    `headers` are the client's raw header pairs, `query` its raw query, `trusted` whether the peer
    is a trusted proxy. Raises BadRequest when Connection names a header that must not be dropped,
    or when a header cannot be written on.
    """
    named = _connection_named(headers)
    lines: list[tuple[bytes, bytes]] = []
    credentials: list[tuple[bytes, bytes]] = []
    sessions: dict[bytes, bytes] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in SESSION_HEADERS:
            sessions.setdefault(lower, value[:_MAX_SESSION])
        if b"_" in lower:
            # Some servers read an underscore as a hyphen: no name gets past this list by one.
            lower = lower.replace(b"_", b"-")
        if lower in _NEVER or lower in named or lower.startswith(_NEVER_PREFIXES):
            continue
        if lower.startswith(_FORWARDING_PREFIXES) and not trusted:
            continue
        if b"\r" in value or b"\n" in value or b"\x00" in value:
            raise BadRequest("A header value has a control character.", code="invalid_header")
        (credentials if lower in CREDENTIAL_HEADERS else lines).append((name, value))
    return Inbound(
        lines=tuple(lines),
        credentials=tuple(credentials),
        query=query,
        bare_query=_without_credentials(query) if query else "",
        session=_session(sessions) if sessions else b"",
    )


def _session(named: Mapping[bytes, bytes]) -> bytes:
    return next(named[name] for name in SESSION_HEADERS if name in named)


class Preparer:
    """Writes requests for the backends of one configuration. Made once, with the pool."""

    def __init__(
        self,
        backends: Iterable[Backend],
        *,
        rewrite_response_model: bool = True,
        salts: SaltStamp | None = None,
    ) -> None:
        self._texts = {backend.name: _BackendText.of(backend) for backend in backends}
        self._rewrites = rewrite_response_model
        self._salts = salts
        self.stamps = salts is not None
        """Whether bodies get a salt."""

    def prepare(
        self, endpoint: Endpoint, body: bytes, inbound: Inbound, backend: Backend
    ) -> UpstreamRequest:
        """Return the request to send to `backend`, a member of the configuration."""
        head = self.open_head(endpoint, inbound, backend)
        return UpstreamRequest(method="POST", head=head + b"%d\r\n\r\n" % len(body), body=body)

    def open_head(self, endpoint: Endpoint, inbound: Inbound, backend: Backend) -> bytes:
        """The head of such a request up to its last field's value, the length of the body."""
        return self._head("POST", endpoint.path, b"Content-Length: ", inbound, backend)

    def prepare_request(
        self, request: ChatRequest, inbound: Inbound, backend: Backend
    ) -> UpstreamRequest:
        """The same for any request: under an alias the body names the real model (H7, A1), and it
        carries this backend's salt (C24)."""
        upload, model = request.upload, request.model
        body = request.raw
        real = backend.real_name(model)
        growth = 0
        if real != model and upload is None:
            body = splice_model(body, real)
        elif real != model and upload is not None and upload.model_at is not None:
            start, end = upload.model_at
            body = body[:start] + real.encode("utf-8") + body[end:]
            growth = len(body) - len(request.raw)
        if upload is None:
            body = self.salted(body, request, backend)
        tail: BodyTail | None = None if upload is None else upload.tail
        if tail is not None and upload is not None:
            if upload.length is None:
                framing = b"Transfer-Encoding: chunked\r\n\r\n"
                body, tail = chunk(body), ChunkedTail(tail)
            else:
                framing = b"Content-Length: %d\r\n\r\n" % (upload.length + growth)
        elif request.method in _BODILESS and not body:
            framing = b"\r\n"
        else:
            framing = b"Content-Length: %d\r\n\r\n" % len(body)
        path = request.path or request.endpoint.path
        head = self._head(request.method, path, framing, inbound, backend)
        return UpstreamRequest(method=request.method, head=head, body=body, tail=tail)

    def salted(self, body: bytes, request: ChatRequest, backend: Backend) -> bytes:
        """`body` with this backend's salt, or as it is (decisions C24)."""
        return body if self._salts is None else self._salts.stamp(body, request, backend)

    def answers_as(self, request: ChatRequest, backend: Backend) -> str | None:
        """The name to put into the answer in the place of the backend's own, or None (H7)."""
        renamed = self._rewrites and backend.real_name(request.model) != request.model
        return request.model if renamed else None

    def _head(
        self, method: str, path: str, framing: bytes, inbound: Inbound, backend: Backend
    ) -> bytes:
        text = self._texts[backend.name]
        query = inbound.bare_query if text.has_credentials else inbound.query
        target = text.base_path + path + (f"?{query}" if query else "")
        lines = [f"{method} {target} HTTP/1.1".encode("ascii", "replace"), text.host_line]
        own = text.own_names
        for name, value in inbound.lines:
            if not own or name.lower() not in own:
                lines.append(name + b": " + value)
        if not text.has_credentials:
            lines.extend(
                name + b": " + value
                for name, value in inbound.credentials
                if not own or name.lower() not in own
            )
        lines.extend(text.lines)
        lines.append(b"Accept-Encoding: identity")
        lines.append(framing)
        return b"\r\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BackendText:
    """What each request to one backend carries, as bytes. `lines` hold its key."""

    base_path: str
    host_line: bytes
    lines: tuple[bytes, ...] = field(repr=False)
    own_names: frozenset[bytes]
    has_credentials: bool

    @classmethod
    def of(cls, backend: Backend) -> "_BackendText":
        given = [(n.encode("ascii"), v.encode("utf-8")) for n, v in own_headers(backend)]
        hosts = [value for name, value in given if name.lower() == b"host"]
        pairs = [(n, v) for n, v in given if n.lower() not in _HOP_BY_HOP | _REWRITTEN]
        names = {name.lower() for name, _ in pairs}
        has_credentials = backend.api_key is not None or bool(names & CREDENTIAL_HEADERS)
        return cls(
            base_path=backend.url.path,
            host_line=b"Host: " + (hosts[0] if hosts else backend.url.authority.encode("ascii")),
            lines=tuple(name + b": " + value for name, value in pairs),
            own_names=frozenset(names),
            has_credentials=has_credentials,
        )


def headers_for_client(
    headers: Iterable[tuple[str, str]], *, decoded: bool
) -> list[tuple[str, str]]:
    """Apply the response half of H6 to a backend's header lines.

    Framing is left to the server that writes the answer. `decoded` says that a content coding was
    undone, so its header must go too (decisions E23).
    """
    pairs = list(headers)
    named = {
        token.strip().lower()
        for name, value in pairs
        if name.lower() == "connection"
        for token in value.split(",")
    }
    kept: list[tuple[str, str]] = []
    for name, value in pairs:
        lower = name.lower()
        if lower in _NOT_FOR_CLIENTS or lower.startswith(_NOT_FOR_CLIENTS_PREFIXES):
            continue
        if lower in named and not lower.startswith("content-"):
            continue
        if decoded and lower == "content-encoding":
            continue
        kept.append((name, value if value.isascii() else _as_utf8(value)))
    return kept


def _as_utf8(value: str) -> str:
    """Bytes that were read as ISO-8859-1 → the text they are in UTF-8, if they are UTF-8."""
    return value.encode("latin-1", "replace").decode("utf-8", "replace")


def _connection_named(headers: RawHeaders) -> frozenset[bytes]:
    named: set[bytes] = set()
    for name, value in headers:
        if name.lower() == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    named.discard(b"")
    for token in named:
        if token in _PROTECTED or token.startswith(_PROTECTED_PREFIXES):
            raise BadRequest(
                "The Connection header names a header that must not be dropped.",
                code="invalid_connection_header",
            )
    return frozenset(named)


def _without_credentials(query: str) -> str:
    return "&".join(
        part
        for part in query.split("&")
        if unquote_plus(part.partition("=")[0]).lower() not in CREDENTIAL_PARAMETERS
    )
