import pytest

from continuum_router.config.server import RoutingHeaders, ServerConfig
from support.config_files import good_router


def test_defaults():
    server = ServerConfig()
    assert str(server.listen) == "127.0.0.1:8080"
    assert server.max_body_bytes == 64 << 20
    assert server.drain_timeout == 30.0
    assert server.routing_headers is RoutingHeaders.ALWAYS
    assert server.fast_path is True
    assert server.trusted_proxies == ()


@pytest.mark.parametrize(
    ("text", "meaning", "dumped"),
    [
        ("true", RoutingHeaders.ALWAYS, True),
        ("false", RoutingHeaders.NEVER, False),
        ("'false'", RoutingHeaders.NEVER, False),
        ("authenticated", RoutingHeaders.AUTHENTICATED, "authenticated"),
    ],
)
def test_routing_headers(text, meaning, dumped):
    server = good_router(f"server: {{routing_headers: {text}}}").server
    assert server.routing_headers is meaning
    assert server.model_dump(mode="json")["routing_headers"] == dumped


def test_proxies_are_networks():
    server = good_router("server: {trusted_proxies: [10.1.2.3/8, '::1']}").server
    assert [str(network) for network in server.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
