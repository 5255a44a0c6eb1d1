"""Which backend made which response: a conversation that names it must go there.

Engines keep the responses of `/v1/responses` in their own memory, so `previous_response_id` means
nothing to any other engine. The map is bounded; what is pushed out is routed like a new request.
"""

from collections import OrderedDict

MAX_RESPONSES = 100_000
MAX_ID = 256


class ResponseHomes:
    """Response id → backend name, the least recently used goes first. State of the process."""

    __slots__ = ("_homes", "_limit")

    def __init__(self, limit: int = MAX_RESPONSES) -> None:
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._homes)

    def remember(self, response_id: str, backend: str) -> None:
        """Note who made a response. Ids that are too long to be one are not kept."""
        if not response_id or len(response_id) > MAX_ID:
            return
        self._homes[response_id] = backend
        self._homes.move_to_end(response_id)
        if len(self._homes) > self._limit:
            self._homes.popitem(last=False)

    def home_of(self, response_id: str) -> str | None:
        """The backend that made it, or None when that is not known."""
        home = self._homes.get(response_id)
        if home is not None:
            self._homes.move_to_end(response_id)
        return home
