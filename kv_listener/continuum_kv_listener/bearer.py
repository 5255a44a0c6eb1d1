"""Who may read the HTTP side: bearer tokens, compared in constant time.

Only digests are kept and compared, so that neither the length of a token nor how much of it was
right shows in the time that an answer takes, and a dump of the process holds no token.
"""

import hashlib
import hmac
from collections.abc import Iterable
from enum import StrEnum


class Refusal(StrEnum):
    """Why a request was not served; the value is a metric label."""

    NO_TOKEN = "no_token"
    WRONG_TOKEN = "wrong_token"
    TOO_MANY_SUBSCRIBERS = "too_many_subscribers"
    UNKNOWN_SOURCE = "unknown_source"


MAX_HEADER = 8192


class BearerGate:
    """Admits requests whose ``Authorization`` header has one of the tokens.

    ``digests`` are SHA-256 digests of the tokens (32 bytes each); none of them: everybody is
    admitted.
    """

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self._digests = tuple(digests)

    @property
    def open(self) -> bool:
        """Whether no token is asked for."""
        return not self._digests

    def refuses(self, header: str | None) -> Refusal | None:
        """Why the bearer of this header is not admitted, or None when it is."""
        if not self._digests:
            return None
        scheme, _, token = (header or "").strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_HEADER:
            return Refusal.NO_TOKEN
        shown = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        good = False
        for digest in self._digests:
            good |= hmac.compare_digest(shown, digest)
        return None if good else Refusal.WRONG_TOKEN
