"""Notices that the configuration file has another content (decisions H4).

By content, never by inode or date: a Kubernetes ConfigMap is swapped by a symbolic link, an editor
replaces the file, a copy may keep the date. A content counts when two looks in a row have seen it,
so that a file which is being written is not taken for a candidate half-way.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

LOOK_EVERY = 1.0
"""Seconds between two looks."""


class ConfigWatch:
    """Calls `changed` for each new content; what it makes of it is not asked for.

    `known` is the digest of the content in force, taken before it was read.
    """

    def __init__(
        self,
        path: Path,
        known: bytes | None,
        changed: Callable[[], Awaitable[object]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._known = known
        self._changed = changed
        self._sleep = sleep

    async def run(self) -> None:
        """Watch for ever. A file that cannot be read now is looked at again later."""
        seen: bytes | None = None
        while True:
            await self._sleep(LOOK_EVERY)
            now = await self._look()
            if now is not None and now == seen and now != self._known:
                self._known = now
                await self._changed()
            seen = now

    async def _look(self) -> bytes | None:
        # A file may lie on a network file system: never on the loop's thread.
        return await asyncio.to_thread(digest_of, self._path)


def digest_of(path: Path) -> bytes | None:
    """The content of a file in 32 bytes; None when it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None
