"""What all calls of the fast path share."""

import gc
from dataclasses import replace

from continuum_router.api.fast_context import SnapshotMemos
from support.fast_rig import chat, fast_rig
from support.scripted_backend import reply


async def test_memos_are_dropped_with_their_snapshot() -> None:
    async with fast_rig() as rig:
        runtime, context = rig.router.runtime, rig.client._fast.context
        rig.ask(chat())
        before = context.current()
        assert before is context.current()
        assert (len(before.heads), len(before.places)) == (1, 1)
        runtime.swap(replace(runtime.current, generation=2))
        after = context.current()
        assert after is not before
        assert (len(after.heads), len(after.places), len(after.plans)) == (0, 0, 0)
        assert after.snap is runtime.current


async def test_an_idle_client_does_not_keep_the_memos_of_an_older_snapshot() -> None:
    """A connection may stay for hours, on one request each; a snapshot is megabytes."""
    async with fast_rig() as rig:
        runtime, context = rig.router.runtime, rig.client._fast.context
        rig.ask(chat()).data_received(reply(b"{}"))
        runtime.swap(replace(runtime.current, generation=2))
        context.current()
        gc.collect()
        memos = [found for found in gc.get_objects() if isinstance(found, SnapshotMemos)]
        ours = [found for found in memos if found.rules is runtime.current.dispatcher]
        assert ours == [context.memos]


async def test_tasks_are_the_supervisors() -> None:
    async with fast_rig() as rig:
        context = rig.client._fast.context

        async def work() -> None:
            return None

        task = context.spawn(work())
        assert "request" in rig.router.state.supervisor.names()
        await task
