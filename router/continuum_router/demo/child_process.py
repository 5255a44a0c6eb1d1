"""One process that the demo starts: its log files, its readiness, its end.

A child runs in a session of its own, so that Ctrl-C on the terminal reaches only the demo, which
then ends its children in order. On Linux a child also gets SIGTERM from the system when the demo
itself is killed.
"""

import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_POLL: Final = 0.03
_PR_SET_PDEATHSIG: Final = 1


class ChildFailed(Exception):
    """A child ended by itself or did not get ready. The message holds the end of its log."""


class Child:
    """A running child process; made by `running`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, logs: Path) -> None:
        self.name = name
        self._process = process
        self._logs = logs

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def first_line(self, limit: float) -> str:
        """The first whole line of its stdout. Raises ChildFailed when none comes in time."""
        path = self._logs / f"{self.name}.out"

        async def line() -> str | None:
            text = path.read_text("utf-8", "replace")
            return text.partition("\n")[0] if "\n" in text else None

        return await self.wait_for(line, limit)

    async def wait_for(self, look: Callable[[], Awaitable[T | None]], limit: float) -> T:
        """Ask `look` again and again until it gives something. Raises ChildFailed."""
        try:
            async with asyncio.timeout(limit):
                while True:
                    if (found := await look()) is not None:
                        return found
                    self.check()
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise ChildFailed(
                f"{self.name} was not ready in {limit:.0f} s\n{self._tail()}"
            ) from None

    def check(self) -> None:
        """Raise ChildFailed if the process has ended."""
        if self._process.returncode is not None:
            status = self._process.returncode
            raise ChildFailed(f"{self.name} ended with status {status}\n{self._tail()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that has ended already is fine."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self, limit: float) -> int:
        """Its exit status, negative for a signal. Raises TimeoutError."""
        async with asyncio.timeout(limit):
            return await self._process.wait()

    async def stop(self, grace: float = 5.0) -> None:
        """SIGTERM, and SIGKILL when it has not ended after `grace` seconds."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            with contextlib.suppress(TimeoutError):
                await self.ended(grace)
                return

    def _tail(self, lines: int = 15) -> str:
        texts = []
        for kind in ("out", "err"):
            path = self._logs / f"{self.name}.{kind}"
            if path.exists():
                texts.extend(path.read_text("utf-8", "replace").splitlines()[-lines:])
        return "\n".join(f"    {text}" for text in texts)


@contextlib.asynccontextmanager
async def running(
    name: str, argv: Sequence[str], *, logs: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[Child]:
    """Start a process and end it on leaving, however that happens.

    stdout goes to `logs`/NAME.out, stderr to NAME.err. Raises OSError when it cannot start.
    """
    with (logs / f"{name}.out").open("wb") as out, (logs / f"{name}.err").open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=_dies_with_parent(),
        )
    child = Child(name, process, logs)
    try:
        yield child
    finally:
        await child.stop()


def free_ports(count: int) -> list[int]:
    """Loopback ports that nothing listens on now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _dies_with_parent() -> Callable[[], object] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return functools.partial(prctl, _PR_SET_PDEATHSIG, int(signal.SIGTERM))
