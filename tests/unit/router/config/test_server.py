import pytest

from continuum_router.config.server import RoutingHeaders, ServerConfig
from support.config_files import ROUTER_BASE, good_router, router_lines

NO_PATH = 'is not a path; such as "/v1/messages" or "/v1/files/*"'


def test_defaults():
    server = ServerConfig()
    assert str(server.listen) == "127.0.0.1:8080"
    assert server.max_body_bytes == 64 << 20
    assert server.drain_timeout == 30.0
    assert server.routing_headers is RoutingHeaders.ALWAYS
    assert server.fast_path is True
    assert server.trusted_proxies == ()
    assert server.passthrough_paths == ()
    assert server.rewrite_response_model is True


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


def test_paths_that_may_be_passed_on():
    paths = ("/v1/messages", "/v1/files/*", "/a.b/c-d")
    assert good_router(
        f"server: {{passthrough_paths: {list(paths)}}}"
    ).server.passthrough_paths == (paths)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("v1/x", ""),
        ("/", ""),
        ("/*", ""),
        ("/a/../b", ""),
        ("/a//b", ""),
        ("/a%2fb", ""),
        ("/a*", ""),
        ("/a/", ""),
        ("/metrics", "is a path of the router itself; remove it"),
        ("/admin/*", "is a path of the router itself; remove it"),
        ("/v1/models/x", "is a path of the router itself; remove it"),
        ("/v1/*", "covers paths of the router itself; list the paths below it"),
        (
            "/sleep",
            "is a management path of engines and is never passed on; call the engine itself",
        ),
    ],
)
def test_paths_that_may_not(path, said):
    (line,) = router_lines(f"server:\n  passthrough_paths: ['{path}']\n" + ROUTER_BASE)
    said = said or NO_PATH
    assert line == f"r.yaml:2: server.passthrough_paths[0]: {said}"
