"""The only place that starts asyncio tasks.

A bare ``create_task`` loses its exception and may lose the task itself; the Supervisor keeps a
reference, counts and logs crashes, restarts what must not end, and stops everything in the reverse
order of its start. Banned elsewhere by lint.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from continuum_shared.backoff import Backoff
from continuum_shared.logs import fields

log = logging.getLogger("continuum_shared.tasks")

T = TypeVar("T")


class Supervisor:
    """Named tasks of one owner.

    ``on_crash(name)`` is called for each exception that ended a task (not for a cancellation), so
    that the owner can count it in its metrics.
    """

    def __init__(self, name: str, on_crash: Callable[[str], None] | None = None) -> None:
        self.name = name
        self.crashes = 0
        self._on_crash = on_crash
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._serial = 0

    def names(self) -> list[str]:
        """Names of the tasks that run now, oldest first."""
        return list(self._tasks)

    def spawn(self, name: str, coro: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Start a task that ends by itself. A crash is logged and counted, the task keeps it."""
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}:{name}")
        self._keep(name, task)
        return task

    def supervise(
        self, name: str, factory: Callable[[], Awaitable[None]], backoff: Backoff
    ) -> asyncio.Task[None]:
        """Start a task that must not end: after a crash it is made anew, after a delay.

        A factory whose awaitable returns is done and is not restarted.
        """
        task = asyncio.get_running_loop().create_task(
            self._run_forever(name, factory, backoff), name=f"{self.name}:{name}"
        )
        self._keep(name, task)
        return task

    async def cancel(self, name: str) -> None:
        """Cancel one task and wait until it has ended; an unknown name is fine."""
        task = self._tasks.get(name)
        if task is not None:
            await _end(task)

    async def stop(self) -> None:
        """Cancel all tasks, newest first, waiting for each: late users before what they use."""
        while self._tasks:
            name = next(reversed(self._tasks))
            await _end(self._tasks[name])
            self._tasks.pop(name, None)

    def _keep(self, name: str, task: "asyncio.Task[T]") -> None:
        key = name
        while key in self._tasks:
            self._serial += 1
            key = f"{name}#{self._serial}"
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: str, task: "asyncio.Task[T]") -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._crashed(key, error)

    def _crashed(self, name: str, error: BaseException) -> None:
        self.crashes += 1
        # The type and the place, never the text: a foreign message may quote a prompt or a key.
        log.error(
            "Task crashed",
            extra=fields(task=f"{self.name}:{name}", error=type(error).__name__, at=_place(error)),
        )
        if self._on_crash is not None:
            self._on_crash(name)

    async def _run_forever(
        self, name: str, factory: Callable[[], Awaitable[None]], backoff: Backoff
    ) -> None:
        while True:
            try:
                await factory()
            except Exception as error:  # noqa: BLE001 - the supervisor is where crashes end
                self._crashed(name, error)
            else:
                return
            await asyncio.sleep(backoff.next())


async def _end(task: "asyncio.Task[object]") -> None:
    """Cancel and wait. A second cancellation (of the waiter itself) is passed on."""
    task.cancel()
    await asyncio.wait([task])


def _place(error: BaseException) -> str:
    """``file:line`` of the innermost frame, without a path of the machine."""
    frame = error.__traceback__
    if frame is None:
        return "?"
    while frame.tb_next is not None:
        frame = frame.tb_next
    return f"{frame.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.tb_lineno}"
