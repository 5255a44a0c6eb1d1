"""Configuration: good trees round-trip; a spoiled key is reported where it stands."""

import json
from collections.abc import Iterator

import yaml
from hypothesis import given
from hypothesis import strategies as st

from continuum_kv_listener import config as listener
from continuum_router.config import root as router
from continuum_shared.config.report import Path, dotted
from support.source_tree import ROOT

FILES = {
    router: yaml.safe_load((ROOT / "deploy/config.router.yaml.example").read_text("utf-8")),
    listener: yaml.safe_load((ROOT / "config.kv-listener.yaml.example").read_text("utf-8")),
}


FREE_NAMES = {"headers", "model_overrides", "fallbacks", "aliases"}
"""Sections whose keys are names that the user gives."""


def _keys(data: object, path: Path = ()) -> Iterator[Path]:
    """Every key of a section; free names are left out, the sections below them are not."""
    if isinstance(data, dict):
        for key, value in data.items():
            if not path or path[-1] not in FREE_NAMES:
                yield (*path, key)
            yield from _keys(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _keys(value, (*path, index))


KEYS = [(module, path) for module, data in FILES.items() for path in _keys(data)]


def _spoiled(module, path, change):
    data = json.loads(json.dumps(FILES[module]))
    parent = data
    for part in path[:-1]:
        parent = parent[part]
    change(parent, path[-1])
    config, report = module.parse_config(json.dumps(data, indent=1), path="f", env={})
    assert config is None
    return report


@given(st.sampled_from(KEYS))
def test_a_misspelt_key_is_reported_with_its_right_name(case):
    module, path = case
    wrong = path[-1] + "z"
    report = _spoiled(module, path, lambda parent, key: parent.update({wrong: parent.pop(key)}))
    found = [p for p in report.errors if p.path == dotted((*path[:-1], wrong))]
    assert [p.hint for p in found] == [f'did you mean "{path[-1]}"?']
    assert found[0].line > 1


@given(st.sampled_from(KEYS), st.sampled_from([{"zz": 1}, [[{"zz": 1}]]]))
def test_a_value_of_the_wrong_shape_is_reported_at_its_key(case, value):
    module, path = case
    report = _spoiled(module, path, lambda parent, key: parent.update({key: value}))
    where = dotted(path)
    assert [p for p in report.errors if p.path.startswith(where)]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "server": st.fixed_dictionaries(
                {"max_body_bytes": st.integers(1024, 4 << 30), "fast_path": st.booleans()}
            ),
            "prefix_routing": st.fixed_dictionaries(
                {
                    "load_factor_epsilon": st.floats(0.01, 10),
                    "virtual_nodes": st.integers(1, 10_000),
                }
            ),
            "retry": st.fixed_dictionaries(
                {
                    "initial_delay": st.integers(0, 30_000).map(lambda ms: f"{ms}ms"),
                    "retryable_status_codes": st.lists(st.integers(400, 599), unique=True),
                }
            ),
        },
    )
)
def test_a_good_tree_survives_being_printed(tree):
    tree["backends"] = [{"name": "a", "url": "http://h:1/v1"}]
    first, report = router.parse_config(json.dumps(tree), path="f", env={})
    assert first is not None, str(report)
    again, _ = router.parse_config(
        yaml.safe_dump(
            first.model_dump(mode="json", exclude={"backends": {"__all__": {"api_key"}}})
        ),
        path="f",
        env={},
    )
    assert again == first
