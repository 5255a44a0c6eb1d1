"""Asks trtllm-serve for its KV-cache events: one request, one bounded answer.

Decisions C37, C26: ``POST`` without a body, ``GET`` where an older server answers 405 to that. No
redirect is followed and no proxy of the environment used, so that the host is the one that
``allowed_publishers`` names; a compressed answer is refused, so that the bound is on what it holds.
"""

from dataclasses import dataclass
from enum import StrEnum

import aiohttp


@dataclass(frozen=True, slots=True, kw_only=True)
class PollTimes:
    """Seconds to connect, without a byte of the answer, and for a whole answer. The engine's
    handler itself may wait two seconds for the first event."""

    connect: float = 5.0
    silent: float = 10.0
    answer: float = 30.0


class PollFault(StrEnum):
    """Why a poll brought nothing; a member of ``PollResult`` by the same name counts it."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    REDIRECT = "redirect"
    REFUSED = "refused"
    """Any other answer that is not 200."""
    CUT_SHORT = "cut_short"
    """The connection ended within the answer."""
    BAD_ANSWER = "bad_answer"
    """No JSON array, or an encoding that nobody asked for."""
    TOO_LARGE = "too_large"


class PollError(Exception):
    """A poll that brought nothing. The text names neither URL nor contents."""

    def __init__(self, fault: PollFault, status: int | None = None) -> None:
        super().__init__(fault.value if status is None else f"{fault.value} ({status})")
        self.fault = fault
        self.status = status


class TrtllmClient:
    """Reads one engine's events through a shared session. ``max_bytes`` bounds an answer.

    There must be no second reader: an answer drains the engine's buffer.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        max_bytes: int,
        times: PollTimes | None = None,
    ) -> None:
        times = times or PollTimes()
        self.url = url
        self._session = session
        self._max_bytes = max_bytes
        self._method = "POST"
        self._timeout = aiohttp.ClientTimeout(
            total=times.answer, sock_connect=times.connect, sock_read=times.silent
        )

    async def poll(self) -> bytes:
        """The next answer. Raises :class:`PollError`."""
        try:
            return await self._ask(self._method)
        except PollError as error:
            if error.status != 405 or self._method != "POST":
                raise
        answer = await self._ask("GET")
        self._method = "GET"
        return answer

    async def look(self) -> None:
        """Whether the path is served, without reading an event. Raises :class:`PollError`."""
        try:
            async with self._session.request(
                "OPTIONS", self.url, timeout=self._timeout, allow_redirects=False
            ) as response:
                status = response.status
        except TimeoutError:
            raise PollError(PollFault.TIMEOUT) from None
        except (aiohttp.ClientError, OSError):
            raise PollError(PollFault.UNREACHABLE) from None
        if 300 <= status < 400:
            raise PollError(PollFault.REDIRECT, status)
        if status in (401, 403, 404) or status >= 500:
            raise PollError(PollFault.REFUSED, status)

    async def _ask(self, method: str) -> bytes:
        started = False
        try:
            async with self._session.request(
                method,
                self.url,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
                timeout=self._timeout,
                allow_redirects=False,
                auto_decompress=False,
            ) as response:
                started = True
                self._judge(response)
                return await self._read(response)
        except TimeoutError:
            raise PollError(PollFault.TIMEOUT) from None
        except (aiohttp.ClientError, OSError):
            raise PollError(PollFault.CUT_SHORT if started else PollFault.UNREACHABLE) from None

    def _judge(self, response: aiohttp.ClientResponse) -> None:
        status = response.status
        if 300 <= status < 400:
            raise PollError(PollFault.REDIRECT, status)
        if status != 200:
            raise PollError(PollFault.REFUSED, status)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise PollError(PollFault.BAD_ANSWER)
        if (response.content_length or 0) > self._max_bytes:
            raise PollError(PollFault.TOO_LARGE)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._max_bytes:
                raise PollError(PollFault.TOO_LARGE)
        return bytes(body)
