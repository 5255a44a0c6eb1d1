import pytest

from continuum_shared.config.addresses import (
    BackendUrl,
    HttpEndpoint,
    ListenAddress,
    ZmqEndpoint,
    is_host_name,
    is_loopback,
    parse_network,
)
from continuum_shared.config.bad_value import BadValue


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "path", "socket", "authority", "printed"),
    [
        ("http://h:8000", "http", "h", 8000, "", "", "h:8000", "http://h:8000"),
        ("HTTP://H.Example/", "http", "h.example", 80, "", "", "h.example", "http://h.example"),
        ("https://h", "https", "h", 443, "", "", "h", "https://h"),
        ("https://h:443/v1/", "https", "h", 443, "", "", "h", "https://h"),
        ("http://h:1/api/v1", "http", "h", 1, "/api", "", "h:1", "http://h:1/api"),
        ("http://[::1]:8000", "http", "::1", 8000, "", "", "[::1]:8000", "http://[::1]:8000"),
        ("http://[2001:DB8::1]", "http", "2001:db8::1", 80, "", "", "[2001:db8::1]",
         "http://[2001:db8::1]"),
        ("http://my_engine-0.ns.svc:80", "http", "my_engine-0.ns.svc", 80, "", "",
         "my_engine-0.ns.svc", "http://my_engine-0.ns.svc"),
        ("unix:///run/e.sock", "unix", "localhost", 0, "", "/run/e.sock", "localhost",
         "unix:///run/e.sock"),
        ("unix:/run/e.sock", "unix", "localhost", 0, "", "/run/e.sock", "localhost",
         "unix:///run/e.sock"),
    ],
)  # fmt: skip
def test_backend_url(text, scheme, host, port, path, socket, authority, printed):
    url = BackendUrl.parse(text)
    assert (url.scheme, url.host, url.port, url.path, url.socket_path) == (
        scheme,
        host,
        port,
        path,
        socket,
    )
    assert url.authority == authority
    assert url.tls is (scheme == "https")
    assert str(url) == printed
    assert BackendUrl.parse(printed) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://h", "must be an http://, https:// or unix:// URL"),
        ("h:8000", "must be an http://, https:// or unix:// URL"),
        ("http:/h", "must be an http://, https:// or unix:// URL"),
        ("", "must be an http://, https:// or unix:// URL"),
        ("http://", "has no valid host name or IP address"),
        ("http://:80", "has no valid host name or IP address"),
        ("http://h:0", "has a port that is not a number from 1 to 65535"),
        ("http://h:65536", "has a port that is not a number from 1 to 65535"),
        ("http://h:x", "has a port that is not a number from 1 to 65535"),
        ("http://h:", "has a port that is not a number from 1 to 65535"),
        ("http://u:canary@h", "carries a user name or password"),
        ("http://h/?k=canary", "carries a query, which could hold a secret"),
        ("http://h/?", "carries a query, which could hold a secret"),
        ("http://h/#f", "carries a fragment"),
        ("http://h /", "contains a space, a line break or a character outside ASCII"),
        ("http://h\r\nX: y", "contains a space, a line break or a character outside ASCII"),
        ("http://é", "contains a space, a line break or a character outside ASCII"),
        ("http://[::1", "must be an http://, https:// or unix:// URL"),
        ("http://a..b", "has no valid host name or IP address"),
        ("http://" + "a" * 2048, "is longer than 2048 characters"),
        ("unix:run/e.sock", "needs an absolute socket path"),
        ("unix://", "needs an absolute socket path"),
        ("unix:/" + "a" * 107, "has a socket path of more than 107 bytes"),
    ],
)
def test_bad_backend_url(text, message):
    with pytest.raises(BadValue) as caught:
        BackendUrl.parse(text)
    assert caught.value.message == message
    assert "canary" not in caught.value.message + caught.value.hint


def test_http_endpoint_and_its_siblings():
    endpoint = HttpEndpoint.parse("http://H:8000/a/detokenize")
    assert (endpoint.host, endpoint.port, endpoint.target) == ("h", 8000, "/a/detokenize")
    assert str(endpoint.sibling("tokenize")) == "http://h:8000/a/tokenize"
    assert str(HttpEndpoint.parse("https://h").sibling("health")) == "https://h/health"
    assert str(HttpEndpoint.parse("https://h")) == "https://h/"
    assert HttpEndpoint.parse("https://h").tls


