"""Cost mode on a table: index, books and scorer over a manual clock."""

import hashlib
from collections.abc import Sequence

from continuum_router.backends.fleet import Fleet
from continuum_router.backends.pieces import Pieces, piece_end
from continuum_router.backends.pool import Backend
from continuum_router.config.kv_cache_index import ScoringConfig
from continuum_router.kv_index.piece_index import PieceIndex
from continuum_router.routing.cost_score import CostScorer, Terms
from continuum_router.routing.selector import Choice, Selector
from continuum_router.routing.strategies import RoundRobin
from continuum_router.routing.token_ratio import TokenRatios
from continuum_router.routing.work_ledger import WorkLedger
from continuum_shared.metrics import Metrics
from support.backends import ask


def prompt(text: str, *, group: bytes = b"G", media: tuple[int, ...] = ()) -> Pieces:
    """A prompt of one piece a letter; letters before a letter are part of its piece."""
    digests = tuple(
        hashlib.sha256(text[: end + 1].encode()).digest()[:16] for end in range(len(text))
    )
    return Pieces(digests=digests, size=piece_end(len(text)), group=group, media=media)


class CostBench:
    """`rates` are success rates by name."""

    def __init__(self, members: Sequence[Backend], **scoring: object) -> None:
        self.now = 100.0
        self.members = tuple(members)
        self.fleet = Fleet(Metrics(), (backend.name for backend in members))
        self.rates: dict[str, float] = {}
        self.index = PieceIndex(max_entries=100_000, ttl=600.0)
        self.ledger = WorkLedger(lambda: self.now)
        self.scorer = CostScorer(
            ScoringConfig(**scoring),
            index=self.index,
            ledger=self.ledger,
            ratios=TokenRatios(),
        )
        self.selector = Selector(
            strategy=RoundRobin(), scorer=None, success_rate=self.rate, cost=self.scorer
        )

    def rate(self, name: str) -> float:
        """Success rate."""
        return self.rates.get(name, 1.0)

    def choose(self, pieces: Pieces, **how: object) -> Choice:
        """Select, send nothing."""
        request = ask(self.members, pieces=pieces, loads=self.fleet.loads, **how)
        choice = self.selector.select(request, holdings=None, now=self.now)
        assert choice is not None
        return choice

    def send(self, pieces: Pieces, **how: object):
        """Select and begin; the name and the lease."""
        choice = self.choose(pieces, **how)
        lease = self.fleet.lease(choice.backend.name, ticket=choice.ticket).begin()
        return choice.backend.name, lease

    def serve(self, pieces: Pieces, took: float = 0.0, **how: object) -> str:
        """Select, send, answer after `took` seconds."""
        name, lease = self.send(pieces, **how)
        self.now += took
        lease.ticket.first_token()
        lease.end()
        return name

    def terms(self, pieces: Pieces) -> dict[str, Terms]:
        """The explanation, by name."""
        request = ask(self.members, pieces=pieces)
        found = self.scorer.explain(request, pieces, self.rate, self.now)
        return {terms.backend: terms for terms in found}
