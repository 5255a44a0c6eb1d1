"""The supervisor: crashes are counted and restarted, stopping goes newest first."""

import asyncio

from continuum_shared.backoff import Backoff
from continuum_shared.tasks import Supervisor


def quick():
    return Backoff(0.001, 0.001, jitter=False)


async def test_a_crash_is_counted_and_restarted():
    crashed = []
    supervisor = Supervisor("t", crashed.append)
    runs = 0

    async def work():
        nonlocal runs
        runs += 1
        if runs < 3:
            raise RuntimeError("secret text")

    await supervisor.supervise("w", work, quick())
    assert runs == 3
    assert crashed == ["w", "w"]
    assert supervisor.crashes == 2
    assert supervisor.names() == []


async def test_spawn_keeps_the_result_and_logs_a_crash_without_its_text(caplog):
    supervisor = Supervisor("t")

    async def good():
        return 3

    async def bad():
        raise ValueError("secret text")

    assert await supervisor.spawn("good", good()) == 3
    task = supervisor.spawn("bad", bad())
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert supervisor.crashes == 1
    [record] = caplog.records
    assert record.fields["error"] == "ValueError"
    assert record.fields["at"].startswith("test_tasks.py:")
    assert "secret" not in caplog.text


async def test_stop_ends_newest_first_and_waits():
    supervisor = Supervisor("t")
    ended = []

    async def hold(name):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    for name in ("a", "b", "c"):
        supervisor.spawn(name, hold(name))
    await asyncio.sleep(0)
    await supervisor.stop()
    assert ended == ["c", "b", "a"]
    assert supervisor.names() == []


async def test_two_tasks_of_one_name_are_both_kept():
    supervisor = Supervisor("t")
    gate = asyncio.Event()

    async def wait():
        await gate.wait()

    supervisor.spawn("x", wait())
    supervisor.spawn("x", wait())
    assert len(supervisor.names()) == 2
    await supervisor.stop()


async def test_cancel_one_leaves_the_others():
    supervisor = Supervisor("t")
    gate = asyncio.Event()

    async def wait():
        await gate.wait()

    supervisor.spawn("x", wait())
    supervisor.spawn("y", wait())
    await asyncio.sleep(0)
    await supervisor.cancel("x")
    await supervisor.cancel("unknown")
    assert supervisor.names() == ["y"]
    await supervisor.stop()
