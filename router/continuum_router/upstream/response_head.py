"""Reads the heads of HTTP/1 answers: status line, headers, and how the body will end.

An ordinary head is matched by one strict pattern and remembered, so that a backend that sends the
same head again costs a look-up. Every other head goes to aiohttp's own parser, and what that
accepts must still consist of plain header names and values (design/data-plane.md, rule 2). The
header list that leaves here has no framing and no hop-by-hop fields: those end here.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpResponseParser

from continuum_router.errors import Cause

MAX_HEAD_BYTES = 64 * 1024
"""Largest head, interim ones before it included."""

MAX_HEADERS = 256
MAX_DIGITS = 18
NO_BODY = frozenset({204, 304})
"""Statuses whose answers never have a body."""

MEMO_ENTRIES = 512
MEMO_HEAD_BYTES = 4096
"""Heads above this size are not remembered: the memo stays below 2 MiB of keys."""

_VALUE = rb"[\t\x20-\x7e\x80-\xff]*"
_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_ORDINARY = re.compile(
    rb"HTTP/1\.([01]) ([2-5][0-9][0-9])(?: (" + _VALUE + rb"))?\r\n"
    rb"((?:" + _NAME + rb":" + _VALUE + rb"\r\n)*)\r\n"
)
_FIELD = re.compile(rb"(" + _NAME + rb"):[ \t]*(" + _VALUE + rb")\r\n")
_PLAIN_NAME = re.compile(_NAME)
_PLAIN_VALUE = re.compile(_VALUE)
_LENGTH = re.compile(rb"(?i:\r\ncontent-length):[ \t]*([0-9]{1,18})[ \t]*\r\n")
_UNSURE_CODING = re.compile(rb"(?i:\ntransfer-encoding):[^\n]*(?:\t|\n[ \t])")
"""A transfer coding with a tab or a folded line: readers differ in what it is."""

_ANY_END = re.compile(rb"\n\r?\n")
_KEEP_ALIVE_TIMEOUT = re.compile(r"(?:^|[,;\s])timeout\s*=\s*\"?(\d{1,9})", re.IGNORECASE)

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NEVER_NAMED = frozenset({"content-type", "content-encoding", "content-range", "date", "host"})
"""Fields that `Connection` cannot declare hop-by-hop: dropping them would change the message."""


class HeadError(ValueError):
    """The head cannot be used; `cause` is bad_head or head_too_large."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadFacts:
    """What a head says, its Content-Length aside. Compared and hashed by identity.

    The same ordinary head gives the same object again, so that users may remember what they derived
    from it. `headers` are the end-to-end fields in wire order, ISO-8859-1. `keep` says that the
    connection may be used again after the body; `keep_for` is the peer's own idle limit in seconds.
    `has_body`: a body of the announced length follows, unless the request was a HEAD.
    """

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    chunked: bool
    keep: bool
    keep_for: float | None
    has_body: bool = True


