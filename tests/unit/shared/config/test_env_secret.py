"""Names of environment variables that hold secrets: read with the file, printed as names."""

import copy
import pickle

import pytest
from pydantic import Field

from continuum_shared.config.decode import decode
from continuum_shared.config.env_secret import EnvSecret, EnvSecrets
from continuum_shared.config.kinds import SectionModel
from continuum_shared.config.source import load_text


class _Section(SectionModel):
    secret_env: EnvSecrets = Field((), description="-")


def _read(text: str, **env: str) -> tuple[_Section | None, list[str]]:
    found, report = decode(_Section, load_text(text, path="f", env=env))
    return found, report.lines()


def test_one_name_or_several() -> None:
    one, _ = _read("secret_env: A", A="x")
    two, _ = _read("secret_env: [A, B]", A="x", B="y")
    none, _ = _read("{}")
    assert one is not None
    assert two is not None
    assert none is not None
    assert [each.reveal() for each in one.secret_env] == ["x"]
    assert [each.reveal() for each in two.secret_env] == ["x", "y"]
    assert none.secret_env == ()


@pytest.mark.parametrize("env", [{}, {"A": ""}])
def test_an_unset_variable_is_not_given(env: dict[str, str]) -> None:
    found, _ = _read("secret_env: A", **env)
    assert found is not None
    assert not found.secret_env[0].given
    with pytest.raises(ValueError, match="A is not set"):
        found.secret_env[0].reveal()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secret_env: 5", "must be a list"),
        ("secret_env: [5]", "secret_env[0]: must be the name of an environment variable"),
        ("secret_env: '1A'", "secret_env: must be the name of an environment variable"),
        ("secret_env: ''", "secret_env: must be the name of an environment variable"),
        ("secret_env: [A, B, A]", "secret_env[2]: is listed twice"),
        ("secret_env: [A, B, C, D, E, F, G, H, I]", "secret_env: "),
    ],
)
def test_bad_names(text: str, said: str) -> None:
    found, lines = _read(text, A="x")
    assert found is None
    assert len(lines) == 1
    assert said in lines[0]


def test_it_shows_its_name_only() -> None:
    secret = EnvSecret("NAME", "canary")
    found, _ = _read("secret_env: NAME", NAME="canary")
    assert found is not None
    shown = [repr(secret), str(secret), repr(found), found.model_dump_json(), str(found.__dict__)]
    assert all("canary" not in text for text in shown)
    assert found.model_dump(mode="json") == {"secret_env": ["NAME"]}
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        copy.copy(secret)


def test_equal_by_name() -> None:
    assert EnvSecret("A", "x") == EnvSecret("A", None) != EnvSecret("B", "x")
    assert len({EnvSecret("A", "x"), EnvSecret("A", "y")}) == 1
