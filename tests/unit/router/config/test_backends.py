import pytest

from continuum_router.config.backends import BackendType, Replay
from support.config_files import good_router, router_lines


def _one(extra=""):
    return good_router(f"backends: [{{name: a, url: 'http://h:8000'{extra}}}]").backends[0]


def test_defaults():
    backend = _one()
    assert (backend.type, backend.models, backend.weight) == (BackendType.GENERIC, (), 1.0)
    assert (backend.api_key, backend.headers, backend.max_connections) == (None, {}, 512)
    assert (backend.enabled, backend.internal, backend.replay) == (True, False, Replay.ENABLED)


def test_what_may_be_written():
    backend = _one(
        ", type: SGLang, models: [m, n], api_key: canary, "
        "headers: {X-A: v, x_b: w}, replay: disabled"
    )
    assert backend.type is BackendType.SGLANG
    assert backend.models == ("m", "n")
    assert backend.api_key is not None
    assert backend.api_key.reveal() == "canary"
    assert backend.headers["X-A"].reveal() == "v"
    assert backend.headers["x_b"].reveal() == "w"
    assert backend.replay is Replay.DISABLED
    assert "canary" not in repr(backend)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Content-Length", "is a header that the router sets itself; remove it"),
        ("X-Continuum-Route", "is a header that the router sets itself; remove it"),
        ("'a b'", "is not a valid header name; letters, digits and -"),
        ("'a:b'", "is not a valid header name; letters, digits and -"),
        ("''", "is not a valid header name; letters, digits and -"),
    ],
)
def test_headers_that_may_not_be_set(name, said):
    (line,) = router_lines(f"backends:\n- name: a\n  url: http://h\n  headers:\n    {name}: canary")
    assert line.startswith("r.yaml:5: backends[0].headers.")
    assert line.endswith(": " + said)


def test_headers_that_differ_only_in_case():
    (line,) = router_lines("backends: [{name: a, url: 'http://h', headers: {X-A: v, x-a: w}}]")
    assert line == (
        "r.yaml:1: backends[0].headers.x-a: is written twice (case does not matter); remove one"
    )


@pytest.mark.parametrize(
    ("more", "key", "said"),
    [
        ("aliases: {m: m}", "aliases.m", "means itself; remove it"),
        ("aliases: {m: n, n: o}", "aliases.m", "means another alias; name the real model"),
        ('aliases: {"a\\nb": n}', 'aliases."a\\nb"', "has a control character"),
        (
            "auth_scheme: digest",
            "auth_scheme",
            '"digest" is not a known value; known: bearer, basic, header:NAME',
        ),
        (
            "auth_scheme: 'header:a b'",
            "auth_scheme",
            "is not a known value; known: bearer, basic, header:NAME",
        ),
        (
            "auth_scheme: 'header:Host'",
            "auth_scheme",
            "names a header that the router sets itself; use another one",
        ),
        ('organization: "a\\tb"', "organization", "must be printable ASCII"),
    ],
)
def test_what_is_refused(more, key, said):
    (line,) = router_lines(f"backends:\n- name: a\n  url: http://h\n  {more}")
    assert line == f"r.yaml:4: backends[0].{key}: {said}"


@pytest.mark.parametrize(
    ("text", "scheme"),
    [("bearer", "bearer"), ("Basic", "basic"), ("'header:X-Key'", "header:X-Key")],
)
def test_auth_schemes(text, scheme):
    assert _one(f", auth_scheme: {text}").auth_scheme == scheme


def test_tls_and_aliases():
    backend = _one(", aliases: {a: m}, tls: {ca_file: /x.pem, insecure_skip_verify: false}")
    assert backend.aliases == {"a": "m"}
    assert (backend.tls.ca_file, backend.tls.server_name) == ("/x.pem", None)
