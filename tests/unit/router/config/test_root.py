"""The table of bad files, each with the exact lines that it gets, and the two examples."""

import pytest
import yaml

from continuum_router.config.root import config_from_backends, load_config
from continuum_shared.config.kinds import SectionModel
from continuum_shared.config.model_walk import section_at
from continuum_shared.config.report import ConfigError
from support.config_files import bad_files, good_router, router_lines
from support.source_tree import ROOT

OK = "backends: [{name: a, url: 'http://h:1'}]\n"
BAD = bad_files("router")


def test_the_table_is_there():
    assert len(BAD) == 49


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_what_each_bad_file_is_told(text, said):
    assert router_lines(text) == [f"r.yaml:{line}" for line in said]


def test_every_problem_of_a_file_at_once():
    text = "".join(
        [
            "server: {listen: '8080', drain_timeout: 30}\n",
            "backends:\n",
            "- {name: a, url: 'ftp://h'}\n",
            "- {name: a, url: 'http://h', wieght: 2}\n",
            "- {url: '${UNSET}', api_key: '${KEY}'}\n",
            "selection_strategy: PrefixAwareHash\n",
            "kv_cache_index:\n",
            "  scoring: {overlap_weight: 0.9}\n",
            "  event_sources: [{backend_name: a}]\n",
            "timeouts: {request: {standard: {total: 1h, first_byte: 1m}}}\n",
        ]
    )
    lines = router_lines(text, {"KEY": "canary"})
    assert [line.split(": ", 1)[0] for line in lines] == [
        f"r.yaml:{number}" for number in (1, 1, 3, 4, 4, 5, 5, 6, 8, 9, 10, 10)
    ]
    paths = [line.removeprefix("r.yaml:").split(": ")[1:3] for line in lines]
    assert [p[1] if p[0] == "warning" else p[0] for p in paths] == [
        "server.drain_timeout",
        "server.listen",
        "backends[0].url",
        "backends[1].name",
        "backends[1].wieght",
        "backends[2].name",
        "backends[2].url",
        "selection_strategy",
        "kv_cache_index.scoring",
        "kv_cache_index.event_sources[0].endpoint",
        "timeouts.request.standard.first_byte",
        "timeouts.request.standard.total",
    ]
    assert "canary" not in "\n".join(lines)


def test_canaries_in_every_key_are_never_repeated():
    """A secret in the wrong place must not reach a terminal (user report O6)."""
    canary = "sk-canary-1234"
    data = yaml.safe_load((ROOT / "deploy/config.router.yaml.example").read_text())

    def spoil(value: object) -> object:
        if isinstance(value, dict):
            return {key: spoil(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [spoil(inner) for inner in value]
        return canary

    lines = router_lines(yaml.safe_dump(spoil(data)))
    assert len(lines) > 40
    assert not any(canary in line for line in lines)
    from_env = router_lines(yaml.safe_dump(spoil(data)).replace(canary, "${K}"), {"K": "canary"})
    assert not any("canary" in line for line in from_env)


def test_the_router_example_is_good_and_complete():
    config, report = load_config(str(ROOT / "deploy/config.router.yaml.example"), {})
    assert report.lines() == []
    assert len(config.backends) == 2
    data = yaml.safe_load((ROOT / "deploy/config.router.yaml.example").read_text())
    data["timeouts"]["request"]["standard"]["first_byte"] = "30s"  # deprecated: not shown
    data["timeouts"]["request"]["image_generation"]["first_byte"] = "60s"  # deprecated too
    data["backends"][0]["health_check"]["body"] = None  # only with POST
    data["timeouts"]["health_check"] = {"interval": "30s", "timeout": "10s"}  # deprecated too
    assert _missing(type(config), data) == []


def _missing(model: type[SectionModel], data: dict, path: tuple[str, ...] = ()) -> list[str]:
    """Keys of the models that an example does not show; of lists the first item counts."""
    found = []
    for name in model.model_fields:
        if name not in data:
            found.append(".".join((*path, name)))
            continue
        value = data[name][0] if isinstance(data[name], list) and data[name] else data[name]
        inner = section_at(model, (name,)) or section_at(model, (name, 0))
        if inner is not None and isinstance(value, dict):
            found.extend(_missing(inner, value, (*path, name)))
    return found


def test_a_file_with_warnings_loads(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(OK + "selection_strategy: PrefixAwareHash\n")
    config, report = load_config(str(path), {})
    assert config.selection_strategy == "prefix_aware_hash"
    assert report.lines() == [
        f"{path}:2: warning: selection_strategy: PrefixAwareHash has no prefix keys to hash while "
        "prefix_routing is off; set prefix_routing.enabled: true"
    ]


def test_a_bad_file_raises_with_everything(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("a: 1\nb: 2\n")
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), {})
    assert len(caught.value.report.errors) == 3


def test_numbers_may_come_from_the_environment():
    config = good_router(
        "retry: {max_attempts: '${N}'}\nserver: {drain_timeout: '${D}', fast_path: '${F}'}",
        {"N": "5", "D": "2s", "F": "false"},
    )
    assert config.retry.max_attempts == 5
    assert config.server.drain_timeout == 2.0
    assert config.server.fast_path is False


def test_backends_of_the_command_line():
    config = config_from_backends(["http://h:8000/v1", "https://e.example"])
    assert [(b.name, str(b.url), b.type) for b in config.backends] == [
        ("backend-1", "http://h:8000", "generic"),
        ("backend-2", "https://e.example", "generic"),
    ]
    assert config.server.listen.port == 8080


@pytest.mark.parametrize("url", ["", "h:1", "http://h'x", "${HOME}", "http://u:canary@h"])
def test_bad_backends_of_the_command_line(url):
    with pytest.raises(ConfigError) as caught:
        config_from_backends(["http://h", url])
    assert "canary" not in str(caught.value)
    assert "--backend" in str(caught.value)


def test_no_backend_on_the_command_line():
    with pytest.raises(ConfigError, match="there is no backend"):
        config_from_backends([])
