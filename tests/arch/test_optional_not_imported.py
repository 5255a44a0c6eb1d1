"""A command loads only what it needs: optional parts stay out of the core path."""

import subprocess
import sys

import pytest

LOADED = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sorted(sys.modules))"


def loaded_by(module):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, module], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        # The router never speaks ZMQ; its simulated engine does, and is loaded by its command only.
        ("continuum_router.main", {"zmq", "msgpack", "redis", "h2", "continuum_router.demo"}),
        ("continuum_router.cli", {"zmq", "msgpack", "continuum_router.demo", "aiohttp"}),
        ("continuum_router.config_commands", {"aiohttp", "uvloop", "zmq", "asyncio"}),
        ("continuum_kv_listener.main", {"continuum_router", "redis", "h2", "tokenizers"}),
        ("continuum_shared.config.report", {"aiohttp", "zmq", "asyncio"}),
    ],
)
def test_not_loaded(module, banned):
    assert loaded_by(module) & banned == set()
