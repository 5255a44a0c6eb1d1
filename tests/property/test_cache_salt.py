"""Any salt that was issued verifies where it was issued for, and nowhere else (decisions C24)."""

from hypothesis import given
from hypothesis import strategies as st

from continuum_shared.cache_salt import SALT_LENGTH, SaltIssuer, SaltScope, SaltVerifier
from continuum_shared.prefix_key import PrefixKey

KEYS = st.binary(min_size=32, max_size=32).map(PrefixKey)
NAMES = st.text(alphabet="abAB01-_", min_size=1, max_size=12)
MODELS = st.text(min_size=1, max_size=20)
SECRETS = st.text(min_size=1, max_size=40)
SCOPES = st.sampled_from(SaltScope)


@given(KEYS, NAMES, MODELS, SECRETS, SECRETS, SCOPES)
def test_round_trip(
    key: PrefixKey, backend: str, model: str, secret: str, older: str, scope: SaltScope
) -> None:
    salt = SaltIssuer([secret, older], scope).issue(key, backend=backend, model=model)
    assert len(salt) == SALT_LENGTH
    verifier = SaltVerifier([older, secret], backend=backend, scope=scope)
    assert verifier.verify(salt, ["another", model]) == key


@given(KEYS, NAMES, MODELS, st.integers(0, SALT_LENGTH - 1), st.characters())
def test_one_letter_makes_another_salt(
    key: PrefixKey, backend: str, model: str, at: int, letter: str
) -> None:
    salt = SaltIssuer(["secret"]).issue(key, backend=backend, model=model)
    forged = salt[:at] + letter + salt[at + 1 :]
    found = SaltVerifier(["secret"], backend=backend).verify(forged, [model])
    assert found == (key if forged == salt else None)


@given(st.text(max_size=80) | st.text(min_size=64, max_size=64).map(lambda text: "cr1." + text[4:]))
def test_any_text_is_only_refused(text: str) -> None:
    assert SaltVerifier(["secret"], backend="b").verify(text, ["m"]) is None
