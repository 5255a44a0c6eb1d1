"""What a client may send at all: each head read strictly, each body followed to its end.

aiohttp's parser stands behind it and gets only what every reader of HTTP/1.1 understands in one
way: heads whole and without `Upgrade`, chunked bodies written anew without extensions and trailers,
never bytes of two requests in one piece. Which parser aiohttp brought (compiled or not) then makes
no difference, and nothing ambiguous can reach a backend (decisions H3, H6, J20; `docs/framing.md`).
"""

import re

from continuum_router.errors import BadRequest, RouterError, forget_frames
from continuum_router.upstream.body_framing import (
    BodyFraming,
    ChunkedFraming,
    FramingError,
    LengthFraming,
)

MAX_LINE_BYTES = 16 * 1024
"""Longest request line or header line."""

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128

MAX_BLANK_BYTES = 4
"""Blank lines before a request that are read over (RFC 9112 section 2.2): two."""

FREE_OVERHEAD = 64 * 1024
OVERHEAD_RATIO = 8
"""Bytes of chunk framing that a body may cost: so many in all, and so many a byte of payload."""

_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE = rb"[\t\x20-\x7e\x80-\xff]*"
_HEAD = re.compile(
    rb"(" + _NAME + rb") ([!-~]+) HTTP/([0-9])\.([0-9])\r\n"
    rb"((?:" + _NAME + rb":" + _VALUE + rb"\r\n)*)\r\n"
)
_FIELD = re.compile(rb"(" + _NAME + rb"):(" + _VALUE + rb")\r\n")
_NEVER_IN_A_HEAD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n|\Z)")
_MAY_BEGIN = re.compile(rb"[A-Za-z][!#$%&'*+\-.^_`|~0-9A-Za-z]{0,30}(?: |\Z)")
_TARGET = re.compile(rb"(?:[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\\]+)?(?:/[^#]*)?|\*")
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")
_UPGRADE = re.compile(rb"(?<=\n)upgrade:[^\n]*\n", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_ENDS_IN_CHUNKED = re.compile(rb"(?:(?!chunked)" + _NAME + rb" *, *)+chunked", re.IGNORECASE)
_DECIDING = (b"host", b"connection", b"content-length", b"transfer-encoding")
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE"})


class Malformed(BadRequest):
    """The bytes are no HTTP request, or one that two readers could understand in two ways."""

    default_code = "malformed_request"
    default_message = "The HTTP request is malformed."


class TargetTooLong(Malformed):
    """The request line exceeds `MAX_LINE_BYTES`."""

    status = 414
    default_code = "uri_too_long"
    default_message = "The request line is longer than this server accepts."


class HeadTooLarge(Malformed):
    """A header line, their number or the whole head exceeds its bound."""

    status = 431
    default_code = "headers_too_large"
    default_message = "The request's headers are larger than this server accepts."


class UnknownMethod(Malformed):
    """A method that no path of any server here takes."""

    status = 501
    default_code = "unknown_method"
    default_message = "This server does not know the request's method."


class UnknownCoding(Malformed):
    """A transfer coding besides chunked."""

    status = 501
    default_code = "unknown_transfer_coding"
    default_message = "The only transfer coding this server reads is chunked."


class UnknownVersion(Malformed):
    """Neither HTTP/1.0 nor HTTP/1.1 (decisions H3)."""

    status = 505
    default_code = "unknown_http_version"
    default_message = "This server speaks HTTP/1.1."


class WireGuard:
    """Follows the bytes of one client connection.

    `fault` is set for good by the first thing that is refused; nothing behind it is looked at.
    """

    __slots__ = ("_blank", "_body", "_chunked", "_head", "_last", "_overhead", "_payload", "fault")

    def __init__(self) -> None:
        self._blank = 0
        self._head = b""  # the start of a head whose end has not come
        self._body: BodyFraming | None = None
        self._chunked = False
        self._last = False
        self._overhead = 0
        self._payload = 0
        self.fault: RouterError | None = None

    @property
    def between(self) -> bool:
        """True while the next byte begins a request that would be served."""
        return not (self._head or self._body or self._blank or self._last or self.fault)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the client's next bytes; gives the clean ones, each request's in its own piece."""
        clean: list[bytes] = []
        try:
            while data:
                if self._body is not None:
                    data = self._take_body(self._body, data, clean)
                elif self._last or self.fault is not None:
                    break
                else:
                    data = self._take_head(data, clean)
        except RouterError as err:
            forget_frames(err)
            self._body, self._head, self.fault = None, b"", err
        return clean

    # -- bodies -----------------------------------------------------------------------------

    def _take_body(self, body: BodyFraming, data: bytes, clean: list[bytes]) -> bytes:
        pieces: list[bytes] = []
        broken = False
        try:
            used = body.feed(data, pieces)
        except FramingError:
            broken, used = True, len(data)
        payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._chunked:
            self._weigh(used, len(payload))
            if payload:
                payload = b"%x\r\n%b\r\n" % (len(payload), payload)
            if body.done:
                payload += b"0\r\n\r\n"
        if clean and payload:
            clean[-1] += payload
        elif payload:
            clean.append(payload)
        if broken:
            raise Malformed
        if body.done:
            self._body = None
        return data[used:]

    def _weigh(self, used: int, payload: int) -> None:
        """Refuse a body that is mostly framing: it would cost much and count little."""
        self._payload += payload
        self._overhead += used - payload
        if self._overhead > FREE_OVERHEAD + OVERHEAD_RATIO * self._payload:
            raise Malformed

    # -- heads ------------------------------------------------------------------------------

    def _take_head(self, data: bytes, clean: list[bytes]) -> bytes:
        seen = len(self._head)
        if seen:
            data = self._head + data
            self._head = b""
        while data.startswith(b"\r\n"):
            self._blank += 2
            if self._blank > MAX_BLANK_BYTES:
                raise Malformed
            data, seen = data[2:], 0
        end = data.find(b"\r\n\r\n", max(0, seen - 3)) + 4
        if end < 4:
            self._hold(data, seen)
            return b""
        head = data[:end]
        self._body = self._read_head(head)
        self._blank = 0
        # Nobody here switches protocols; aiohttp would store what follows until it has declined.
        clean.append(_UPGRADE.sub(b"", head))
        return data[end:]

    def _hold(self, data: bytes, seen: int) -> None:
        """Keep the start of a head, unless it is clear by now that it becomes none."""
        if data in (b"", b"\r"):
            self._head = data
            return
        if _NEVER_IN_A_HEAD.search(data, max(0, seen - 1)) or not _MAY_BEGIN.match(data):
            raise Malformed
        line = data.rfind(b"\n") + 1
        if len(data) - line > MAX_LINE_BYTES:
            raise HeadTooLarge if line else TargetTooLong
        if len(data) > MAX_HEAD_BYTES:
            raise HeadTooLarge
        self._head = data

    def _read_head(self, head: bytes) -> BodyFraming | None:
        """The framing of the body behind a whole head, None when there is no body."""
        if not _MAY_BEGIN.match(head):
            raise Malformed
        if head.find(b"\r\n") > MAX_LINE_BYTES:
            raise TargetTooLong
        if len(head) > MAX_HEAD_BYTES:
            raise HeadTooLarge
        match = _HEAD.fullmatch(head)
        if match is None:
            raise Malformed
        method, target, major, minor, lines = match.groups()
        fields = _FIELD.findall(lines)
        if len(fields) > MAX_HEADERS or any(len(n) + len(v) > MAX_LINE_BYTES for n, v in fields):
            raise HeadTooLarge
        if major != b"1" or minor not in b"01":
            raise UnknownVersion
        if method not in _METHODS:
            raise UnknownMethod
        if not _TARGET.fullmatch(target) or (target == b"*" and method != b"OPTIONS"):
            raise Malformed
        return self._read_fields(fields, http11=minor == b"1")

    def _read_fields(
        self, fields: list[tuple[bytes, bytes]], *, http11: bool
    ) -> BodyFraming | None:
        found: dict[bytes, list[bytes]] = {name: [] for name in _DECIDING}
        for name, value in fields:
            lower = name.lower()
            if lower in found:
                found[lower].append(value.strip(b" \t"))
        hosts = found[b"host"]
        if len(hosts) > 1 or (http11 and not hosts) or not all(map(_HOST.fullmatch, hosts)):
            raise Malformed
        options = {t.strip(b" \t").lower() for v in found[b"connection"] for t in v.split(b",")}
        self._last = b"close" in options or not (http11 or b"keep-alive" in options)
        return self._framing(found[b"content-length"], found[b"transfer-encoding"], http11=http11)

    def _framing(
        self, lengths: list[bytes], codings: list[bytes], *, http11: bool
    ) -> BodyFraming | None:
        """RFC 9112 section 6.3, refusing wherever it lets a server choose."""
        self._chunked = bool(codings)
        self._overhead = self._payload = 0
        if codings:
            if lengths or not http11 or len(codings) > 1:
                raise Malformed
            if codings[0].lower() != b"chunked":
                unknown = _ENDS_IN_CHUNKED.fullmatch(codings[0])
                raise UnknownCoding if unknown else Malformed
            return ChunkedFraming()
        if not lengths:
            return None
        if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
            raise Malformed
        length = int(lengths[0])
        return LengthFraming(length) if length else None
