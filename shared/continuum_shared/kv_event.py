"""The event contract of the two daemons: what the listener says about a prefix, and its JSON form.

S0 "Event types" names the five actions; decisions C8-C10 and C28 settle their payload. A record
travels as SSE: the ``event:`` field carries the action, ``data:`` one JSON object, ``id:`` the
position ``<epoch>-<seq>``. The golden file ``tests/fixtures/push_stream_golden.sse`` holds a
recorded stream that both daemons are tested against.
"""

from dataclasses import dataclass
from enum import StrEnum

import orjson

from continuum_shared.prefix_key import PrefixKey

MAX_TOKENS = 2**53 - 1
"""Largest count that survives any JSON reader."""


class KvAction(StrEnum):
    """What happened to a prefix on one engine; the value is the SSE event name (C10)."""

    CREATED = "cache_created"
    EVICTED = "cache_evicted"
    OFFLOADED = "cache_offloaded"
    RELOADED = "cache_reloaded"
    PURGED = "cache_purged"


class KvEventFault(StrEnum):
    """Why a record could not be read; the value is a metric label."""

    UNKNOWN_TYPE = "unknown_type"
    MALFORMED = "malformed"


class KvEventError(Exception):
    """A record that is not a KV event. Costs exactly itself (C30)."""

    def __init__(self, fault: KvEventFault) -> None:
        super().__init__(f"not a KV event: {fault.value}")
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEvent:
    """One change of one prefix on one engine.

    ``prefix`` is absent exactly for a purge; ``tokens`` is the resident count of the prefix
    (absent: the reader keeps what it knew, C8); ``snapshot`` is, on a purge, how many records
    follow that replace everything known about the engine in one swap (C28).
    """

    action: KvAction
    prefix: PrefixKey | None = None
    tokens: int | None = None
    snapshot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventId:
    """A position in one listener's stream: a random epoch per process and source, and a count."""

    epoch: str
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @staticmethod
    def parse(text: str) -> "EventId | None":
        """Read ``<epoch>-<seq>``; ``None`` for anything else (a stranger may send any text)."""
        epoch, dash, number = text.rpartition("-")
        if not dash or not epoch or len(text) > 128:
            return None
        if not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        return EventId(epoch=epoch, seq=int(number))


def encode(event: KvEvent) -> bytes:
    """The JSON object of one event; absent fields are left out."""
    body: dict[str, object] = {"event": event.action.value}
    if event.prefix is not None:
        body["prefix_hash"] = event.prefix.hex()
    if event.tokens is not None:
        body["token_count"] = event.tokens
    if event.snapshot is not None:
        body["snapshot"] = event.snapshot
    return orjson.dumps(body)


def decode(name: str | None, data: str) -> KvEvent:
    """Read one SSE record.

    ``name`` is the SSE ``event:`` field and wins over the JSON ``event`` (S0 "SSE parsing").
    Raises :class:`KvEventError` for an unknown name or a payload that breaks the contract.
    """
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise KvEventError(KvEventFault.MALFORMED) from None
    if not isinstance(body, dict):
        raise KvEventError(KvEventFault.MALFORMED)
    try:
        action = KvAction(name if name else str(body.get("event")))
    except ValueError:
        raise KvEventError(KvEventFault.UNKNOWN_TYPE) from None
    if action is KvAction.PURGED:
        return KvEvent(action=action, snapshot=_count(body.get("snapshot")))
    return KvEvent(
        action=action,
        prefix=_prefix(body.get("prefix_hash")),
        tokens=_count(body.get("token_count")),
    )


def prefix_length_comment(max_prefix_length: int) -> str:
    """Text of the first SSE comment of a stream, so that both sides can compare (A17)."""
    return f"prefix-length={max_prefix_length}"


def parse_prefix_length(comment: str) -> int | None:
    """The length in such a comment, or ``None`` for any other comment."""
    name, _, number = comment.strip().partition("=")
    if name != "prefix-length" or not number.isascii() or not number.isdigit() or len(number) > 9:
        return None
    return int(number)


def closing_comment(reason: str) -> str:
    """Text of the last SSE comment of a stream that the listener ends; ``reason`` is one word."""
    return f"closed={reason}"


def parse_closing(comment: str) -> str | None:
    """The word in such a comment, or ``None`` for any other comment."""
    name, _, reason = comment.strip().partition("=")
    word = reason.replace("_", "")
    if name != "closed" or not word.isascii() or not word.isalpha() or len(reason) > 32:
        return None
    return reason


def _prefix(value: object) -> PrefixKey:
    if not isinstance(value, str) or len(value) != 64 or not value.isascii():
        raise KvEventError(KvEventFault.MALFORMED)
    try:
        digest = bytes.fromhex(value)
    except ValueError:
        raise KvEventError(KvEventFault.MALFORMED) from None
    if len(digest) != 32:  # fromhex reads over white space
        raise KvEventError(KvEventFault.MALFORMED)
    return PrefixKey(digest)


def _count(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
        raise KvEventError(KvEventFault.MALFORMED)
    return value
