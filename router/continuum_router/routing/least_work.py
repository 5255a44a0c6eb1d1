"""``LeastWork``: whoever has done what is in its line soonest (design/routing.md 6.1).

For requests that no cache helps. Work is estimated from the size of requests; every selection is
entered in the books, whoever made it, so the strategy may stand behind the KV score as well.
"""

from continuum_router.backends.fleet import Ticket
from continuum_router.backends.pool import Backend
from continuum_router.routing.strategies import Ask, Pick, Rule
from continuum_router.routing.token_ratio import FIRST
from continuum_router.routing.work_ledger import LEAST_WORK, WorkLedger, WorkTicket, work_of

ROOM_TOKENS = 2_000_000
"""Context tokens at which a batch is taken to slow a backend down by a factor of two."""


class WorkBook:
    """Enters attempts in the ledger when cost mode does not."""

    def __init__(self, ledger: WorkLedger) -> None:
        self._ledger = ledger

    def ticket(self, ask: Ask, backend: Backend, held: int) -> Ticket:
        """The entry of one attempt; ``held`` are tokens that the backend is known to hold."""
        tokens = ask.size * FIRST
        held = min(held, int(tokens))
        work = work_of(max(LEAST_WORK, tokens - held), held)
        return WorkTicket(self._ledger, self._ledger.lane(backend.name), work=work, tokens=tokens)


class LeastWork:
    """See the module. Weight scales a backend's speed; ties go to the longest unused."""

    def __init__(self, ledger: WorkLedger) -> None:
        self._ledger = ledger

    def pick(self, ask: Ask) -> Pick | None:
        """The soonest done."""
        if not ask.candidates:
            return None
        own, now = work_of(max(LEAST_WORK, ask.size * FIRST), 0), self._ledger.clock()

        def key(backend: Backend) -> tuple[float, int, float]:
            lane = self._ledger.lane(backend.name)
            speed = lane.rate * max(backend.weight, 1e-6)
            seconds = (lane.wait(now) + own) * (1 + lane.context / ROOM_TOKENS) / speed
            # A hundredth of a second is no reason to leave the turns.
            return round(seconds, 2), ask.loads.get(backend.name, 0), lane.last

        return Pick(backend=min(ask.candidates, key=key), rule=Rule.LEAST_WORK)
