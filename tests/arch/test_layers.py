"""The import directions of docs/architecture.md, checked by import-linter's contracts."""

import re
import subprocess
import sys

from support.source_tree import ROOT, module_files

# In a process of its own: the tool sets up logging for the whole process it runs in.
LINT = "import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True))"


def test_contracts_hold():
    done = subprocess.run(
        [sys.executable, "-c", LINT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_only_the_supervisor_starts_tasks():
    starts = re.compile(r"\.create_task\(|ensure_future\(|asyncio\.run_coroutine_threadsafe\(")
    found = [name for name, path in module_files().items() if starts.search(path.read_text())]
    assert found == ["continuum_shared.tasks"]


def test_no_default_registry_and_no_module_state():
    bad = re.compile(
        r"^(global |[a-z_]+ *(: *[^=]+)?= *(\{\}|\[\]|set\(\)|dict\(\)|list\(\))$)", re.M
    )
    assert [n for n, path in module_files().items() if bad.search(path.read_text())] == []
