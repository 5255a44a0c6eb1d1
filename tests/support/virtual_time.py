"""An event loop whose clock jumps to the next timer, so that a test of ten minutes takes none.

For code without sockets. When nothing is due and nothing can become due, the test would hang for
ever: that is an error here.
"""

import asyncio
import inspect
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps


class _Jumping(selectors.SelectSelector):
    """Never waits: what the loop would have waited for is added to its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is due: the test would hang")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 seconds."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def on_virtual_time(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """Run an async test on a `VirtualLoop` of its own."""

    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    # Else pytest-asyncio takes the test for a coroutine and runs it on a real loop.
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


def now() -> float:
    """The running loop's seconds, without the last digits of floating point."""
    return round(asyncio.get_running_loop().time(), 6)
