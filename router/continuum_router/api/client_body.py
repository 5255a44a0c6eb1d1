"""The body of a client's request, read with a bound and answered for what is wrong with it.

Content codings are undone as the bytes come in (decisions E23). The bound counts decoded bytes, so
a small bomb is refused like a large body, after as little work (user reports S9, S10).
"""

import asyncio
from collections.abc import Iterator

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError

from continuum_router.errors import BadRequest, BodyTooLarge, ClientGone, UnsupportedBody
from continuum_router.upstream.content_coding import CodingDamaged, Inflater, inflater_for

STALL_SECONDS = 60.0
"""How long a client may stay silent inside its body."""

_CODINGS = frozenset({"", "identity", "gzip", "deflate"})


class BodyStalled(BadRequest):
    """The client stopped sending before its body was complete."""

    status = 408
    default_code = "request_timeout"
    default_message = "The request body did not arrive in time."


class ExpectationFailed(BadRequest):
    """An Expect header other than 100-continue."""

    status = 417
    default_code = "expectation_failed"
    default_message = "The only expectation this server meets is 100-continue."


class ClientBody:
    """The body of one request as it comes, decoded, never more than `limit` bytes of it.

    `begin` first, then `next` until it gives b"". Both raise RouterError for what is wrong with the
    body, ClientGone when the client left in the middle. `started` is the caller's mark, see
    `request.Tail`: it is set by `next` after `hand_over`.
    """

    def __init__(self, request: web.BaseRequest, limit: int) -> None:
        self._request = request
        self._limit = limit
        self._size = 0
        self._handed_over = False
        self._inflater: Inflater | None = None
        self._decoded: Iterator[bytes] = iter(())
        self.started = False

    async def begin(self) -> None:
        """Check what is announced; answer `Expect: 100-continue` (decisions H9)."""
        coding = self._request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
        if coding not in _CODINGS:
            raise UnsupportedBody(headers={"Accept-Encoding": "gzip, deflate"})
        announced = self._request.content_length
        if announced is not None and announced > self._limit:
            raise BodyTooLarge
        await _meet_expectation(self._request)
        self._inflater = inflater_for(coding)

    @property
    def length(self) -> int | None:
        """The announced size, when that is the size of what `next` gives."""
        return None if self._inflater is not None else self._request.content_length

    def hand_over(self) -> None:
        """From now on what is read is not kept: the request cannot be repeated any more."""
        self._handed_over = True

    async def next(self) -> bytes:
        """The next bytes, b"" at the end."""
        self.started = self.started or self._handed_over
        try:
            while True:
                for piece in self._decoded:
                    self._size += len(piece)
                    if self._size > self._limit:
                        raise BodyTooLarge
                    return piece
                raw = await _next_piece(self._request)
                if not raw:
                    break
                self._decoded = iter((raw,)) if self._inflater is None else self._inflater.feed(raw)
            if self._inflater is not None:
                self._inflater.close()
        except (CodingDamaged, web.RequestPayloadError, HttpProcessingError):
            raise BadRequest(
                "The request body is damaged: its content or transfer coding cannot be read.",
                code="invalid_body",
            ) from None
        return b""


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """Return the whole body, at most `limit` bytes of it after decoding.

    Answers `Expect: 100-continue` itself, once the announced size is known to be acceptable
    (decisions H9). Raises RouterError for everything that is wrong with the body, ClientGone when
    the client left in the middle.
    """
    body = ClientBody(request, limit)
    await body.begin()
    pieces: list[bytes] = []
    while piece := await body.next():
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _meet_expectation(request: web.BaseRequest) -> None:
    expected = request.headers.getall(hdrs.EXPECT, ())
    if not expected or request.version < HttpVersion11:
        return
    if any(value.strip().lower() != "100-continue" for value in expected):
        raise ExpectationFailed
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # The interim answer is no part of the answer whose start aiohttp watches.
    request.writer.output_size = 0


async def _next_piece(request: web.BaseRequest) -> bytes:
    try:
        if request.content.is_eof():
            return await request.content.readany()
        async with asyncio.timeout(STALL_SECONDS):
            return await request.content.readany()
    except TimeoutError:
        raise BodyStalled from None
    except ConnectionError:
        raise ClientGone from None
