"""Short ways from the text of a configuration file to what is said about it."""

from collections.abc import Mapping
from textwrap import dedent

from continuum_kv_listener import config as listener
from continuum_router.config import root as router
from continuum_router.config.root import Config
from support.source_tree import ROOT

ROUTER_BASE = "backends: [{name: a, url: 'http://h:1'}, {name: b, url: 'http://h:2'}]\n"


def router_lines(text: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Every line of the report about a router's file named r.yaml."""
    _, report = router.parse_config(dedent(text), path="r.yaml", env=env or {})
    return report.lines()


def listener_lines(text: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Every line of the report about a listener's file named l.yaml."""
    _, report = listener.parse_config(dedent(text), path="l.yaml", env=env or {})
    return report.lines()


def good_router(text: str, env: Mapping[str, str] | None = None) -> Config:
    """The configuration of a file that must be good; two backends are added when it has none."""
    whole = dedent(text) if "backends:" in text else ROUTER_BASE + dedent(text)
    config, report = router.parse_config(whole, path="r.yaml", env=env or {})
    assert config is not None, str(report)
    return config


def good_listener(text: str) -> listener.ListenerConfig:
    config, report = listener.parse_config(dedent(text), path="l.yaml", env={})
    assert config is not None, str(report)
    return config


def bad_files(name: str) -> dict[str, tuple[str, list[str]]]:
    """The cases of tests/fixtures/config/bad_NAME.txt: name → (file, expected lines)."""
    text = (ROOT / "tests" / "fixtures" / "config" / f"bad_{name}.txt").read_text("utf-8")
    cases: dict[str, tuple[str, list[str]]] = {}
    for block in text.split("### ")[1:]:
        title, _, rest = block.partition("\n")
        file, _, said = rest.partition(">>>\n")
        assert title not in cases
        cases[title] = (file, said.splitlines())
    return cases
