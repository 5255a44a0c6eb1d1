"""An ordinary request whose body is still on its way."""

from continuum_router.api.fast_call import FastCall
from continuum_router.api.fast_context import FastContext
from continuum_router.api.plain_sink import Client

STALL_SECONDS = 1.0
"""How long a client may stay silent inside its body before aiohttp is given the request: its time
limit for that begins then (`client_body.STALL_SECONDS`)."""


class Arriving:
    """Collects the body of `call`; when it is whole the call goes off.

    `head` are the bytes of the head, `length` is that of the whole body. What turns out not to be
    ordinary is given back to the client's connection, untouched.
    """

    __slots__ = ("_call", "_client", "_head", "_missing", "_pieces", "_way", "due")

    def __init__(
        self, way: FastContext, client: Client, call: FastCall, *, head: bytes, length: int
    ) -> None:
        self._way = way
        self._client = client
        self._call = call
        self._head = head
        self._missing = length
        self._pieces: list[bytes] = []
        self.due = way.clock() + STALL_SECONDS
        way.active.enter()
        way.sweep.add(self)

    def more(self, data: bytes) -> FastCall | None:
        """Take the next bytes. Gives the call when it is on its way."""
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            self.due = self._way.clock() + STALL_SECONDS
            return None
        self._way.sweep.drop(self)
        if self._missing == 0 and self._call.dispatch(
            b"".join(self._pieces), self._way.clock(), counted=True
        ):
            return self._call
        self._give_back()
        return None

    def gone(self) -> None:
        """The client has left, or the process ends."""
        self._way.sweep.drop(self)
        self._call.gone()

    def pause(self) -> None:
        """Nothing is written yet."""

    def resume(self) -> None:
        """Nothing is written yet."""

    def expire(self, now: float) -> None:  # noqa: ARG002
        """The client is silent."""
        self._way.sweep.drop(self)
        self._give_back()

    def _give_back(self) -> None:
        self._way.active.leave()
        self._client.give_back(self._head + b"".join(self._pieces))
