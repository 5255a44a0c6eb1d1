"""docs/configuration.md is what the models say (`make docs` writes it)."""

import importlib.util

from continuum_kv_listener.config import ListenerConfig, SourceConfig
from continuum_router.config.backends import BackendConfig
from continuum_router.config.root import Config
from support.source_tree import ROOT


def _generator():
    path = ROOT / "scripts" / "generate_config_docs.py"
    spec = importlib.util.spec_from_file_location("generate_config_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh():
    assert _generator().main(["--check"]) == 0


def test_every_key_has_a_row_and_a_meaning():
    text = _generator().render()
    for model in (BackendConfig, SourceConfig):
        for name in model.model_fields:
            assert f"| `{name}` | " in text or f"### `backends[].{name}`" in text
    assert "| None |\n" not in text
    for section in (*Config.model_fields, *ListenerConfig.model_fields):
        assert f"`{section}`" in text or f"`{section}[]`" in text
