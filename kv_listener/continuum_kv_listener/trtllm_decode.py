"""The answer of trtllm-serve's ``/kv_cache_events`` to typed engine events, and nothing else.

Field table (wire/README.md, decisions C37; every field may be absent or null unless marked):

=========================  =====================================================================
element                    ``event_id`` (int, required), ``data`` (object, required),
                           ``window_size``, ``attention_dp_rank``; an element may be ``{}``
``data.type``
  ``created``              ``num_blocks_per_cache_level`` (not read)
  ``stored``               ``parent_hash``, ``blocks`` (required)
  ``removed``              ``block_hashes`` (required)
  ``updated``              ``block_hash`` (required), ``cache_level`` and ``priority`` as
                           ``{"old_value", "new_value"}``
a block                    ``block_hash`` (required), ``tokens`` (required, not empty),
                           ``cache_level``, ``cache_salt``, ``priority``, ``mm_keys``
=========================  =====================================================================

Hashes are unsigned 64-bit; decimal text is read too, a float is not (it has lost digits).
``cache_level`` 0 is the GPU, 1 the host, more lies below. Ranks are told apart as ``group``, so the
blocks of one never stand for those of another. Token ids are counted and left behind here: what
identifies a prompt is its salt.

Whatever cannot be read costs itself and is counted; nothing raises. Whole answers cost their
number only: the caller keeps its place.

An answer may hold tens of megabytes, most of it tokens. It is read element by element, so that no
more than one of them is ever there as objects and others get their turn in between.
"""

import json
import re
from array import array
from collections.abc import Generator, Iterator
from typing import NamedTuple

from continuum_kv_listener.engine_events import (
    Cleared,
    DropReason,
    EngineEvent,
    Medium,
    Moved,
    Removed,
    Stored,
)

MAX_RANKS = 256
MAX_EVENT_ID = 2**63
MAX_BLOCK_TOKENS = 1 << 20
"""No engine has such blocks: a larger one is malformed."""
_MASK64 = (1 << 64) - 1

_SPACE = re.compile(r"[ \t\r\n]+")

TrtllmEvent = EngineEvent | Moved


class TrtllmItem(NamedTuple):
    """One numbered element: what it tells, in order; nothing when it was malformed or unknown.

    ``mark`` is equal for equal words: with it a number that comes twice can be told from a
    number that a new process has given.
    """

    event_id: int
    rank: int
    window: int
    mark: int
    events: tuple[TrtllmEvent, ...]


class TrtllmAnswer(NamedTuple):
    """The elements in their order, and one reason for each thing that could not be read."""

    items: tuple[TrtllmItem, ...] = ()
    drops: tuple[DropReason, ...] = ()


class _MalformedError(Exception):
    """A part that has a known name and an impossible shape."""


def decode_answer(body: bytes) -> TrtllmAnswer:
    """Read one answer at once: see :func:`read_answer`."""
    steps = read_answer(body)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            answer: TrtllmAnswer = done.value
            return answer


def read_answer(body: bytes) -> Generator[None, None, TrtllmAnswer]:
    """Read one answer, yielding after each element; nothing is to be used before the end is seen.

    Anything that is no JSON array, a cut one too, is ``undecodable_batch`` as a whole.
    """
    items: list[TrtllmItem] = []
    drops: list[DropReason] = []
    try:
        for element, text in _elements(body.decode("utf-8")):
            if element != {}:
                try:
                    items.append(_item(element, hash(text), drops))
                except _MalformedError:
                    drops.append(DropReason.MALFORMED_EVENT)
            yield
    except (ValueError, RecursionError):
        return TrtllmAnswer(drops=(DropReason.UNDECODABLE_BATCH,))
    return TrtllmAnswer(tuple(items), tuple(drops))


def _elements(text: str) -> Iterator[tuple[object, str]]:
    """The elements of a JSON array and their own text. Raises ValueError where it is none."""
    scan = json.JSONDecoder(parse_constant=_no_number).raw_decode
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("no array")
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        at += 1
    else:
        while True:
            element, end = scan(text, at)
            yield element, text[at:end]
            at = _skip(text, end)
            mark = text[at : at + 1]
            at = _skip(text, at + 1)
            if mark == "]":
                break
            if mark != ",":
                raise ValueError("no array")
    if _skip(text, at) != len(text):
        raise ValueError("text behind the array")


