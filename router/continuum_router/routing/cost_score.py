"""Cost mode: who answers soonest, counting what the choice takes from those who come after.

design/routing.md 6.2. For every candidate, lower is better:

    own   = work of the tokens it does not hold, behind those it holds
    wait  = work in its line, less what it has done of it
    x     = 1 + (overlap_weight / load_weight) * crowding + gain * busy^2 / (1.02 - busy)
    cost  = (wait + x * own) * (1 + kv * context in flight / room) / (speed * success * weight)

``x`` is what copying a prefix costs others: cache room, as far as the backend has to evict for
what it stores, and its time, the more the busier it is. So nothing is locked to a holder: a hot
prefix is copied when waiting costs more than copying, and only then. Nobody has to hold anything.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from continuum_router.backends.holding import Tier
from continuum_router.backends.pieces import PIECE, Pieces
from continuum_router.backends.pool import Backend
from continuum_router.routing.strategies import Ask
from continuum_router.routing.token_ratio import TokenRatios
from continuum_router.routing.work_ledger import (
    LEAST_WORK,
    Lane,
    WorkLedger,
    WorkTicket,
    work_of,
)

GAIN = 2.0
KV = 0.8
TIE = 64.0
EXPLAINED = 16
LEAST_SUCCESS = 0.05
SLOW = 0.05
"""Seconds for which speed, crowding, utilisation and success are taken to stay as they are."""

GUESSED_CROWDING = 0.5
"""What a guessed crowding counts: the guess sees what was sent, not what the engine evicted."""


class CostValues(Protocol):
    """The section ``kv_cache_index.scoring``, by shape, as far as cost mode reads it."""

    @property
    def overlap_weight(self) -> float: ...
    @property
    def load_weight(self) -> float: ...
    @property
    def health_weight(self) -> float: ...
    @property
    def gpu_tier_weight(self) -> float: ...
    @property
    def storage_tier_weight(self) -> float: ...
    @property
    def media_tokens(self) -> int: ...


class HeldPieces(Protocol):
    """What cost mode asks of and tells to the index (`kv_index.piece_index`)."""

    def depths(self, pieces: Pieces, names: tuple[str, ...]) -> list[int]: ...
    def any_warm(self) -> bool: ...
    def tier(self, name: str, pieces: Pieces) -> Tier: ...
    def crowding(self, name: str) -> float: ...
    def room(self, name: str) -> float: ...
    def sent(self, name: str, pieces: Pieces, now: float) -> None: ...
    def used(self, name: str, pieces: Pieces, now: float) -> None: ...
    def unsent(self, name: str, pieces: Pieces, depth: int) -> None: ...
    def cached(self, name: str, expected: float, found: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Why a backend is worth what it is: every term of its cost. Work is in tokens.

    ``held`` are the tokens that count as held, ``tokens`` those of the whole prompt.
    """

    backend: str
    depth: int
    held: float
    tokens: float
    wait: float
    own: float
    factor: float
    kv_factor: float
    speed: float
    success: float
    weight: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPick:
    """The cheapest backend. ``share`` is how much of the prompt it holds, 0 to 1.

    ``terms`` are its wait and own work in tokens, the factor on the latter, and the cost.
    """

    backend: Backend
    depth: int
    held: int
    share: float
    tier: Tier
    terms: tuple[tuple[str, float], ...]
    ticket: "CostTicket"


class _Team:
    """The candidates of the last selection, with what is looked up by their names.

    ``slow`` are the factors that change in seconds, not with each request; see `CostScorer._slow`.
    """

    __slots__ = ("fresh_until", "lanes", "members", "names", "slow", "weights")

    def __init__(self, members: Sequence[Backend], ledger: WorkLedger) -> None:
        self.members = members
        self.names = tuple(backend.name for backend in members)
        self.lanes: list[Lane] = [ledger.lane(name) for name in self.names]
        mean = sum(backend.weight for backend in members) / len(members)
        self.weights = [max(backend.weight / mean, 1e-6) if mean else 1.0 for backend in members]
        self.slow: list[tuple[Lane, float, float, float]] = []
        self.fresh_until = -math.inf


