"""A body of unknown length in chunks (RFC 9112 section 7.1), for the way to a backend."""

from continuum_router.backends.exchange import BodyTail


def chunk(data: bytes) -> bytes:
    """One chunk; nothing for no bytes, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


class ChunkedTail:
    """A `BodyTail` whose pieces are chunks, the last one included."""

    __slots__ = ("_ended", "_tail")

    def __init__(self, tail: BodyTail) -> None:
        self._tail = tail
        self._ended = False

    @property
    def started(self) -> bool:
        """See BodyTail."""
        return self._tail.started

    async def next(self) -> bytes:
        """See BodyTail."""
        if self._ended:
            return b""
        data = await self._tail.next()
        if data:
            return chunk(data)
        self._ended = True
        return b"0\r\n\r\n"
