"""The 32-byte prefix key on which router and listener must agree byte for byte.

Where the rules come from: S0 "Prefix key" gives the two hash formulas and the cut at
``max_prefix_length``; decisions A1-A6 settle what counts as the system text, how content parts are
joined, and what happens to text that is not valid Unicode. Published vectors that other
implementations can test against: ``tests/fixtures/prefix_keys.json``.

Everything here is pure and total: a body of any odd shape yields a key text or ``None``, never an
exception, because the key only steers routing and must not be able to refuse a request.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, NewType

PrefixKey = NewType("PrefixKey", bytes)
"""32 raw bytes; ``.hex()`` on every wire."""

DEFAULT_MAX_PREFIX_LENGTH = 1024
"""Bytes of text that enter the hash (S0: ``max_prefix_length``)."""

SYSTEM_ROLES = frozenset({"system", "developer"})

_TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text"})
_MEDIA_EDGE = 65_536


class KeyTag(StrEnum):
    """Which text the key covers; the tag byte keeps equal texts in the two places apart."""

    SYSTEM = "S"
    FIRST_MESSAGE = "M"


class KeyText(NamedTuple):
    """The whole text (uncut) that anchors a request, and where it stood."""

    tag: KeyTag
    text: str


def cut_utf8(text: str, limit: int) -> bytes:
    """Encode ``text`` as UTF-8 and cut it down to at most ``limit`` bytes at a character boundary.

    Unpaired surrogates (JSON may carry them) become U+FFFD first, decisions A6.
    """
    # A character is at least one byte, so more than `limit` characters can never matter.
    head = text if len(text) <= limit else text[:limit]
    try:
        data = head.encode()
    except UnicodeEncodeError:
        data = head.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
    if len(data) <= limit:
        return data
    end = limit
    while end > 0 and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]


def derive(
    model: str, key_text: KeyText, max_prefix_length: int, salt: str | None = None
) -> PrefixKey:
    """Hash model and text into the prefix key (S0 "Prefix key").

    ``salt`` is a client's own ``cache_salt``: it separates caches inside the engine, so it must
    also separate the Tier 1 key (decisions C41). Without one the formula is the source's.
    """
    digest = hashlib.sha256(
        b"%b\x00%b%b"
        % (
            cut_utf8(model, len(model) * 4),
            key_text.tag.encode(),
            cut_utf8(key_text.text, max_prefix_length),
        )
    ).digest()
    if salt is not None:
        digest = hashlib.sha256(digest + b"\x00salt\x00" + cut_utf8(salt, 4096)).digest()
    return PrefixKey(digest)


def content_text(content: object) -> str:
    """Text of one message's content: a string, or parts joined with a newline (decisions A3).

    Each image, audio or other non-text part adds a short digest of its reference after the text,
    so that requests with different media do not collide.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        return ""
    texts: list[str] = []
    media: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping):
            text = part.get("text")
            if part.get("type", "text") in _TEXT_PART_TYPES and isinstance(text, str):
                texts.append(text)
            else:
                digest = media_digest(part)
                if digest:
                    media.append(digest)
    return "\n".join(texts + media)


def chat_key_text(body: Mapping[str, object]) -> KeyText | None:
    """Key text of an OpenAI chat body (decisions A2, A3); ``None`` when there is no text at all."""
    return _messages_key_text((), body.get("messages"))


def completions_key_text(body: Mapping[str, object]) -> KeyText | None:
    """Key text of a ``/v1/completions`` body: the prompt, tag M; token arrays have none (A5)."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return KeyText(tag=KeyTag.FIRST_MESSAGE, text=prompt)
    return None


def responses_key_text(body: Mapping[str, object]) -> KeyText | None:
    """Key text of a ``/v1/responses`` body: ``instructions`` first, then the input items (A5).

    Leading system or developer items join the instructions, because the engine renders them as
    one run of system sections and the listener reads that run back (A2).
    """
    instructions = body.get("instructions")
    leading = (instructions,) if isinstance(instructions, str) and instructions else ()
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    return _messages_key_text(leading, items)


def anthropic_key_text(body: Mapping[str, object]) -> KeyText | None:
    """Key text of an Anthropic messages body; ``cache_control`` never enters it (A4)."""
    system = content_text(body.get("system"))
    return _messages_key_text((system,) if system else (), body.get("messages"))


def _messages_key_text(leading: Iterable[str], messages: object) -> KeyText | None:
    system = list(leading)
    first: str | None = None
    if type(messages) is list or (
        isinstance(messages, Sequence) and not isinstance(messages, str | bytes | bytearray)
    ):
        for message in messages:
            # The exact type first: to ask an abstract class costs as much as to hash the text.
            if type(message) is not dict and not isinstance(message, Mapping):
                break
            content = message.get("content")
            text = content if type(content) is str else content_text(content)
            if message.get("role") not in SYSTEM_ROLES:
                first = text
                break
            system.append(text)
    # An empty system message anchors nothing: the first other message does.
    if any(system):
        return KeyText(tag=KeyTag.SYSTEM, text="\n".join(system))
    if first:
        return KeyText(tag=KeyTag.FIRST_MESSAGE, text=first)
    return None


def media_digest(part: Mapping[object, object]) -> str:
    """``[<type>:<16 hex digits>]`` for a part with a reference; empty for one without."""
    kind = part.get("type")
    digest = hashlib.sha256()
    found = _hash_reference(digest, {k: v for k, v in part.items() if k != "cache_control"}, 0)
    if not found or not isinstance(kind, str):
        return ""
    return f"[{kind[:32]}:{digest.hexdigest()[:16]}]"


def _hash_reference(digest: "hashlib._Hash", value: object, depth: int) -> bool:
    """Feed every string below ``value`` (in key order) to ``digest``; whether there was one.

    Long references (base64 images) enter by length, head and tail: a routing key does not justify
    hashing tens of megabytes on the event loop.
    """
    if depth > 4:
        return False
    if isinstance(value, str):
        edges = (
            value if len(value) <= 2 * _MEDIA_EDGE else value[:_MEDIA_EDGE] + value[-_MEDIA_EDGE:]
        )
        digest.update(f"{len(value)}:".encode() + cut_utf8(edges, len(edges) * 4))
        return True
    if isinstance(value, Mapping):
        pairs = sorted((k, v) for k, v in value.items() if isinstance(k, str) and k != "type")
        found = False
        for _, item in pairs:
            found = _hash_reference(digest, item, depth + 1) or found
        return found
    return False
