"""Salts against their published vectors, and everything that must not verify (decisions C24)."""

import base64
import json
from pathlib import Path

import pytest

from continuum_shared.cache_salt import (
    SALT_LENGTH,
    SaltIssuer,
    SaltScope,
    SaltVerifier,
    is_router_salt,
)
from continuum_shared.prefix_key import PrefixKey

VECTORS = json.loads((Path(__file__).parents[2] / "fixtures" / "cache_salts.json").read_text())
KEY = PrefixKey(bytes(range(32)))
SALT = SaltIssuer(["now"]).issue(KEY, backend="one", model="m")


@pytest.mark.parametrize("row", VECTORS, ids=[row["name"] for row in VECTORS])
def test_published_vector(row: dict[str, str]) -> None:
    scope, key = SaltScope(row["scope"]), PrefixKey(bytes.fromhex(row["key"]))
    issued = SaltIssuer([row["secret"]], scope).issue(
        key, backend=row["backend"], model=row["model"]
    )
    assert issued == row["salt"]
    verifier = SaltVerifier([row["secret"]], backend=row["backend"], scope=scope)
    assert verifier.verify(issued, [row["model"]]) == key


def test_vectors_are_all_different() -> None:
    assert len({row["salt"] for row in VECTORS}) == len(VECTORS) == 9


@pytest.mark.parametrize("row", VECTORS, ids=[row["name"] for row in VECTORS])
def test_a_salt_is_one_that_engines_take(row: dict[str, str]) -> None:
    salt = row["salt"]
    assert len(salt) == SALT_LENGTH == 64
    assert not set(salt) & set('@/\\\0"+= ')
    assert is_router_salt(salt)


def test_rotation_issues_with_the_first_and_verifies_with_all() -> None:
    """Old router, then both secrets known, then a new router: no cache becomes cold."""
    old = SaltIssuer(["old"]).issue(KEY, backend="one", model="m")
    new = SaltIssuer(["new", "old"]).issue(KEY, backend="one", model="m")
    assert new == SaltIssuer(["new"]).issue(KEY, backend="one", model="m") != old
    both = SaltVerifier(["old", "new"], backend="one")
    assert both.verify(old, ["m"]) == both.verify(new, ["m"]) == KEY
    after = SaltVerifier(["new"], backend="one")
    assert (after.verify(old, ["m"]), after.verify(new, ["m"])) == (None, KEY)


@pytest.mark.parametrize(
    ("secrets", "backend", "scope", "models"),
    [
        (["other"], "one", SaltScope.BACKEND, ["m"]),
        (["now"], "two", SaltScope.BACKEND, ["m"]),
        (["now"], "", SaltScope.BACKEND, ["m"]),
        (["now"], "one", SaltScope.FLEET, ["m"]),
        (["now"], "one", SaltScope.BACKEND, ["other"]),
        (["now"], "one", SaltScope.BACKEND, []),
        ([], "one", SaltScope.BACKEND, ["m"]),
    ],
    ids=["secret", "backend", "no backend", "scope", "model", "no model", "no secret"],
)
def test_bound_to_secret_backend_and_model(
    secrets: list[str], backend: str, scope: SaltScope, models: list[str]
) -> None:
    assert SaltVerifier(secrets, backend=backend, scope=scope).verify(SALT, models) is None


def test_any_of_the_served_names_will_do() -> None:
    assert SaltVerifier(["now"], backend="one").verify(SALT, ["a", "m", "b"]) == KEY


def test_fleet_salts_are_the_same_on_every_backend() -> None:
    issuer = SaltIssuer(["now"], SaltScope.FLEET)
    assert issuer.issue(KEY, backend="one", model="m") == issuer.issue(
        KEY, backend="two", model="m"
    )


FORGED = {
    "empty": "",
    "the mark alone": "cr1.",
    "one character less": SALT[:-1],
    "one character more": SALT + "A",
    "another mark": "cr2." + SALT[4:],
    "no dot": SALT[:47] + "_" + SALT[48:],
    "another tag": SALT[:-1] + ("A" if SALT[-1] != "A" else "B"),
    "another key": SALT[:4] + "B" + SALT[5:],
    "padding in the key": SALT[:46] + "=" + SALT[47:],
    "key in the other alphabet": SALT[:5] + "+" + SALT[6:],
    "line break in the key": SALT[:5] + "\n" + SALT[6:],
    "letters beyond ASCII": SALT[:-1] + "가",
    "surrogate": SALT[:-1] + "\ud800",
    "key beyond ASCII": SALT[:5] + "é" + SALT[6:],
}


@pytest.mark.parametrize("salt", FORGED.values(), ids=FORGED.keys())
def test_forged_salts_do_not_verify(salt: str) -> None:
    assert SaltVerifier(["now"], backend="one").verify(salt, ["m"]) is None


def test_a_key_has_one_spelling() -> None:
    """Two bits of the key's last character are not used; set, they make another salt."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    twin = SALT[:46] + alphabet[alphabet.index(SALT[46]) + 1] + SALT[47:]
    assert base64.urlsafe_b64decode(twin[4:47] + "=") == KEY
    assert SaltVerifier(["now"], backend="one").verify(twin, ["m"]) is None


def test_surrogates_in_names_and_secrets_do_not_break_it() -> None:
    salt = SaltIssuer(["s\udcff"]).issue(KEY, backend="one", model="m\ud800")
    assert SaltVerifier(["s\udcff"], backend="one").verify(salt, ["m\ud800"]) == KEY


@pytest.mark.parametrize("secrets", [[], [""], ["good", ""]], ids=["none", "empty", "one empty"])
def test_an_issuer_needs_secrets(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="secret"):
        SaltIssuer(secrets)


def test_a_verifier_refuses_an_empty_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        SaltVerifier(["good", ""], backend="one")


@pytest.mark.parametrize("value", [None, 5, b"cr1.x", "cr1", "CR1.x", "tenant"])
def test_other_values_are_no_router_salts(value: object) -> None:
    assert not is_router_salt(value)


def test_nothing_shows_a_secret() -> None:
    both = (SaltIssuer(["canary"]), SaltVerifier(["canary"], backend="b"))
    assert all("canary" not in repr(each) for each in both)
