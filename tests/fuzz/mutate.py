"""New inputs from old ones. Everything random comes from the generator that is given."""

import random
from collections.abc import Callable, Sequence

_ODD = b"\x00\x01\x09\x0a\x0d\x20\x22\x2c\x3a\x5c\x7f\x80\xc3\xff09afAF{}[]"
_NUMBERS = (b"0", b"1", b"-1", b"9" * 19, b"18446744073709551616", b"7fffffff", b"1e9", b"00")


class Mutator:
    """Makes inputs out of a corpus."""

    def __init__(self, rng: random.Random, tokens: Sequence[bytes], max_size: int) -> None:
        self._rng = rng
        self._tokens = (*tokens, *_NUMBERS)
        self._max = max_size
        self._ways: tuple[Callable[[bytearray, bytes], None], ...] = (
            self._byte,
            self._bit,
            self._insert,
            self._token,
            self._token,
            self._remove,
            self._repeat,
            self._exchange,
            self._cross,
            self._truncate,
            self._number,
        )

    def mutated(self, corpus: Sequence[bytes]) -> bytes:
        """One new input: some changes of one of the corpus, the newer ones preferred."""
        rng = self._rng
        at = max(rng.randrange(len(corpus)), rng.randrange(len(corpus)))
        data = bytearray(corpus[at])
        other = corpus[rng.randrange(len(corpus))]
        for _ in range(1 << rng.randrange(4)):
            rng.choice(self._ways)(data, other)
        return bytes(data[: self._max])

    def _span(self, data: bytearray) -> tuple[int, int]:
        start = self._rng.randrange(len(data) + 1)
        return start, min(len(data), start + 1 + int(self._rng.expovariate(0.1)))

    def _byte(self, data: bytearray, _: bytes) -> None:
        if data:
            data[self._rng.randrange(len(data))] = self._rng.choice(_ODD)

    def _bit(self, data: bytearray, _: bytes) -> None:
        if data:
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)

    def _insert(self, data: bytearray, _: bytes) -> None:
        at = self._rng.randrange(len(data) + 1)
        data[at:at] = bytes([self._rng.choice(_ODD)]) * self._rng.choice((1, 1, 2, 5))

    def _token(self, data: bytearray, _: bytes) -> None:
        at = self._rng.randrange(len(data) + 1)
        over = self._rng.choice((0, 0, 1, 8))
        data[at : at + over] = self._rng.choice(self._tokens)

    def _remove(self, data: bytearray, _: bytes) -> None:
        start, end = self._span(data)
        del data[start:end]

    def _repeat(self, data: bytearray, _: bytes) -> None:
        start, end = self._span(data)
        data[start:start] = data[start:end] * self._rng.choice((1, 1, 2, 16))
        del data[self._max :]

    def _exchange(self, data: bytearray, _: bytes) -> None:
        start, end = self._span(data)
        piece = data[start:end]
        del data[start:end]
        at = self._rng.randrange(len(data) + 1)
        data[at:at] = piece

    def _cross(self, data: bytearray, other: bytes) -> None:
        if other:
            start, end = self._span(bytearray(other))
            at = self._rng.randrange(len(data) + 1)
            if self._rng.random() < 0.5:
                data[at:] = other[start:]
            else:
                data[at:at] = other[start:end]
        del data[self._max :]

    def _truncate(self, data: bytearray, _: bytes) -> None:
        del data[self._rng.randrange(len(data) + 1) :]

    def _number(self, data: bytearray, _: bytes) -> None:
        """Change digits in place."""
        places = [at for at, byte in enumerate(data) if 0x30 <= byte <= 0x39]
        if places:
            at = self._rng.choice(places)
            data[at] = self._rng.choice(b"0123456789")
