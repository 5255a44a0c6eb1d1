"""Decisions H12: what shows a backend who calls, and how it is recognised."""

import ssl

import pytest

from continuum_router.backends.credentials import (
    TlsFileError,
    key_header,
    own_headers,
    tls_context,
)
from continuum_router.config.backends import TlsConfig
from continuum_shared.config.kinds import Secret
from support.dispatch import backend
from support.source_tree import ROOT

CERT = str(ROOT / "tests/fixtures/tls/cert.pem")
KEY = str(ROOT / "tests/fixtures/tls/key.pem")


@pytest.mark.parametrize(
    ("scheme", "header"),
    [
        ("bearer", ("Authorization", "Bearer user:pass")),
        ("basic", ("Authorization", "Basic dXNlcjpwYXNz")),
        ("header:X-Api-Key", ("X-Api-Key", "user:pass")),
    ],
)
def test_the_key_as_the_scheme_says(scheme: str, header: tuple[str, str]) -> None:
    used = backend("b", api_key=Secret("user:pass"), auth_scheme=scheme)
    assert key_header(used) == header
    assert own_headers(used) == [header]


def test_without_a_key_there_is_none() -> None:
    assert key_header(backend("b", auth_scheme="basic")) is None
    assert own_headers(backend("b", organization="o")) == [("OpenAI-Organization", "o")]


def test_written_headers_win() -> None:
    used = backend("b", api_key=Secret("k"), headers=(("authorization", "mine"),), organization="o")
    assert own_headers(used) == [("authorization", "mine"), ("OpenAI-Organization", "o")]


def test_contexts() -> None:
    strict = tls_context(TlsConfig(ca_file=CERT))
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(strict.get_ca_certs()) == 1
    loose = tls_context(TlsConfig(insecure_skip_verify=True))
    assert (loose.verify_mode, loose.check_hostname) == (ssl.CERT_NONE, False)
    tls_context(TlsConfig(client_cert=CERT, client_key=KEY))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ca_file": "/nowhere.pem"}, "tls.ca_file: no such file or directory"),
        ({"ca_file": __file__}, "tls.ca_file: is not a usable PEM file"),
        ({"client_cert": "/nowhere.pem"}, "tls.client_cert: no such file or directory"),
        ({"client_cert": CERT}, "tls.client_cert: is not a usable PEM file"),
    ],
)
def test_files_that_cannot_be_used(settings: dict[str, str], said: str) -> None:
    with pytest.raises(TlsFileError) as caught:
        tls_context(TlsConfig(**settings))  # type: ignore[arg-type]
    assert str(caught.value) == said
