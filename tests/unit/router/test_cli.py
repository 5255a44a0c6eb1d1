"""Words in, exit codes out (decisions J1)."""

import json
from pathlib import Path

import pytest

from continuum_router.cli import main
from continuum_shared.version import __version__


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["bogus"],
        ["serve"],
        ["serve", "--config", "a", "--backend", "b"],
        ["serve", "--nope"],
        ["config"],
        ["config", "validate"],
        ["config", "diff", "one"],
    ],
)
def test_usage_errors_are_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert "usage: continuum-router" in capsys.readouterr().err


def test_an_unknown_command_says_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mcp-serve"])
    text = capsys.readouterr().err
    for command in ("serve", "config", "demo", "engine-sim"):
        assert f"'{command}'" in text or f" {command}" in text


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["config", "--help"]])
def test_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    assert "example" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"continuum-router {__version__}\n"


@pytest.mark.parametrize("words", [["serve"], ["config", "validate"], ["config", "show"]])
def test_a_bad_file_is_a_report_and_1(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "r.yaml"
    bad.write_text("backend: []\nretry: {max_attempts: 0}\n")
    assert main([*words, "--config", str(bad)]) == 1
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert f"{bad}:1: " in text
    assert f"{bad}:2: retry.max_attempts: " in text
    assert "Traceback" not in text


def test_a_missing_file_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml" in capsys.readouterr().err


def test_a_bad_backend_url_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--backend", "ftp://x"]) == 1
    assert "--backend" in capsys.readouterr().err


def test_a_bad_listen_address_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--backend", "http://h:1", "--listen", "nowhere"]) == 2
    assert "--listen" in capsys.readouterr().err


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "object"


def test_init_validate_show_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "r.yaml")
    assert main(["config", "init", "--config", path]) == 0
    assert main(["config", "validate", "--config", path]) == 0
    assert main(["config", "show", "--resolved", "--config", path]) == 0
    assert main(["config", "diff", path, path]) == 0
    assert "no difference" in capsys.readouterr().out
