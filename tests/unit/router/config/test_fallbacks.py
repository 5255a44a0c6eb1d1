"""The `fallbacks` section: what it takes and what it refuses (J11)."""

import pytest

from support.config_files import good_router, router_lines

LISTED = "backends: [{name: a, url: 'http://h:1', models: [m, n]}]\n"
OPEN = "backends: [{name: a, url: 'http://h:1'}]\n"


def test_chains() -> None:
    assert good_router("").fallbacks == {}
    assert good_router("fallbacks:").fallbacks == {}
    assert good_router("fallbacks: {m: [n, o], 'x/y.1': [n]}").fallbacks == {
        "m": ("n", "o"),
        "x/y.1": ("n",),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LISTED + "fallbacks: {m: [n]}", []),
        (OPEN + "fallbacks: {m: [anything]}", []),
        (
            LISTED + "fallbacks: {m: [z]}",
            ["2: warning: fallbacks.m[0]: no backend lists this model; it will be passed over"],
        ),
        (
            OPEN + "fallbacks: {m: [n, m]}",
            ["2: fallbacks.m[1]: is the model itself; name other models, each once"],
        ),
        (
            OPEN + "fallbacks: {m: [n, n]}",
            ["2: fallbacks.m[1]: is listed twice; name other models, each once"],
        ),
        (
            OPEN + "fallbacks: {m: []}",
            ["2: fallbacks.m: names no model; list at least one, or remove the line"],
        ),
        (
            OPEN + "fallbacks: {m: [a, b, c, d, e, f, g, h, i]}",
            ["2: fallbacks.m: names more than 8 models; shorten it"],
        ),
    ],
)
def test_rules(text: str, said: list[str]) -> None:
    assert router_lines(text) == [f"r.yaml:{line}" for line in said]
