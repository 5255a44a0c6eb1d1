"""Which backend holds how much of a prompt: ``piece -> backends``, guessed from what was sent.

design/routing.md 6.2. What was sent counts as held at once. It goes when the backend's room is
full (oldest use first), when nobody used it for ``ttl`` seconds, or when an event says so: events
name whole prefixes, so an eviction takes everything that was sent under one. ``usage`` of answers
corrects the guess of the room. Works without any event.

One walk along a prompt's pieces gives every backend's depth: a piece maps to a bit mask of the
backends that hold it. Everything is synchronous and touched from one thread. Times are monotonic
seconds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from continuum_router.backends.holding import Tier
from continuum_router.backends.pieces import PIECE, Pieces
from continuum_router.kv_index.piece_shelf import HEAD_WEIGHTS, SLACK, Shelf, Stamp
from continuum_shared.metrics import Metrics

BYTES_PER_TOKEN = 4.0
"""What the room of a backend, which is known in tokens, is worth in pieces."""

DEFAULT_ROOM_TOKENS = 2_000_000
"""Room of a backend that has not said: rather too much than too little (design/routing.md 5)."""

EXPIRED_AT_ONCE = 2000

ON_ITS_WAY = 2.0
"""Seconds from sending a prompt until an event may be taken to count it."""

_DECAY = 0.95
_LEAST_ROOM = 16.0
_CREEP = 1.001
_STEP_BLIND, _STEP_TOLD = 0.03, 0.01
"""By how much one report moves a room that was guessed, or that the engine has published."""

_TOLERANCE = 1.5
"""Pieces by which a report may differ from the guess: engines cache whole blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceStats:
    """Counts: distinct pieces, (piece, backend) pairs, pairs gone for want of room, expired."""

    pieces: int
    pairs: int
    evicted: int
    expired: int


