"""A snapshot that is on its way: records collected beside the index until they can be swapped in.

Decisions C28: a purge that announces ``n`` records is not carried out at once; the index keeps
what it knows until the n records are here, or for two seconds, so that a reconnect leaves no hole.
"""

import asyncio
from collections.abc import Callable

from continuum_router.backends.holding import Tier
from continuum_shared.prefix_key import PrefixKey


class Staging:
    """Collects ``expected`` records; calls ``give_up`` if some are missing after ``patience`` s.

    Must be made inside a running event loop. ``records`` maps a prefix to its tokens (``None``: not
    given) and tier.
    """

    def __init__(self, expected: int, patience: float, give_up: Callable[[], None]) -> None:
        self.records: dict[PrefixKey, tuple[int | None, Tier]] = {}
        self._missing = expected
        self._timer = asyncio.get_running_loop().call_later(patience, give_up)

    def tier(self, prefix: PrefixKey) -> Tier | None:
        """Tier of a record that was collected."""
        found = self.records.get(prefix)
        return None if found is None else found[1]

    def put(self, prefix: PrefixKey, tokens: int | None, tier: Tier | None) -> bool:
        """Take one record (``tier`` absent: the prefix is gone); whether it was the last."""
        if tier is None:
            self.records.pop(prefix, None)
        else:
            known = self.records.get(prefix)
            if tokens is None and known is not None:
                tokens = known[0]
            self.records[prefix] = (tokens, tier)
        return self.skip()

    def skip(self) -> bool:
        """Count a record that could not be read; whether it was the last."""
        self._missing -= 1
        return self._missing <= 0

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()
