"""The body of a client's request, read with a bound and answered for what is wrong with it.

Content codings are undone as the bytes come in (decisions E23). The bound counts decoded bytes, so
a small bomb is refused like a large body, after as little work (user reports S9, S10).
"""

import asyncio

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError

from continuum_router.errors import BadRequest, BodyTooLarge, ClientGone, UnsupportedBody
from continuum_router.upstream.content_coding import CodingDamaged, inflater_for

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


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """Return the whole body, at most `limit` bytes of it after decoding.

    Answers `Expect: 100-continue` itself, once the announced size is known to be acceptable
    (decisions H9). Raises RouterError for everything that is wrong with the body, ClientGone when
    the client left in the middle.
    """
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if coding not in _CODINGS:
        raise UnsupportedBody(headers={"Accept-Encoding": "gzip, deflate"})
    announced = request.content_length
    if announced is not None and announced > limit:
        raise BodyTooLarge
    await _meet_expectation(request)
    inflater = inflater_for(coding)
    pieces: list[bytes] = []
    size = 0
    try:
        while raw := await _next_piece(request):
            for piece in (raw,) if inflater is None else inflater.feed(raw):
                size += len(piece)
                if size > limit:
                    raise BodyTooLarge
                pieces.append(piece)
        if inflater is not None:
            inflater.close()
    except (CodingDamaged, web.RequestPayloadError, HttpProcessingError):
        raise BadRequest(
            "The request body is damaged: its content or transfer coding cannot be read.",
            code="invalid_body",
        ) from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _meet_expectation(request: web.BaseRequest) -> None:
    expect = request.headers.get(hdrs.EXPECT)
    if expect is None or request.version < HttpVersion11:
        return
    if expect.strip().lower() != "100-continue":
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