class HeadReader:
    """Reads heads for all connections of a pool; holds the memo."""

    __slots__ = ("_last", "_memo")

    def __init__(self) -> None:
        self._memo: dict[bytes, HeadFacts] = {}
        # The last remembered head: before its length, behind it, facts. Most are like the last one.
        self._last: tuple[bytes, bytes, HeadFacts] | None = None

    def read(self, data: bytes) -> tuple[HeadFacts, int | None, int] | None:
        """Read the head at the start of `data`; None when it has not ended yet.

        Gives the facts, the announced length if there is one, and how many bytes the head took.
        Raises HeadError. A 1xx answer is returned like any other: the caller skips it.
        """
        last = self._last
        if last is not None and data.startswith(last[0]):
            start = len(last[0])
            stop = data.find(b"\r\n", start, start + MAX_DIGITS + 2)
            if stop > start and data.startswith(last[1], stop) and data[start:stop].isdigit():
                return last[2], int(data[start:stop]), stop + len(last[1])
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            return self._read_odd(data)
        head = data[:end]
        length = None
        match = _LENGTH.search(head)
        if match is not None:
            start, stop = match.span(1)
            length = int(head[start:stop])
            key = head[:start] + b"\0" + head[stop:]  # no ordinary head holds a NUL
        else:
            key = b"\0" + head  # and none that does is like the keys above
        facts = self._memo.get(key)
        if facts is None:
            if end > MAX_HEAD_BYTES:
                raise HeadError(Cause.HEAD_TOO_LARGE)
            ordinary = _ORDINARY.fullmatch(head)
            if ordinary is None:
                return self._read_odd(data)
            minor, status, reason, fields = ordinary.groups()
            facts, length = _facts(
                http11=minor == b"1",
                status=int(status),
                reason=(reason or b"").decode("latin-1"),
                fields=_FIELD.findall(fields),
                ordinary=True,
            )
            self._remember(key, facts)
        elif match is not None:
            self._last = head[: match.start(1)], head[match.end(1) :], facts
        return facts, length, end

    def _remember(self, key: bytes, facts: HeadFacts) -> None:
        if len(key) > MEMO_HEAD_BYTES:
            return
        if len(self._memo) >= MEMO_ENTRIES:
            self._memo.clear()
        self._memo[key] = facts

    def _read_odd(self, data: bytes) -> tuple[HeadFacts, int | None, int] | None:
        """Whatever is not ordinary: bare LF, folded lines, leading blank lines, 1xx, garbage.

        A connection that sent such a head is not used again: we would have to guess where the next
        answer begins.
        """
        lead = len(data) - len(data.lstrip(b"\r\n"))
        if lead > 4:
            raise HeadError(Cause.BAD_HEAD)
        found = _ANY_END.search(data, lead)
        end = found.end() if found else len(data)
        if end > MAX_HEAD_BYTES:
            raise HeadError(Cause.HEAD_TOO_LARGE)
        if not b"HTTP/1.".startswith(data[lead : lead + 7]):
            raise HeadError(Cause.BAD_HEAD)
        if found is None:
            return None
        facts, length = self._parse_odd(data[lead:end])
        return facts, length, end

    def _parse_odd(self, head: bytes) -> tuple[HeadFacts, int | None]:
        if _UNSURE_CODING.search(head):
            raise HeadError(Cause.BAD_HEAD)
        loop = asyncio.get_running_loop()
        parser = HttpResponseParser(
            BaseProtocol(loop),
            loop,
            MAX_HEAD_BYTES,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
            max_headers=MAX_HEADERS,
            response_with_body=False,
            auto_decompress=False,
        )
        try:
            early, _, _ = parser.feed_data(head[:-1])
            messages, _, _ = parser.feed_data(head[-1:])
        except HttpProcessingError as error:
            raise HeadError(Cause.BAD_HEAD) from error
        if early or len(messages) != 1:  # it must end the head where we do
            raise HeadError(Cause.BAD_HEAD)
        message = messages[0][0]
        if not 100 <= message.code <= 599:
            raise HeadError(Cause.BAD_HEAD)
        for name, value in message.raw_headers:
            if not _PLAIN_NAME.fullmatch(name) or not _PLAIN_VALUE.fullmatch(value):
                raise HeadError(Cause.BAD_HEAD)
        return _facts(
            http11=message.version >= (1, 1),
            status=message.code,
            reason=message.reason,
            fields=message.raw_headers,
            ordinary=False,
        )


def _facts(
    *,
    http11: bool,
    status: int,
    reason: str,
    fields: Iterable[tuple[bytes, bytes]],
    ordinary: bool,
) -> tuple[HeadFacts, int | None]:
    """Work out framing and reuse (RFC 9112 section 6.3), stricter where it lets us choose.

    Refused: two Content-Lengths, Content-Length beside Transfer-Encoding, any transfer coding
    other than chunked, more than 256 fields.
    """
    raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]
    pairs = [(name, value.strip(" \t")) for name, value in raw]
    if len(pairs) > MAX_HEADERS:
        raise HeadError(Cause.HEAD_TOO_LARGE)
    lengths = [value for name, value in pairs if name.lower() == "content-length"]
    # A tab around "chunked" is lawful, and some readers take it for another coding.
    codings = [value.strip(" ") for name, value in raw if name.lower() == "transfer-encoding"]
    options = _tokens(value for name, value in pairs if name.lower() == "connection")
    if len(lengths) > 1 or (lengths and codings):
        raise HeadError(Cause.BAD_HEAD)
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        raise HeadError(Cause.BAD_HEAD)
    length = _content_length(lengths[0]) if lengths else None
    dropped = _HOP_BY_HOP | {"content-length"} | (options - _NEVER_NAMED)
    facts = HeadFacts(
        status=status,
        reason=reason,
        headers=tuple(pair for pair in pairs if pair[0].lower() not in dropped),
        chunked=bool(codings),
        keep=ordinary and _stays_open(http11, options, chunked=bool(codings)),
        keep_for=_keep_for(value for name, value in pairs if name.lower() == "keep-alive"),
        has_body=status >= 200 and status not in NO_BODY and not codings,
    )
    return facts, length


def _tokens(values: Iterable[str]) -> frozenset[str]:
    return frozenset(part.strip(" \t").lower() for value in values for part in value.split(","))


def _stays_open(http11: bool, options: frozenset[str], *, chunked: bool) -> bool:
    """RFC 9112 section 9.3; a 1.0 answer that claims to be chunked is not trusted further."""
    if "close" in options:
        return False
    return http11 or ("keep-alive" in options and not chunked)


def _content_length(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise HeadError(Cause.BAD_HEAD)
    return int(text)


def _keep_for(values: Iterable[str]) -> float | None:
    for value in values:
        match = _KEEP_ALIVE_TIMEOUT.search(value)
        if match is not None:
            return float(match[1])
    return None


def is_interim(status: int) -> bool:
    """True for a 1xx that another head follows. 101 is not: nobody asked to switch protocols."""
    return 100 <= status < 200 and status != 101