class CostScorer:
    """Chooses among candidates and hands out the ticket that keeps its books.

    ``min_overlap``: a backend that holds less than this share of a prompt counts as holding
    nothing. ``clock`` of ``ledger`` gives the times.
    """

    def __init__(
        self,
        scoring: CostValues,
        *,
        index: HeldPieces,
        ledger: WorkLedger,
        ratios: TokenRatios,
        min_overlap: float = 0.0,
    ) -> None:
        self._index = index
        self._ledger = ledger
        self._ratios = ratios
        self._min_overlap = min_overlap
        load = scoring.load_weight
        self._copying = scoring.overlap_weight / load * GUESSED_CROWDING if load > 0 else 0.0
        self._counts_success = scoring.health_weight > 0
        self._tier_weight = {
            Tier.GPU_HOT: min(1.0, scoring.gpu_tier_weight),
            Tier.STORAGE_WARM: min(1.0, scoring.storage_tier_weight),
        }
        self._media_tokens = scoring.media_tokens
        self._team: _Team | None = None

    def choose(
        self, ask: Ask, pieces: Pieces, success_rate: Callable[[str], float], now: float
    ) -> CostPick:
        """The cheapest of ``ask.candidates``, of which there is at least one."""
        team = self._of(ask.candidates)
        ratio = self._ratios.ratio(ask.model)
        tokens = self._tokens(pieces, ratio)
        depths = self._index.depths(pieces, team.names)
        held = self._held(pieces, team, depths, ratio, tokens)
        costs = self._costs(team, tokens, held, success_rate, now)
        place = _cheapest(costs, team.lanes)
        backend, own = team.members[place], held[place]
        lane, work = team.lanes[place], work_of(max(LEAST_WORK, tokens - own), own)
        return CostPick(
            backend=backend,
            depth=depths[place],
            held=round(own),
            share=min(1.0, own / tokens) if tokens > 0 else 0.0,
            tier=self._index.tier(backend.name, pieces),
            terms=(
                ("wait", lane.wait(now)),
                ("own", work),
                ("x", team.slow[place][1]),
                ("cost", costs[place]),
            ),
            ticket=CostTicket(
                self,
                lane,
                backend.name,
                ask.model,
                pieces,
                depth=depths[place],
                work=work,
                tokens=tokens,
            ),
        )

    def explain(
        self, ask: Ask, pieces: Pieces, success_rate: Callable[[str], float], now: float
    ) -> list[Terms]:
        """Every candidate's terms, in the order of the candidates. Changes nothing."""
        team = self._of(ask.candidates)
        ratio = self._ratios.ratio(ask.model)
        tokens = self._tokens(pieces, ratio)
        depths = self._index.depths(pieces, team.names)
        held = self._held(pieces, team, depths, ratio, tokens)
        costs = self._costs(team, tokens, held, success_rate, now)
        fast = sum(lane.rate for lane in team.lanes) / len(team.lanes)
        return [
            Terms(
                backend=name,
                depth=depths[place],
                held=held[place],
                tokens=tokens,
                wait=lane.wait(now),
                own=work_of(max(LEAST_WORK, tokens - held[place]), held[place]),
                factor=self._factor(name, lane.busy(now)),
                kv_factor=1 + KV * lane.context / self._index.room(name),
                speed=lane.rate / fast,
                success=self._success(name, success_rate),
                weight=team.weights[place],
                cost=costs[place],
            )
            for place, (name, lane) in enumerate(zip(team.names, team.lanes, strict=True))
        ]

    # -- the books of one attempt, for its ticket ---------------------------------------------

    @property
    def ledger(self) -> WorkLedger:
        """The work in line."""
        return self._ledger

    @property
    def index(self) -> HeldPieces:
        """The pieces that are held."""
        return self._index

    def reported(
        self, name: str, model: str, pieces: Pieces, depth: int, prompt: int, cached: int | None
    ) -> None:
        """An answer's usage: tokens a byte, and whether what was thought held was."""
        text = prompt - len(pieces.media) * self._media_tokens
        self._ratios.learn(model, pieces.size, text)
        if cached is None or pieces.media or prompt <= 0:
            return
        found = cached / prompt * pieces.size / PIECE
        self._index.cached(name, pieces.text_bytes(depth) / PIECE, found)

    # -----------------------------------------------------------------------------------------

    def _of(self, members: Sequence[Backend]) -> _Team:
        team = self._team
        if team is None or team.members is not members:
            team = _Team(members, self._ledger)
            # Only a tuple cannot change under us.
            self._team = team if isinstance(members, tuple) else None
        return team

    def _tokens(self, pieces: Pieces, ratio: float) -> float:
        return pieces.size * ratio + len(pieces.media) * self._media_tokens

    def _held(
        self, pieces: Pieces, team: _Team, depths: list[int], ratio: float, tokens: float
    ) -> list[float]:
        """Tokens that count as held by each."""
        least = self._min_overlap * tokens
        known = {0: 0.0}
        held: list[float] = []
        for depth in depths:
            count = known.get(depth)
            if count is None:
                media = pieces.media_within(depth) * self._media_tokens
                count = known[depth] = min(tokens, pieces.text_bytes(depth) * ratio + media)
            held.append(count if count >= least else 0.0)
        hot, warm = self._tier_weight[Tier.GPU_HOT], self._tier_weight[Tier.STORAGE_WARM]
        if hot < 1.0 or self._index.any_warm():
            for place, name in enumerate(team.names):
                if held[place]:
                    tier = self._index.tier(name, pieces)
                    held[place] *= warm if tier is Tier.STORAGE_WARM else hot
        return held

    def _costs(
        self,
        team: _Team,
        tokens: float,
        held: list[float],
        success_rate: Callable[[str], float],
        now: float,
    ) -> list[float]:
        if not now < team.fresh_until <= now + SLOW:
            team.slow = self._slow(team, success_rate, now)
            team.fresh_until = now + SLOW
        cold = work_of(max(LEAST_WORK, tokens), 0.0)
        costs: list[float] = []
        for (lane, factor, crowd, scale), cached in zip(team.slow, held, strict=True):
            own = work_of(max(LEAST_WORK, tokens - cached), cached) if cached else cold
            cost = factor * own
            if lane.line:
                cost += lane.wait(now)
            costs.append(cost * (1 + crowd * lane.context) * scale)
        return costs

    def _slow(
        self, team: _Team, success_rate: Callable[[str], float], now: float
    ) -> list[tuple[Lane, float, float, float]]:
        """For each backend: ``x``, the price of a token in flight, and 1 / (speed * success)."""
        fast = sum(lane.rate for lane in team.lanes) / len(team.lanes)
        return [
            (
                lane,
                self._factor(name, lane.busy(now)),
                KV / self._index.room(name),
                fast / (lane.rate * weight * self._success(name, success_rate)),
            )
            for name, lane, weight in zip(team.names, team.lanes, team.weights, strict=True)
        ]

    def _factor(self, name: str, busy: float) -> float:
        copying = self._copying * self._index.crowding(name)
        return 1 + copying + GAIN * busy * busy / (1.02 - busy)

    def _success(self, name: str, success_rate: Callable[[str], float]) -> float:
        return max(LEAST_SUCCESS, success_rate(name)) if self._counts_success else 1.0


