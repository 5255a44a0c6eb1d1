"""Child processes of the demo: readiness, their end, and that none outlives the demo."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from continuum_router.demo.child_process import ChildFailed, free_ports, running

STAYS = "import time, sys; print('hello', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True)"
DIES = "import sys; print('one', file=sys.stderr); print('two', file=sys.stderr); sys.exit(3)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_first_line_is_awaited_and_the_end_is_clean(tmp_path: Path) -> None:
    async with running("a", python(STAYS), logs=tmp_path) as child:
        assert await child.first_line(20) == "hello"
        child.check()
        assert alive(child.pid)
    assert not alive(child.pid)


async def test_a_failed_body_ends_the_child_too(tmp_path: Path) -> None:
    pids = []

    async def fail() -> None:
        async with running("a", python(STAYS), logs=tmp_path) as child:
            await child.first_line(20)
            pids.append(child.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert [alive(pid) for pid in pids] == [False]


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = f"{STUBBORN}; time.sleep(60)"
    async with running("a", python(code), logs=tmp_path) as child:
        await child.first_line(20)
        await child.stop(grace=0.2)
        assert await child.ended(5) == -signal.SIGKILL


async def test_a_child_that_ends_by_itself_is_told_with_its_log(tmp_path: Path) -> None:
    async with running("a", python(DIES), logs=tmp_path) as child:
        with pytest.raises(ChildFailed) as failed:
            await child.first_line(20)
        with pytest.raises(ChildFailed):
            child.check()
    assert str(failed.value) == "a ended with status 3\n    one\n    two"


async def test_a_child_that_never_gets_ready(tmp_path: Path) -> None:
    async def never() -> bool | None:
        return None

    async with running("a", python(STAYS), logs=tmp_path) as child:
        await child.first_line(20)
        with pytest.raises(ChildFailed, match=r"a was not ready in 0 s\n    hello"):
            await child.wait_for(never, 0.1)


async def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-command"):
        async with running("a", ["no-such-command"], logs=tmp_path):
            pass


async def test_a_killed_parent_takes_its_children_along(tmp_path: Path) -> None:
    code = f"""
import asyncio, pathlib
from continuum_router.demo.child_process import running
async def main():
    async with running("inner", {python(STAYS)!r}, logs=pathlib.Path({str(tmp_path)!r})) as child:
        await child.first_line(20)
        print(child.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    async with running("outer", python(code), logs=tmp_path) as outer:
        inner = int(await outer.first_line(20))
        assert alive(inner)
        outer.signal(signal.SIGKILL)
        async with asyncio.timeout(5):
            while alive(inner) and _state(inner) != "Z":
                await asyncio.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_free_ports_are_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