class PieceIndex:
    """See the module. ``max_entries`` bounds the (piece, backend) pairs."""

    def __init__(
        self, *, max_entries: int, ttl: float, room_tokens: int = DEFAULT_ROOM_TOKENS
    ) -> None:
        self._max_entries = max_entries
        self._ttl = ttl
        self._room = _pieces_of(room_tokens)
        self._masks: dict[bytes, int] = {}
        self._shelves: dict[str, Shelf] = {}
        self._bits: list[str | None] = []
        self._pairs = 0
        self._evicted = 0
        self._expired = 0
        self._warm = 0
        self._last: tuple[tuple[str, ...], int, list[int]] | None = None

    # -- asking -----------------------------------------------------------------------------

    def depths(self, pieces: Pieces, names: tuple[str, ...]) -> list[int]:
        """How many pieces each backend of ``names`` holds, from the beginning on."""
        alive, bits = self._watch(names)
        if not alive:
            return [0] * len(names)
        at = self._walk(pieces.digests, alive)
        return [at.get(bit, 0) for bit in bits]

    def tier(self, name: str, pieces: Pieces) -> Tier:
        """Where a backend holds this prompt's prefix, as events have said."""
        shelf = self._shelves.get(name)
        group = shelf.groups.get(pieces.group) if shelf is not None else None
        return Tier.GPU_HOT if group is None else group.tier

    def any_warm(self) -> bool:
        """Whether any group has been moved to slower storage; spares asking for each."""
        return self._warm > 0

    def crowding(self, name: str) -> float:
        """0 while a backend stores without evicting, 1 when each new piece displaces one."""
        shelf = self._shelves.get(name)
        return 0.0 if shelf is None else min(1.0, shelf.gone / shelf.put)

    def room(self, name: str) -> float:
        """Tokens of KV room that a backend is thought to have."""
        shelf = self._shelves.get(name)
        return (self._room if shelf is None else shelf.room) * PIECE / BYTES_PER_TOKEN

    def names(self) -> tuple[str, ...]:
        """The backends that were sent something, or have said how much room they have."""
        return tuple(self._shelves)

    def stats(self) -> PieceStats:
        """Present counts."""
        return PieceStats(
            pieces=len(self._masks),
            pairs=self._pairs,
            evicted=self._evicted,
            expired=self._expired,
        )

    # -- being taught -----------------------------------------------------------------------

    def sent(self, name: str, pieces: Pieces, now: float) -> None:
        """A prompt went to ``name``: it holds all of it from now on, and has used it."""
        digests = pieces.digests
        if not digests:
            return
        shelf = self._shelves.get(name) or self._shelf(name)
        new = self._touch(shelf, pieces, now)
        shelf.put = shelf.put * _DECAY + new
        shelf.note_new(pieces.group, now, new)
        shelf.gone *= _DECAY
        if shelf.size > shelf.room * SLACK:
            before = shelf.size
            self._leave(shelf, shelf.trim(shelf.room))
            shelf.gone += before - shelf.size
        if self._pairs > self._max_entries:
            self._make_room()

    def used(self, name: str, pieces: Pieces, now: float) -> None:
        """The answer has ended: only now does the engine let go of the prompt's blocks."""
        shelf = self._shelves.get(name)
        if shelf is not None and pieces.digests:
            self._touch(shelf, pieces, now)

    def unsent(self, name: str, pieces: Pieces, depth: int) -> None:
        """A prompt came to nothing: only the first ``depth`` pieces were there before."""
        shelf = self._shelves.get(name)
        group = shelf.groups.get(pieces.group) if shelf is not None else None
        if shelf is not None and group is not None:
            gone = [piece for piece in pieces.digests[depth:] if piece in group.pieces]
            shelf.take_out(group, gone)
            self._leave(shelf, gone, counted=False)

    def cached(self, name: str, expected: float, found: float) -> None:
        """``usage`` said how many pieces were cached (both counts in whole pieces)."""
        shelf = self._shelves.get(name)
        if shelf is None:
            return
        if found < expected - _TOLERANCE:
            shelf.room = max(shelf.least, shelf.room * (1 - shelf.step))
            before = shelf.size
            self._leave(shelf, shelf.trim(shelf.room))
            shelf.gone += before - shelf.size
        elif found > expected + _TOLERANCE:
            shelf.room *= 1 + shelf.step
        elif shelf.size >= shelf.room:
            shelf.room *= _CREEP

    def set_room(self, name: str, tokens: int) -> None:
        """The engine has published how many tokens its KV cache holds."""
        shelf = self._shelves.get(name) or self._shelf(name)
        shelf.room = max(_LEAST_ROOM, _pieces_of(tokens))
        shelf.least = shelf.room / 2
        shelf.step = _STEP_TOLD

    def evict(self, name: str, group: bytes) -> None:
        """The last block of a prefix has gone: so has everything below it."""
        shelf = self._shelves.get(name)
        if shelf is not None:
            self._drop_group(shelf, group)

    def resident(
        self,
        name: str,
        group: bytes,
        tier: Tier,
        tokens: int | None = None,
        now: float = 0.0,
    ) -> None:
        """A prefix lies in ``tier``; ``tokens`` are those of all its chains together, if told.

        What was sent within the last :data:`ON_ITS_WAY` seconds may not be in that count yet.
        """
        shelf = self._shelves.get(name)
        found = shelf.groups.get(group) if shelf is not None else None
        if shelf is None or found is None:
            return
        if found.tier is not tier:
            found.tier = tier
            self._warm += 1 if tier is Tier.STORAGE_WARM else -1
        if tokens is not None:
            coming = shelf.coming(found, now - ON_ITS_WAY)
            self._leave(shelf, shelf.trim_group(found, _pieces_of(tokens) + coming))

    def purge(self, name: str) -> None:
        """A backend holds nothing any more."""
        shelf = self._shelves.get(name)
        if shelf is not None:
            for key in list(shelf.groups):
                self._drop_group(shelf, key)

    def forget(self, name: str) -> None:
        """A backend has left the configuration: its place may be another's."""
        self.purge(name)
        shelf = self._shelves.pop(name, None)
        if shelf is not None:
            self._bits[shelf.bit.bit_length() - 1] = None
            self._last = None

    def expire(self, now: float) -> int:
        """Drop what nobody used for too long; how much. A bounded part each time."""
        before = self._pairs
        for shelf in self._shelves.values():
            left = EXPIRED_AT_ONCE - (before - self._pairs)
            if left <= 0:
                break
            self._leave(shelf, shelf.expire(now - self._ttl, left), counted=False)
        self._expired += before - self._pairs
        return before - self._pairs

    def clear(self) -> int:
        """Drop everything; how many pairs there were."""
        gone = self._pairs
        for name in self._shelves:
            self.purge(name)
        return gone

    # ---------------------------------------------------------------------------------------

    def _walk(self, digests: Sequence[bytes], alive: int) -> dict[int, int]:
        """Follow the chain; the depth at which each backend of ``alive`` was left behind."""
        masks, depth = self._masks.get, 0
        at: dict[int, int] = {}
        for piece in digests:
            held = masks(piece, 0) & alive
            if held != alive:
                _note(at, alive ^ held, depth)
                alive = held
                if not alive:
                    return at
            depth += 1
        _note(at, alive, depth)
        return at

    def _shelf(self, name: str) -> Shelf:
        if None in self._bits:
            place = self._bits.index(None)
            self._bits[place] = name
        else:
            place = len(self._bits)
            self._bits.append(name)
        shelf = self._shelves[name] = Shelf(
            1 << place, self._room, least=self._room / 64, step=_STEP_BLIND
        )
        self._last = None
        return shelf

    def _watch(self, names: tuple[str, ...]) -> tuple[int, list[int]]:
        """The mask of ``names`` and the bit of each; kept for the tuple asked last."""
        last = self._last
        if last is not None and last[0] is names:
            return last[1], last[2]
        shelves = [self._shelves.get(name) for name in names]
        bits = [0 if shelf is None else shelf.bit for shelf in shelves]
        mask = 0
        for bit in bits:
            mask |= bit
        self._last = (names, mask, bits)
        return mask, bits

    def _touch(self, shelf: Shelf, pieces: Pieces, now: float) -> float:
        """Make a prompt the last one used; the weight of its pieces that are new here."""
        digests, held, masks = pieces.digests, shelf.group(pieces.group, now).pieces, self._masks
        bit, before = shelf.bit, shelf.size
        stamp: Stamp = (now, 1.0)
        take, known = held.pop, masks.get
        heads = len(HEAD_WEIGHTS)
        # The tail first: a prompt's head is the last of it to go.
        for place in range(len(digests) - 1, -1, -1):
            piece = digests[place]
            mark = stamp if place >= heads else (now, HEAD_WEIGHTS[place])
            if take(piece, None) is None:
                shelf.size += mark[1]
                self._pairs += 1
            held[piece] = mark
            mask = known(piece, 0)
            if not mask & bit:
                masks[piece] = mask | bit
        return shelf.size - before

    def _drop_group(self, shelf: Shelf, key: bytes) -> None:
        group = shelf.groups.get(key)
        if group is not None:
            if group.tier is Tier.STORAGE_WARM:
                self._warm -= 1
            self._leave(shelf, shelf.drop(key), counted=False)

    def _make_room(self) -> None:
        """Whoever has the least recently used piece gives up its oldest tenth, until it fits."""
        while self._pairs > self._max_entries:
            ages = [
                (found[0], place)
                for place, shelf in enumerate(self._shelves.values())
                if (found := shelf.oldest()) is not None
            ]
            shelf = list(self._shelves.values())[min(ages)[1]]
            self._leave(shelf, shelf.trim(shelf.size * 0.9))

    def _leave(self, shelf: Shelf, gone: Sequence[bytes], *, counted: bool = True) -> None:
        """Take the backend out of the masks of pieces that its shelf has given up."""
        masks, keep = self._masks, ~shelf.bit
        for piece in gone:
            left = masks.get(piece, 0) & keep
            if left:
                masks[piece] = left
            else:
                masks.pop(piece, None)
        self._pairs -= len(gone)
        if counted:
            self._evicted += len(gone)


