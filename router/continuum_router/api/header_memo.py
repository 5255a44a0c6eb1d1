"""Reads the heads of ordinary client requests, and remembers them.

Clients send the same header block again and again, with another Content-Length. The block without
those digits is the key; what was worked out from it once is the value: which endpoint, which header
lines go on, what the log is to say, and the finished head for each backend. Only a head that every
strict rule below accepts is read here at all. Whatever is not surely ordinary gives None, and
aiohttp decides about it (design/data-plane.md section 7, points 1 and 2).
"""

import re
from dataclasses import dataclass, field

from continuum_router.api.answer_head import header_lines
from continuum_router.api.edge_metrics import EndpointLabel
from continuum_router.api.scope import CACHE_BYPASS, Scope, client_text, trace_of
from continuum_router.backends.pool import Backend
from continuum_router.errors import BadRequest
from continuum_router.providers.prepare import Inbound, Preparer, sort_headers
from continuum_router.request import COMPLETING, Endpoint

MAX_HEAD_BYTES = 8 * 1024
MAX_FIELDS = 64
MAX_DIGITS = 12
"""Longest Content-Length."""
MEMO_ENTRIES = 1024
MEMO_HEAD_BYTES = 4096
"""Heads above this size are not remembered: the memo stays below 4 MiB of keys."""
FINISHED_BYTES = 32 * 1024
"""What the finished heads of one head may take, however many backends there are."""

_FIELD = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e]*\r\n"
_ORDINARY = re.compile(
    rb"POST (/v1/(?:chat/completions|completions|embeddings|responses)) HTTP/1\.1\r\n((?:"
    + _FIELD
    + rb")+)\r\n"
)
_PAIR = re.compile(rb"([^:\r\n]+):[ \t]*([\t\x20-\x7e]*)\r\n")
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?(0|[1-9][0-9]{0,11})\r\n")
_HOST = re.compile(rb"[A-Za-z0-9._\-:\[\]]+")
_NEVER = frozenset(
    {
        b"transfer-encoding",
        b"expect",
        b"upgrade",
        b"content-encoding",
        b"te",
        b"trailer",
        b"http2-settings",
        b"keep-alive",
    }
)
_PATHS = {endpoint.path.encode(): endpoint for endpoint in Endpoint}


@dataclass(slots=True, kw_only=True, eq=False)
class OrdinaryHead:
    """An ordinary head, its Content-Length aside.

    `inbound` are the header lines that go on; the three client fields are for the log only.
    `heads` holds the finished head for each backend's name, up to the digits of the Content-Length,
    as far as they fit into `FINISHED_BYTES`.
    `start` and `rest` are the bytes before and behind those digits. `cache_line` is the answer's
    X-Cache line, if its endpoint has one; answers of one that `keeps_id` are asked for again by
    their id.
    """

    start: bytes
    rest: bytes
    endpoint: Endpoint
    inbound: Inbound
    client_id: str | None
    client_ref: str | None
    trace_id: str | None
    label: EndpointLabel
    cacheable: bool
    cache_line: bytes
    keeps_id: bool
    heads: dict[str, bytes] = field(default_factory=dict)

    def scope(self, request_id: str, started: float) -> Scope:
        """A request with this head, as the general way would have read it."""
        path = self.endpoint.path
        return Scope(
            request_id=request_id,
            started=started,
            method="POST",
            endpoint=self.label,
            route=path,
            path=path,
            api=True,
            generates=True,
            cacheable=self.cacheable,
            client_id=self.client_id,
            client_ref=self.client_ref,
            trace_id=self.trace_id,
        )

    def head_for(self, backend: Backend, preparer: Preparer) -> bytes:
        """The request head for `backend`, up to the Content-Length's digits."""
        head = self.heads.get(backend.name)
        if head is None:
            head = preparer.open_head(self.endpoint, self.inbound, backend)
            # They are of about one size, the client's lines making the most of it.
            if (len(self.heads) + 1) * len(head) <= FINISHED_BYTES:
                self.heads[backend.name] = head
        return head


class HeaderMemo:
    """Heads of one snapshot. `trusted` heads (peers whose forwarding headers count) are apart."""

    __slots__ = ("_plain", "_trusted", "misses")

    def __init__(self) -> None:
        self._plain: dict[bytes, OrdinaryHead] = {}
        self._trusted: dict[bytes, OrdinaryHead] = {}
        self.misses = 0

    def __len__(self) -> int:
        return len(self._plain) + len(self._trusted)

    def read(
        self, head: bytes, *, trusted: bool, remember: bool = True
    ) -> tuple[OrdinaryHead, int] | None:
        """Read `head`, which ends with its blank line: the facts and the length of the body.

        None: not surely ordinary. `remember` False only looks things up, for a client whose heads
        are all different.
        """
        match = _LENGTH.search(head)
        if match is None:
            return None
        start, stop = match.span(1)
        # No ordinary head holds a NUL, so the key of one cannot be the key of another.
        key = head[:start] + b"\0" + head[stop:]
        memo = self._trusted if trusted else self._plain
        found = memo.get(key)
        if found is None:
            self.misses += 1
            found = read_ordinary(head, match.span(1), trusted=trusted)
            if found is None:
                return None
            if remember and len(key) <= MEMO_HEAD_BYTES:
                if len(memo) >= MEMO_ENTRIES:
                    memo.clear()
                memo[key] = found
        return found, int(match[1])


def read_ordinary(head: bytes, digits: tuple[int, int], *, trusted: bool) -> OrdinaryHead | None:
    """Read a whole head by the strict rules; None when it is not surely ordinary.

    `digits` are the offsets of the Content-Length's.

    Each field name once; one Host of plain characters; one Content-Length; nothing that changes
    the framing, the coding or the connection; no bytes outside printable ASCII.
    """
    if len(head) > MAX_HEAD_BYTES:
        return None
    match = _ORDINARY.fullmatch(head)
    if match is None:
        return None
    pairs = [(name, value.rstrip(b" \t")) for name, value in _PAIR.findall(match[2])]
    named = {name.lower(): value for name, value in pairs}
    if len(named) != len(pairs) or len(pairs) > MAX_FIELDS or not _NEVER.isdisjoint(named):
        return None
    if b"content-length" not in named or not _HOST.fullmatch(named.get(b"host", b"")):
        return None
    if named.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    if b"multipart" in named.get(b"content-type", b"").lower():
        return None
    try:
        inbound = sort_headers(pairs, trusted=trusted)
    except BadRequest:
        return None
    endpoint = _PATHS[match[1]]
    cacheable = endpoint in COMPLETING
    return OrdinaryHead(
        start=head[: digits[0]],
        rest=head[digits[1] :],
        endpoint=endpoint,
        label=EndpointLabel(endpoint.value),
        cacheable=cacheable,
        cache_line=header_lines([CACHE_BYPASS]) if cacheable else b"",
        keeps_id=endpoint is Endpoint.RESPONSES,
        inbound=inbound,
        client_id=client_text(_text(named.get(b"x-request-id"))),
        client_ref=client_text(_text(named.get(b"x-client-ref"))),
        trace_id=trace_of(_text(named.get(b"traceparent"))),
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("ascii")
