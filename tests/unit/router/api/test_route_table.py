"""Which targets are refused before any match, and which entry the others fall under."""

import pytest

from continuum_router.api.route_table import RouteTable, plain_path
from continuum_router.errors import BadRequest

AMBIGUOUS = [
    "/v1/../sleep",
    "/v1/audio/..",
    "/./v1/models",
    "/v1/.",
    "/v1/%2e%2e/sleep",
    "/v1/.%2E/sleep",
    "/v1/%2e/x",
    "/v1/..;a=b/sleep",
    "/v1%2Fchat/completions",
    "/v1%2fmodels",
    "/v1/%5c..%5csleep",
    "/v1\\models",
    "//v1/models",
    "/v1//models",
    "/v1/models//",
    "//",
    "/v1/%252e%252e/sleep",
    "/v1/models%00",
    "/v1/models%0d%0a",
    "http://host//v1/models",
    "http://host/v1/../sleep",
]


@pytest.mark.parametrize("target", AMBIGUOUS)
def test_two_readings_are_refused(target: str) -> None:
    with pytest.raises(BadRequest) as caught:
        plain_path(target)
    assert caught.value.code == "ambiguous_path"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models?a=//../b#c", "/v1/models"),
        ("/v1/models#/../", "/v1/models"),
        ("http://host:80/v1/models?x", "/v1/models"),
        ("http://host", "/"),
        ("/v1/.well-known", "/v1/.well-known"),
        ("/v1/a..b", "/v1/a..b"),
        ("/v1/...", "/v1/..."),
        ("/", "/"),
        ("*", "*"),
    ],
)
def test_the_path_as_it_was_sent(target: str, path: str) -> None:
    assert plain_path(target) == path


TABLE = RouteTable(
    exact={"/v1/models": {"GET": 1}},
    below={"/v1/audio/": {"POST": 2}, "/v1/audio/x/": {"POST": 3}, "/free/": {"GET": 4}},
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/v1/models", ("/v1/models", {"GET": 1})),
        ("/v1/models/", None),
        ("/V1/models", None),
        ("/v1/%6dodels", None),
        ("/v1/audio/speech", ("/v1/audio/*", {"POST": 2})),
        ("/v1/audio/x/y", ("/v1/audio/x/*", {"POST": 3})),
        ("/v1/audio/", None),
        ("/v1/audio", None),
        ("/v1/audio/%73peech", None),
        ("/v1/audio/" + "x" * 257, None),
        ("/free/sleep", ("/free/*", {"GET": 4})),
        ("/sleep", None),
    ],
)
def test_entries(path: str, found: object) -> None:
    assert TABLE.find(path) == found


def test_a_wide_entry_does_not_open_management() -> None:
    table = RouteTable(exact={}, below={"/v1/": {"POST": 1}})
    assert table.find("/v1/files") is not None
    assert table.find("/v1/load_lora_adapter") is None
    assert table.find("/v1/Sleep/") is None