@pytest.mark.parametrize(
    ("text", "host", "port", "socket", "loopback", "printed"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, "", True, "127.0.0.1:8080"),
        ("0.0.0.0:0", "0.0.0.0", 0, "", False, "0.0.0.0:0"),
        ("[::1]:80", "::1", 80, "", True, "[::1]:80"),
        ("[::]:80", "::", 80, "", False, "[::]:80"),
        ("localhost:1", "localhost", 1, "", True, "localhost:1"),
        ("unix:/run/c.sock", "", 0, "/run/c.sock", True, "unix:/run/c.sock"),
        ("unix:///run/c.sock", "", 0, "/run/c.sock", True, "unix:/run/c.sock"),
    ],
)
def test_listen_address(text, host, port, socket, loopback, printed):
    address = ListenAddress.parse(text)
    assert (address.host, address.port, address.socket_path) == (host, port, socket)
    assert address.loopback is loopback
    assert str(address) == printed
    assert ListenAddress.parse(printed) == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8080", "must be HOST:PORT with a port from 0 to 65535"),
        ("h:", "must be HOST:PORT with a port from 0 to 65535"),
        ("h:70000", "must be HOST:PORT with a port from 0 to 65535"),
        ("h:-1", "must be HOST:PORT with a port from 0 to 65535"),
        ("h:²", "must be HOST:PORT with a port from 0 to 65535"),
        (":8080", "names no host"),
        ("::1:8080", "has an IPv6 address without brackets"),
        ("[::g]:8080", "has brackets around something that is no IPv6 address"),
        ("a b:1", "has no valid host name or IP address"),
    ],
)
def test_bad_listen_address(text, message):
    with pytest.raises(BadValue) as caught:
        ListenAddress.parse(text)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("text", "host", "port", "wildcard", "loopback", "printed"),
    [
        ("tcp://*:5557", "*", 5557, True, False, "tcp://*:5557"),
        ("tcp://0.0.0.0:5557", "0.0.0.0", 5557, True, False, "tcp://0.0.0.0:5557"),
        ("tcp://[::]:5557", "::", 5557, True, False, "tcp://[::]:5557"),
        ("tcp://127.0.0.1:5557", "127.0.0.1", 5557, False, True, "tcp://127.0.0.1:5557"),
        ("TCP://Engine-0:5557", "engine-0", 5557, False, False, "tcp://engine-0:5557"),
        ("ipc:///tmp/kv", "", 0, False, True, "ipc:///tmp/kv"),
    ],
)
def test_zmq_endpoint(text, host, port, wildcard, loopback, printed):
    endpoint = ZmqEndpoint.parse(text)
    assert (endpoint.host, endpoint.port) == (host, port)
    assert (endpoint.wildcard, endpoint.loopback) == (wildcard, loopback)
    assert str(endpoint) == printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10.0.0.1:5557", "must be a tcp:// or ipc:// endpoint"),
        ("http://h:1", "must be a tcp:// or ipc:// endpoint"),
        ("tcp://h", "must be a tcp:// or ipc:// endpoint"),
        ("ipc://", "must be a tcp:// or ipc:// endpoint"),
        ("tcp://h:0", "needs a port from 1 to 65535"),
        ("tcp://*:*", "needs a port from 1 to 65535"),
        ("tcp://:5557", "has no valid host name or IP address"),
        ("tcp://a/b:5557", "has no valid host name or IP address"),
    ],
)
def test_bad_zmq_endpoint(text, message):
    with pytest.raises(BadValue) as caught:
        ZmqEndpoint.parse(text)
    assert caught.value.message == message


def test_networks_hosts_and_loopback():
    assert str(parse_network("10.1.2.3/8")) == "10.0.0.0/8"
    assert str(parse_network("::1")) == "::1/128"
    with pytest.raises(BadValue, match="must be an IP address or a CIDR block"):
        parse_network("10.0.0.0/33")
    assert [is_host_name(n) for n in ("a.b", "a_b", "-a", "a..b", "", "a" * 300)] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert [is_loopback(h) for h in ("LocalHost.", "127.9.9.9", "::1", "10.0.0.1", "x")] == [
        True,
        True,
        True,
        False,
        False,
    ]
