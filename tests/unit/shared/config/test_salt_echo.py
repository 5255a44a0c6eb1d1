"""The section that both daemons have; what is said about it is tested with each daemon."""

from continuum_shared.cache_salt import SaltScope
from continuum_shared.config.decode import decode
from continuum_shared.config.salt_echo import SaltEchoConfig
from continuum_shared.config.source import load_text


def _read(text: str, **env: str) -> SaltEchoConfig:
    found, report = decode(SaltEchoConfig, load_text(text, path="f", env=env))
    assert found is not None, str(report)
    return found


def test_off_by_default_and_then_without_secrets() -> None:
    assert _read("{}") == SaltEchoConfig()
    off = _read("{secret_env: A}", A="x")
    assert (off.enabled, off.secrets, off.scope) == (False, (), SaltScope.BACKEND)


def test_secrets_in_their_order() -> None:
    on = _read("{enabled: true, secret_env: [B, A], scope: Fleet}", A="x", B="y")
    assert (on.secrets, on.scope) == (("y", "x"), SaltScope.FLEET)
