"""The demo as a person runs it: a process that starts five others and leaves none behind."""

import asyncio
import io
import json
import signal
import sys
from pathlib import Path

import pytest

from continuum_router.demo import fleet
from continuum_router.demo.child_process import running

DEMO = [sys.executable, "-m", "continuum_router.cli", "demo"]


def processes_with(mark: str) -> list[int]:
    """Process ids whose environment has `mark` in it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environ = (folder / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in environ:
                found.append(int(folder.name))
    return found


async def test_kv_aware_routing_wins_and_the_demo_ends_by_itself(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    argv = [*DEMO, "--once", "--json", "--seed", "1"]
    async with running("demo", argv, logs=tmp_path, env=env) as child:
        status = await child.ended(55)
    assert status == 0, (tmp_path / "demo.err").read_text()
    (line,) = (tmp_path / "demo.out").read_text().splitlines()
    told = json.loads(line)
    plain, aware = told["round_robin"], told["kv_aware"]
    assert told["seed"] == 1
    assert "decisions" not in plain
    assert plain["requests"] == aware["requests"] == sum(aware["decisions"].values())
    assert aware["hit_ratio"] >= plain["hit_ratio"] + 0.15
    assert aware["ttft_p50_ms"] < plain["ttft_p50_ms"]
    assert aware["decisions"]["kv_aware"] > aware["decisions"]["fallback"] > 0
    assert set(plain["by_backend"]) == set(aware["by_backend"]) == set(fleet.ENGINES)
    assert processes_with(f"TMPDIR={tmp_path}\0") == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stopped_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    env = {"TMPDIR": str(tmp_path)}
    mark = f"TMPDIR={tmp_path}\0"

    async def playing() -> bool | None:
        return True if "/" in (tmp_path / "demo.err").read_text() else None

    async with running("demo", [*DEMO, "--once"], logs=tmp_path, env=env) as child:
        await child.wait_for(playing, 50)
        assert len(processes_with(mark)) == 4
        child.signal(number)
        assert await child.ended(10) == 130
    assert processes_with(mark) == []
    assert (tmp_path / "demo.out").read_text() == ""
    assert (tmp_path / "demo.err").read_text().endswith("demo: stopped\n")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


async def test_on_a_terminal_it_stays_up_and_shows_what_to_try(tmp_path: Path) -> None:
    """Played short, in this process: what `stay` adds is the invitation and the wait."""
    out = io.StringIO()
    folder = tmp_path / "work"
    folder.mkdir()
    shown = asyncio.Event()

    class Watched(fleet.Progress):
        def say(self, text: str) -> None:
            super().say(text)
            if "curl -i http://127.0.0.1:" in text:
                shown.set()

    async with asyncio.TaskGroup() as tasks:
        staying = tasks.create_task(
            fleet.demo(
                folder,
                fleet.Plan(seed=1, json_out=False, stay=True, shape=fleet.SHORT),
                Watched(out),
            )
        )
        async with asyncio.timeout(50):
            await shown.wait()
        assert not staying.done()
        staying.cancel()
    assert "curl" in out.getvalue()


def test_progress_on_a_terminal_rewrites_one_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    progress = fleet.Progress(out)
    progress.turn("round robin", 1, 4, 0.25)
    progress.say("done")
    assert out.getvalue() == (
        "\r\x1b[Kround robin  [#######.......................]   1/4  hit ratio 25.0%\r\x1b[Kdone\n"
    )


def test_progress_elsewhere_says_little() -> None:
    out = io.StringIO()
    progress = fleet.Progress(out)
    for done in range(1, 101):
        progress.turn("x", done, 100, 0.5)
    assert len(out.getvalue().splitlines()) == 4


@pytest.mark.parametrize("argv", [["--seed", "x"], ["--nope"]])
def test_wrong_usage_is_two(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fleet.main(argv)
    assert ended.value.code == 2