class CostTicket(WorkTicket):
    """One attempt's entry in the line and in the index."""

    __slots__ = ("_depth", "_model", "_name", "_pieces", "_scorer")

    def __init__(  # noqa: PLR0913  one attempt, field by field
        self,
        scorer: CostScorer,
        lane: Lane,
        name: str,
        model: str,
        pieces: Pieces,
        *,
        depth: int,
        work: float,
        tokens: float,
    ) -> None:
        super().__init__(scorer.ledger, lane, work=work, tokens=tokens)
        self._scorer = scorer
        self._name = name
        self._model = model
        self._pieces = pieces
        self._depth = depth

    def begun(self) -> None:
        """It is being sent: what it brings counts as held from now on."""
        super().begun()
        self._scorer.index.sent(self._name, self._pieces, self._ledger.clock())

    def usage(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """What the engine says of the prompt."""
        if prompt_tokens is not None:
            self._scorer.reported(
                self._name, self._model, self._pieces, self._depth, prompt_tokens, cached_tokens
            )

    def ended(self) -> None:
        """It has ended, whatever way: its blocks were in use until now, if there are any."""
        if self._begun:
            index = self._scorer.index
            if self._answered:
                index.used(self._name, self._pieces, self._ledger.clock())
            else:
                index.unsent(self._name, self._pieces, self._depth)
        super().ended()


def explained(terms: Sequence[Terms]) -> str:
    """Every term of the cheapest :data:`EXPLAINED` candidates, for a log line."""
    best = sorted(terms, key=lambda one: one.cost)[:EXPLAINED]
    return "; ".join(
        f"{one.backend}: held {one.held:.0f} of {one.tokens:.0f}, wait {one.wait:.0f}, "
        f"own {one.own:.0f}, x {one.factor:.3f}, kv {one.kv_factor:.3f}, speed {one.speed:.3f}, "
        f"success {one.success:.3f}, weight {one.weight:.3g}, cost {one.cost:.0f}"
        for one in best
    )


def _cheapest(costs: list[float], lanes: list[Lane]) -> int:
    """Ties within :data:`TIE`: least context in flight, then longest unused."""
    limit = min(costs) + TIE
    places = [place for place, cost in enumerate(costs) if cost <= limit]
    if len(places) == 1:
        return places[0]
    return min(places, key=lambda place: (lanes[place].context, lanes[place].last))