def expose_pieces(index: PieceIndex, metrics: Metrics) -> None:
    """Register the families of cost mode's index, read at scrape time."""

    def pieces() -> Iterable[tuple[tuple[str, ...], float]]:
        stats = index.stats()
        return [(("pieces",), stats.pieces), (("pairs",), stats.pairs)]

    def gone() -> Iterable[tuple[tuple[str, ...], float]]:
        stats = index.stats()
        return [(("room",), stats.evicted), (("ttl",), stats.expired)]

    def rooms() -> Iterable[tuple[tuple[str, ...], float]]:
        return [((name,), index.room(name)) for name in index.names()]

    metrics.gauge_fn(
        "continuum_kv_index_pieces",
        "Pieces of prompts in cost mode's index, and (piece, backend) pairs.",
        ("kind",),
        pieces,
    )
    metrics.counter_fn(
        "continuum_kv_index_pieces_gone_total",
        "Pairs that were given up: for want of room, or because nobody used them.",
        ("reason",),
        gone,
    )
    metrics.gauge_fn(
        "continuum_kv_index_room_tokens",
        "Tokens of KV cache that a backend is thought to have room for.",
        ("backend",),
        rooms,
    )


def _note(at: dict[int, int], bits: int, depth: int) -> None:
    if depth:
        while bits:
            low = bits & -bits
            at[low] = depth
            bits ^= low


def _pieces_of(tokens: float) -> float:
    return tokens * BYTES_PER_TOKEN / PIECE
