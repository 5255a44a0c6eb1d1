"""Reads router-issued salts for one source (decisions C24, C25; the tracker's ``verify_salt``)."""

from collections.abc import Sequence

from continuum_shared.cache_salt import SaltVerifier
from continuum_shared.prefix_key import PrefixKey

NUMBERED_ADAPTER = "lora_id:"
"""How the decoder names an adapter of which the engine tells the number alone."""


class SaltReader:
    """Called with a salt and the chain's adapter; counts what it found.

    ``models`` are the source's served names. ``expected`` says whether salt echo is on: without it
    ``verifier`` has no secret and every router's salt is a bad one.
    """

    __slots__ = ("_models", "_verifier", "expected", "refused_total", "verified_total")

    def __init__(self, verifier: SaltVerifier, *, models: Sequence[str], expected: bool) -> None:
        self._verifier = verifier
        self._models = tuple(models)
        self.expected = expected
        self.verified_total = 0
        self.refused_total = 0

    def __call__(self, salt: str, lora_name: str | None) -> tuple[PrefixKey, ...] | None:
        """The key that the salt vouches for, or None. A chain of an adapter is verified for the
        adapter's name alone, unless the engine does not tell it."""
        named = lora_name is not None and not lora_name.startswith(NUMBERED_ADAPTER)
        key = self._verifier.verify(salt, (lora_name,) if named and lora_name else self._models)
        if key is None:
            self.refused_total += 1
            return None
        self.verified_total += 1
        return (key,)
