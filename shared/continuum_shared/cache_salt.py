"""Salts by which a router tells the listener whose prompt an engine's blocks hold (salt echo).

The router sends ``cache_salt`` with a request, the engine repeats it in the event of the chain's
first block, and the listener reads the prefix key out of it. Decisions C24, P7:

    "cr1." base64url(prefix key, 32 bytes) "." base64url(first 12 bytes of the tag)

without padding, 64 characters; the tag is HMAC-SHA256 over ``cr1`` NUL backend NUL model NUL
prefix key, the backend being empty with ``scope: fleet`` and the model the name that the engine
serves (an adapter's own name). A salt says nothing about the text and verifies for one model on
one backend, but it is no password: whoever may read the engine's requests can send it again.

Published examples that other implementations can test against:
``tests/fixtures/cache_salts.json``. Nothing here is logged, and no repr shows a secret.
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from enum import StrEnum

from continuum_shared.prefix_key import PrefixKey

SALT_FORM = "cr1."
"""How every salt that a router issues begins; a client's own salt must not."""
SALT_LENGTH = 64
"""Characters of a salt. Engines refuse more than 128, and any of ``@ / \\`` or NUL."""

_VERSION = b"cr1"
_KEY_BYTES = 32
_TAG_BYTES = 12
_KEY_CHARS = 43
_KEY_END = len(SALT_FORM) + _KEY_CHARS


class SaltScope(StrEnum):
    """What a salt is bound to besides its model (decisions P7)."""

    BACKEND = "backend"
    FLEET = "fleet"
    """Engines that share an external KV store go on sharing it."""


class SaltIssuer:
    """The router's side: issues with the first of its secrets.

    ``secrets`` are the texts of the environment variables, none empty. Raises ValueError when
    there is none.
    """

    __slots__ = ("_scope", "_secret")

    def __init__(self, secrets: Sequence[str], scope: SaltScope = SaltScope.BACKEND) -> None:
        self._secret = _secret_bytes(secrets)[0]
        self._scope = scope

    def issue(self, key: PrefixKey, *, backend: str, model: str) -> str:
        """The salt of a prompt with this key for ``model`` on ``backend``."""
        tag = _tag(self._secret, _bound_to(self._scope, backend), model, key)
        return f"{SALT_FORM}{_encode(key)}.{_encode(tag)}"


class SaltVerifier:
    """The listener's side: a salt that any of the secrets issued for this backend is good.

    ``secrets`` may be empty: then no salt verifies.
    """

    __slots__ = ("_backend", "_secrets")

    def __init__(
        self, secrets: Sequence[str], *, backend: str, scope: SaltScope = SaltScope.BACKEND
    ) -> None:
        self._secrets = _secret_bytes(secrets) if secrets else ()
        self._backend = _bound_to(scope, backend)

    def verify(self, salt: str, models: Iterable[str]) -> PrefixKey | None:
        """The prefix key that ``salt`` vouches for if it was issued for one of ``models``.

        Total: a text of any other form gives None.
        """
        key = _key_in(salt)
        if key is None:
            return None
        shown = salt[_KEY_END + 1 :]
        found = None
        for model in models:
            for secret in self._secrets:
                tag = _encode(_tag(secret, self._backend, model, key))
                if hmac.compare_digest(tag, shown):
                    found = key
        return found


def is_router_salt(value: object) -> bool:
    """Whether this looks like a salt that a router issued, true or forged (decisions C25, J15)."""
    return isinstance(value, str) and value.startswith(SALT_FORM)


def _key_in(salt: str) -> PrefixKey | None:
    if len(salt) != SALT_LENGTH or not salt.startswith(SALT_FORM) or salt[_KEY_END] != ".":
        return None
    if not salt.isascii():
        return None
    text = salt[len(SALT_FORM) : _KEY_END]
    try:
        key = urlsafe_b64decode(text + "=")
    except (binascii.Error, ValueError):
        return None
    # One key has one spelling: the decoder skips foreign characters and unused bits.
    if len(key) != _KEY_BYTES or _encode(key) != text:
        return None
    return PrefixKey(key)


def _tag(secret: bytes, backend: bytes, model: str, key: PrefixKey) -> bytes:
    name = model.encode("utf-8", "replace")
    message = b"\x00".join((_VERSION, backend, name, key))
    return hmac.digest(secret, message, "sha256")[:_TAG_BYTES]


def _bound_to(scope: SaltScope, backend: str) -> bytes:
    return backend.encode() if scope is SaltScope.BACKEND else b""


def _secret_bytes(secrets: Sequence[str]) -> tuple[bytes, ...]:
    if not secrets or not all(secrets):
        raise ValueError("salt echo needs a secret that is not empty")
    return tuple(secret.encode("utf-8", "surrogateescape") for secret in secrets)


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
