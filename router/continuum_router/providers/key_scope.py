"""What the prefix hash tells apart beside the system prompt (decisions A8).

Agents that share a system prompt have one prefix key and so one owner on the ring. With
`prefix_routing.key_scope` the hash of Tier 1 also covers the first user message, or the session
that a client names; index, listener and salts keep the plain key.
"""

import hashlib
from collections.abc import Mapping, Sequence

from continuum_router.config.routing import KeyScope
from continuum_router.providers.prepare import Inbound
from continuum_shared.prefix_key import SYSTEM_ROLES, PrefixKey, content_text, cut_utf8


class KeyScoper:
    """Widens keys. `limit` is `max_prefix_length`: bytes of the first user message that count."""

    def __init__(self, scope: KeyScope, limit: int) -> None:
        self._by_session = scope is KeyScope.SESSION
        self._limit = limit

    def widen(
        self, hash_key: PrefixKey | None, body: Mapping[str, object], inbound: Inbound | None
    ) -> PrefixKey | None:
        """The key for the ring. Without a session header the first user message stands in.

        None stays None: a request without text has no key in any scope.
        """
        if hash_key is None:
            return None
        if self._by_session and inbound is not None and inbound.session:
            return _mixed(hash_key, b"\x00session\x00", inbound.session)
        messages = body.get("messages", body.get("input"))
        return _mixed(hash_key, b"\x00user\x00", cut_utf8(_first_user(messages), self._limit))


def _mixed(key: PrefixKey, tag: bytes, more: bytes) -> PrefixKey:
    return PrefixKey(hashlib.sha256(key + tag + more).digest())


def _first_user(messages: object) -> str:
    """Text of the first message that is not the system's."""
    if isinstance(messages, str):
        return messages
    if isinstance(messages, Sequence):
        for message in messages:
            if isinstance(message, Mapping) and message.get("role") not in SYSTEM_ROLES:
                return content_text(message.get("content"))
    return ""
