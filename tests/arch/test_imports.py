"""Each module imports alone in a fresh interpreter, warnings as errors; no cycles, no order."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.source_tree import module_files

IMPORT = "import importlib, sys; importlib.import_module(sys.argv[1])"


@pytest.mark.timeout(300)
def test_every_module_imports_alone():
    """Some hundred interpreters are started: slow machines may take their time."""

    def run(name):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", IMPORT, name],
            capture_output=True,
            text=True,
            check=False,
        )
        return None if done.returncode == 0 else (name, done.stderr.strip().splitlines()[-1:])

    with ThreadPoolExecutor(2) as pool:
        failed = [f for f in pool.map(run, module_files()) if f]
    assert failed == []
