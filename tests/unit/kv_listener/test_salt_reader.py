"""Which names a salt is verified for (decisions C24, C25)."""

import pytest

from continuum_kv_listener.salt_reader import SaltReader
from continuum_shared.cache_salt import SaltIssuer, SaltVerifier
from continuum_shared.prefix_key import PrefixKey

KEY = PrefixKey(bytes(range(32)))
SECRETS = ["the-secret-of-this-test"]
BASE = SaltIssuer(SECRETS).issue(KEY, backend="one", model="base")
ADAPTER = SaltIssuer(SECRETS).issue(KEY, backend="one", model="adapter")


def reader(secrets: list[str] = SECRETS) -> SaltReader:
    verifier = SaltVerifier(secrets, backend="one")
    return SaltReader(verifier, models=["base", "alias"], expected=bool(secrets))


@pytest.mark.parametrize(
    ("salt", "lora_name", "good"),
    [
        (BASE, None, True),
        (ADAPTER, "adapter", True),
        (ADAPTER, None, False),
        (BASE, "adapter", False),
        (BASE, "lora_id:3", True),
        (ADAPTER, "lora_id:3", False),
        ("cr1.forged", None, False),
    ],
    ids=[
        "a served name",
        "the adapter of the chain",
        "an adapter on a chain of the base model",
        "the base model on a chain of an adapter",
        "an adapter whose name the engine does not tell",
        "a name that is not served",
        "forged",
    ],
)
def test_names(salt: str, lora_name: str | None, good: bool) -> None:
    read = reader()
    assert read(salt, lora_name) == ((KEY,) if good else None)
    assert (read.verified_total, read.refused_total) == (good, not good)


def test_without_a_secret_none_is_good() -> None:
    read = reader([])
    assert read(BASE, None) is None
    assert (read.expected, read.refused_total) == (False, 1)
