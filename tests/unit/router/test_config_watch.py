"""The watch of the file: by content, after two looks that agree."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from continuum_router.config_watch import ConfigWatch, digest_of


class Rig:
    """A watch that looks when the test says so."""

    def __init__(self, path: Path) -> None:
        self.calls = 0
        self.waiting = asyncio.Event()
        self._go = asyncio.Event()
        self.watch = ConfigWatch(path, digest_of(path), self._changed, sleep=self._sleep)

    async def _changed(self) -> None:
        self.calls += 1

    async def _sleep(self, _seconds: float) -> None:
        self.waiting.set()
        await self._go.wait()
        self._go.clear()

    async def look(self) -> int:
        """One more look; how often a change was told up to then."""
        await self.waiting.wait()
        self.waiting.clear()
        self._go.set()
        await self.waiting.wait()
        return self.calls


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Callable[[str], Rig]]:
    tasks = []

    def make(name: str) -> Rig:
        made = Rig(tmp_path / name)
        tasks.append(asyncio.get_running_loop().create_task(made.watch.run()))
        return made

    yield make
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_new_content_counts_once_when_it_was_seen_twice(tmp_path: Path, rig) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("a")
    made = rig("r.yaml")
    assert [await made.look(), await made.look()] == [0, 0]
    file.write_text("b")
    assert [await made.look(), await made.look(), await made.look()] == [0, 1, 1]


async def test_a_file_that_is_being_written_is_not_taken_half_way(tmp_path: Path, rig) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("a")
    made = rig("r.yaml")
    await made.look()
    for text in ("b", "bc", "bcd"):
        file.write_text(text)
        assert await made.look() == 0
    assert await made.look() == 1


async def test_a_touched_file_or_one_that_comes_back_is_no_change(tmp_path: Path, rig) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("a")
    made = rig("r.yaml")
    await made.look()
    os.utime(file, (1, 1))
    await made.look()
    file.unlink()
    await made.look()
    await made.look()
    file.write_text("a")
    assert [await made.look(), await made.look()] == [0, 0]


async def test_the_swap_of_a_symbolic_link_is_one(tmp_path: Path, rig) -> None:
    """As Kubernetes mounts a ConfigMap: the file is a link into a directory that is swapped."""
    for name, text in (("v1", "a"), ("v2", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "r.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "r.yaml").symlink_to("..data/r.yaml")
    made = rig("r.yaml")
    await made.look()
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").replace(tmp_path / "..data")
    assert [await made.look(), await made.look()] == [0, 1]
