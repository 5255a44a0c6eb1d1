"""Records of the event contract: they are read whole or refused, and written back as they were."""

import contextlib

from continuum_shared.kv_event import (
    EventId,
    KvEvent,
    KvEventError,
    decode,
    encode,
    parse_prefix_length,
    prefix_length_comment,
)
from fuzz.target import Target, plain

PREFIX = "0123456789abcdef" * 4


def _decoded(name: str | None, text: str) -> KvEvent | None:
    with contextlib.suppress(KvEventError):
        return decode(name, text)
    return None


def run(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    name, _, body = text.partition("\n")
    for event in (_decoded(None, text), _decoded(name, body)):
        if event is not None:
            assert decode(None, encode(event).decode()) == event
    position = EventId.parse(text)
    if position is not None:
        assert EventId.parse(str(position)) == position
    length = parse_prefix_length(text)
    if length is not None:
        assert parse_prefix_length(prefix_length_comment(length)) == length


TARGET = Target(
    name="kv_event",
    opened=plain(run),
    seeds=(
        f'{{"event":"cache_created","prefix_hash":"{PREFIX}","token_count":4}}'.encode(),
        b'cache_purged\n{"event":"x","snapshot":3}',
        f'cache_evicted\n{{"prefix_hash":"{PREFIX}"}}'.encode(),
        b"epoch-12",
        b"prefix-length=1024",
    ),
    tokens=(
        b"cache_created",
        b"cache_offloaded",
        b"cache_reloaded",
        b'"prefix_hash":',
        b'"token_count":',
        b'"snapshot":',
        PREFIX.encode(),
        b"null",
        b"true",
        b"9007199254740992",
        b"1.0",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"{",
        b"}",
    ),
    watched=("continuum_shared.kv_event",),
    smoke=8000,
    max_size=1024,
)
