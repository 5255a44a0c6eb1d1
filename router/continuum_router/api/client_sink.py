"""The client's side of a relayed answer, on aiohttp's server (`upstream.relay.ClientSink`)."""

from collections.abc import Callable, Iterable, Sequence

from aiohttp import web
from multidict import CIMultiDict

from continuum_router.errors import ClientGone


class WebSink:
    """Writes one answer to one request.

    `more_headers` gives the edge's own headers; it is asked when the answer starts, because only
    then it is known who served. `closing` tells whether the connection is to end with this answer.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        *,
        more_headers: Callable[[], Iterable[tuple[str, str]]],
        closing: Callable[[], bool],
    ) -> None:
        self._request = request
        self._more_headers = more_headers
        self._closing = closing
        self._response: web.StreamResponse | None = None

    @property
    def response(self) -> web.StreamResponse | None:
        """What was started, for aiohttp to finish with."""
        return self._response

    @property
    def started(self) -> bool:
        """See ClientSink."""
        return self._response is not None

    @property
    def status(self) -> int | None:
        """The status that was sent, if one was."""
        return None if self._response is None else self._response.status

    @property
    def congested(self) -> bool:
        """See ClientSink."""
        return self._request.protocol.writing_paused

    async def send(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """See ClientSink."""
        await self._begin(web.Response(status=status, headers=self._headers(headers), body=body))
        await self.finish()

    async def start(
        self, status: int, headers: Sequence[tuple[str, str]], length: int | None
    ) -> None:
        """See ClientSink."""
        response = web.StreamResponse(status=status, headers=self._headers(headers))
        if length is not None:
            response.content_length = length
        await self._begin(response)

    async def write(self, data: bytes) -> None:
        """See ClientSink."""
        try:
            await self._begun().write(data)
        except ConnectionError:
            raise ClientGone from None

    async def finish(self) -> None:
        """See ClientSink."""
        try:
            await self._begun().write_eof()
        except ConnectionError:
            raise ClientGone from None

    async def finish_and_close(self) -> None:
        """See ClientSink.

        The end of the connection leaves with the end of the body: a client must not get the time to
        send its next request on it.
        """
        await self.finish()
        self._begun().force_close()
        if self._request.transport is not None:
            self._request.transport.close()

    def cut(self) -> None:
        """See ClientSink."""
        self._begun().force_close()
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    def _headers(self, headers: Sequence[tuple[str, str]]) -> CIMultiDict[str]:
        return CIMultiDict([*headers, *self._more_headers()])

    def _begun(self) -> web.StreamResponse:
        assert self._response is not None
        return self._response

    async def _begin(self, response: web.StreamResponse) -> None:
        self._response = response
        if self._closing():
            response.force_close()
        try:
            await response.prepare(self._request)
        except ConnectionError:
            raise ClientGone from None
