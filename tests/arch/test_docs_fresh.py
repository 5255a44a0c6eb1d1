"""The generated pages of docs/ are what the code says now."""

import subprocess
import sys

import pytest

from support.source_tree import ROOT


@pytest.mark.parametrize(
    "script", ["generate_config_docs.py", "generate_metrics_docs.py", "generate_man_pages.py"]
)
def test_page_is_fresh(script):
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
