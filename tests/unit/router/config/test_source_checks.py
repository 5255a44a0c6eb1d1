"""What is said about an event source's TLS and token."""

import pytest

from support.config_files import router_lines

HEAD = "backends: [{name: a, url: 'http://a'}]\nkv_cache_index:\n  event_sources:\n"
AT = "r.yaml:4: warning: kv_cache_index.event_sources[0]"


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ("endpoint: 'https://l/events/a', auth_token: t0k, tls: {ca_file: f}", []),
        ("endpoint: 'http://127.0.0.1:7817/events/a', auth_token: t0k", []),
        (
            "endpoint: 'http://l/events/a', auth_token: canary",
            [
                f"{AT}.auth_token: travels in the clear: the endpoint is neither https nor wss; "
                "give the listener a certificate (its tls section) and write https:// or wss://"
            ],
        ),
        (
            "endpoint: 'http://l/events/a', tls: {ca_file: f}",
            [f"{AT}.tls: has no effect: the endpoint is neither https nor wss"],
        ),
        (
            "endpoint: 'https://l/events/a', tls: {insecure_skip_verify: true}",
            [
                f"{AT}.tls.insecure_skip_verify: anybody can pose as this listener and read the "
                "token; name its authority in ca_file instead"
            ],
        ),
        (
            "endpoint: 'https://l/events/a', tls: {client_key: k}",
            [
                "r.yaml:4: kv_cache_index.event_sources[0].tls.client_key: has no client_cert to "
                "belong to; name the certificate in client_cert"
            ],
        ),
        (
            "endpoint: 'https://l/events/a', auth_token: 'two words'",
            [
                "r.yaml:4: kv_cache_index.event_sources[0].auth_token: must be printable ASCII "
                "without blanks"
            ],
        ),
    ],
)
def test_what_is_said(keys, lines):
    assert router_lines(f"{HEAD}    - {{backend_name: a, {keys}}}\n") == lines