def _skip(text: str, at: int) -> int:
    """The next place that is not JSON's white space."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _no_number(_word: str) -> object:
    raise ValueError("NaN and infinities are no JSON")


def events_of(body: bytes) -> tuple[TrtllmEvent, ...]:
    """All events of an answer in order, whatever their numbers: for tests and fuzzing."""
    return tuple(event for item in decode_answer(body).items for event in item.events)


def _item(element: object, mark: int, drops: list[DropReason]) -> TrtllmItem:
    """One element with a readable number; its contents may still be dropped."""
    if not isinstance(element, dict):
        raise _MalformedError
    event_id = _number(element.get("event_id"), MAX_EVENT_ID)
    rank = element.get("attention_dp_rank")
    window = element.get("window_size")
    rank = 0 if rank is None else _number(rank, MAX_RANKS - 1)
    window = 0 if window is None else _number(window, MAX_EVENT_ID)
    data = element.get("data")
    events: tuple[TrtllmEvent, ...] = ()
    try:
        events = _events(data, rank, drops)
    except _MalformedError:
        drops.append(DropReason.MALFORMED_EVENT)
    return TrtllmItem(event_id, rank, window, mark, events)


def _events(data: object, rank: int, drops: list[DropReason]) -> tuple[TrtllmEvent, ...]:
    if not isinstance(data, dict):
        raise _MalformedError
    kind = data.get("type")
    if kind == "stored":
        return tuple(_stored(data, rank, drops))
    if kind == "removed":
        return _removed(data.get("block_hashes"), rank, drops)
    if kind == "updated":
        return _updated(data, rank)
    if kind == "created":
        return (Cleared(),)
    if not isinstance(kind, str):
        raise _MalformedError
    drops.append(DropReason.UNKNOWN_TAG)
    return ()


class _Block(NamedTuple):
    hash: int
    tokens: int
    medium: Medium
    salt: str | None


def _stored(data: dict[str, object], rank: int, drops: list[DropReason]) -> Iterator[Stored]:
    """Runs of blocks that agree in size and place: the last one of a prompt is often partial.

    A block that cannot be read is left out, and the next one hangs below the last that could.
    """
    parent = data.get("parent_hash")
    above = None if parent is None else _hash(parent)
    run: list[_Block] = []
    for block in _blocks(data.get("blocks"), above, drops):
        if run and (block.tokens != run[0].tokens or block.medium is not run[0].medium):
            yield _run(run, above, rank)
            above = run[-1].hash
            run = []
        run.append(block)
    if run:
        yield _run(run, above, rank)


def _blocks(value: object, above: int | None, drops: list[DropReason]) -> Iterator[_Block]:
    """The readable blocks; each hash once, and none its own ancestor."""
    if not isinstance(value, list) or not value:
        raise _MalformedError
    seen = {above}
    for each in value:
        try:
            block = _block(each)
        except _MalformedError:
            drops.append(DropReason.MALFORMED_EVENT)
            continue
        if block.hash in seen:
            drops.append(DropReason.MALFORMED_EVENT)
            continue
        seen.add(block.hash)
        yield block


def _block(value: object) -> _Block:
    if not isinstance(value, dict):
        raise _MalformedError
    tokens = value.get("tokens")
    if not isinstance(tokens, list) or not 0 < len(tokens) <= MAX_BLOCK_TOKENS:
        raise _MalformedError
    salt = value.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        salt = ""  # a salt in a form that no router issues
    level = value.get("cache_level")
    medium = Medium.GPU if level is None else _medium(level)
    return _Block(_hash(value.get("block_hash")), len(tokens), medium, salt)


def _run(run: list[_Block], above: int | None, rank: int) -> Stored:
    first = run[0]
    return Stored(
        hashes=tuple(block.hash for block in run),
        parent=above,
        tokens=array("I", bytes(4 * first.tokens * len(run))),
        block_size=first.tokens,
        medium=first.medium,
        cache_salt=first.salt,
        group=rank,
    )


def _removed(value: object, rank: int, drops: list[DropReason]) -> tuple[TrtllmEvent, ...]:
    if not isinstance(value, list) or not value:
        raise _MalformedError
    hashes: list[int] = []
    for each in value:
        try:
            hashes.append(_hash(each))
        except _MalformedError:
            drops.append(DropReason.MALFORMED_EVENT)
    return (Removed(hashes=tuple(hashes), group=rank),) if hashes else ()


def _updated(data: dict[str, object], rank: int) -> tuple[TrtllmEvent, ...]:
    """A change of the level moves the block; one of the priority alone tells us nothing."""
    block = _hash(data.get("block_hash"))
    level = data.get("cache_level")
    if level is None:
        return ()
    new = level.get("new_value") if isinstance(level, dict) else level
    if new is None:
        return ()
    return (Moved(hashes=(block,), medium=_medium(new), group=rank),)


def _hash(value: object) -> int:
    if type(value) is int and -(2**63) <= value <= _MASK64:
        return value & _MASK64
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdigit():
        number = int(value)
        if number <= _MASK64:
            return number
    raise _MalformedError


def _number(value: object, most: int) -> int:
    if type(value) is int and 0 <= value <= most:
        return value
    raise _MalformedError


def _medium(level: object) -> Medium:
    number = _number(level, MAX_EVENT_ID)
    return (Medium.GPU, Medium.CPU, Medium.DISK)[min(number, 2)]
