import io
import json

import pytest
import yaml

from continuum_router import config_commands as commands
from continuum_router.config.root import load_config, parse_config

GOOD = """\
# what this is
x_key: &shared sk-canary-1
server: {drain_timeout: 1m}   # a comment
backends:
- name: a
  url: http://h:1
  api_key: ${A_KEY}
  headers: {X-A: 'sk canary 2', x-b: "${A_KEY:-sk-canary-3}", x-c: *shared}
- name: b
  url: http://h:2
  api_key: &mine sk-canary-4
- {name: c, url: 'http://h:3', api_key: *mine}
selection_strategy: PrefixAwareHash
"""
ENV = {"A_KEY": "env-canary"}


def _write(tmp_path, text, name="r.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_validate_a_good_file(tmp_path):
    path, out = _write(tmp_path, GOOD), io.StringIO()
    assert commands.validate(path, out, env=ENV) == 0
    assert out.getvalue().splitlines() == [
        f"{path}:13: warning: selection_strategy: PrefixAwareHash has no prefix keys to hash while "
        "prefix_routing is off; set prefix_routing.enabled: true",
        f"{path} is good: 0 errors, 1 warning",
    ]


def test_validate_a_bad_file(tmp_path):
    path, out = _write(tmp_path, "backends: []\nretry: {max_attempts: 0}\n"), io.StringIO()
    assert commands.validate(path, out, env={}) == 1
    assert out.getvalue().splitlines() == [
        f"{path}:1: backends: there is no backend; list at least one with name and url",
        f"{path}:2: retry.max_attempts: must be at least 1; default 3",
        f"{path} cannot be used: 2 errors, 0 warnings",
    ]


def test_validate_no_file(tmp_path):
    path, out = str(tmp_path / "none.yaml"), io.StringIO()
    assert commands.validate(path, out, env={}) == 1
    assert out.getvalue().splitlines()[0] == (
        f"{path}:1: the file cannot be read: no such file or directory"
    )


def test_show_prints_the_file_with_secrets_masked(tmp_path):
    out = io.StringIO()
    assert commands.show(_write(tmp_path, GOOD), out, env=ENV) == 0
    assert out.getvalue() == (
        GOOD.replace("sk-canary-1", '"***"')
        .replace("'sk canary 2'", '"***"')
        .replace('"${A_KEY:-sk-canary-3}"', '"***"')
        .replace("sk-canary-4", '"***"')
    )


def test_show_resolved_has_everything_in_force(tmp_path):
    path, out = _write(tmp_path, GOOD), io.StringIO()
    assert commands.show(path, out, env=ENV, resolved=True) == 0
    assert "canary" not in out.getvalue()
    shown = yaml.safe_load(out.getvalue())
    assert shown["server"]["drain_timeout"] == "60s"
    assert shown["server"]["max_body_bytes"] == "64MiB"
    assert shown["backends"][0]["api_key"] == "***"
    assert shown["backends"][0]["headers"] == {"X-A": "***", "x-b": "***", "x-c": "***"}
    assert shown["logging"]["level"] == "info"


def test_what_show_resolved_prints_loads_to_the_same(tmp_path):
    text = "backends: [{name: a, url: 'http://h'}]\nretry: {initial_delay: 35ms, max_attempts: 2}\n"
    path, out = _write(tmp_path, text), io.StringIO()
    commands.show(path, out, env={}, resolved=True)
    again, report = parse_config(out.getvalue(), path="again", env={})
    assert report.lines() == []
    assert again == load_config(path, {})[0]


@pytest.mark.parametrize("resolved", [False, True])
def test_show_a_bad_file_shows_what_is_wrong(tmp_path, resolved):
    path, out = _write(tmp_path, "api_key: sk-canary\n"), io.StringIO()
    assert commands.show(path, out, env={}, resolved=resolved) == 1
    assert f"{path}:1: api_key: is not a known key" in out.getvalue()
    assert "canary" not in out.getvalue()


def test_diff(tmp_path):
    old = _write(tmp_path, GOOD, "old.yaml")
    new = _write(tmp_path, GOOD.replace("1m", "2m").replace("h:2", "h:4"), "new.yaml")
    out = io.StringIO()
    assert commands.diff(old, new, out, env=ENV) == 0
    assert out.getvalue().splitlines() == [
        "~ server.drain_timeout: 60s -> 120s (needs a restart)",
        "~ backends.b.url: http://h:2 -> http://h:4 (applied by a reload)",
        "2 changes",
    ]
    out = io.StringIO()
    assert commands.diff(old, old, out, env=ENV) == 0
    assert out.getvalue() == "no difference\n"


def test_diff_names_the_problems_of_both_files(tmp_path):
    first = _write(tmp_path, "a: 1", "first.yaml")
    second = _write(tmp_path, "b: 1", "second.yaml")
    out = io.StringIO()
    assert commands.diff(first, second, out, env={}) == 1
    assert f"{first}:1: a: is not a known key" in out.getvalue()
    assert f"{second}:1: b: is not a known key" in out.getvalue()


def test_schema_is_json_schema():
    out = io.StringIO()
    assert commands.schema(out) == 0
    schema = json.loads(out.getvalue())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert schema["patternProperties"] == {"^x_": {}}
    assert schema["$defs"]["ServerConfig"]["properties"]["drain_timeout"]["default"] == "30s"
    assert schema["$defs"]["BackendConfig"]["required"] == ["name", "url"]


def test_init_prints_a_good_file():
    out = io.StringIO()
    assert commands.init(out) == 0
    config, report = parse_config(out.getvalue(), path="f", env={})
    assert config is not None
    assert report.lines() == []


def test_init_writes_a_file_but_never_over_one(tmp_path):
    path, out = str(tmp_path / "new.yaml"), io.StringIO()
    assert commands.init(out, path) == 0
    assert load_config(path, {})[1].lines() == []
    assert commands.init(out, path) == 1
    assert out.getvalue().splitlines() == [
        f"{path} written; check it with: continuum-router config validate --config {path}",
        f"{path}: the file cannot be written: file exists",
    ]
