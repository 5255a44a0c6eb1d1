from continuum_router.providers.chunked_tail import ChunkedTail, chunk


class _Pieces:
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [*pieces, b""]
        self.started = False

    async def next(self) -> bytes:
        self.started = True
        return self.pieces.pop(0)


async def test_pieces_become_chunks_and_the_end_one_too() -> None:
    tail = ChunkedTail(_Pieces(b"abc", b"x" * 17))
    assert not tail.started
    assert [await tail.next() for _ in range(4)] == [
        b"3\r\nabc\r\n",
        b"11\r\n" + b"x" * 17 + b"\r\n",
        b"0\r\n\r\n",
        b"",
    ]
    assert tail.started


def test_no_bytes_are_no_chunk() -> None:
    assert chunk(b"") == b""
