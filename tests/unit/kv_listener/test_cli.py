"""The command's words and exit codes (J1)."""

import subprocess
import sys

import pytest

from continuum_kv_listener.cli import main

BAD = """
sources:
  - backend_name: "a b"
    zmq_endpoint: tcp://127.0.0.1:5557
    modle: m
"""


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "continuum-kv-listener --config config.kv-listener.yaml --check" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("words", [[], ["--nonsense"], ["--config"]])
def test_wrong_usage_is_two(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--check"]])
def test_a_bad_file_is_a_report_and_one(tmp_path, capsys, more):
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    assert main(["--config", str(path), *more]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert all(line.startswith(f"{path}:") for line in lines)
    assert any(f"{path}:5: sources[0].modle" in line for line in lines)
    assert "Traceback" not in shown.err


def test_a_missing_file_is_a_report_and_one(tmp_path, capsys):
    assert main(["--config", str(tmp_path / "none.yaml")]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("continuum-kv-listener ")


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "continuum_kv_listener.cli", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("continuum-kv-listener ")
    assert done.stderr == ""
