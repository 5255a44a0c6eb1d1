"""Stop 7 of a request's way: candidates in, one choice out, with the rule that made it.

``Selector.select`` is plain and synchronous: the index was read before, the loads are live
counters, nothing here waits. It says what happened; :class:`RoutingMetrics` counts it, from the
very same read (S0 "score_with_tier": the tier label is the tier that decided).
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from continuum_router.backends.fleet import Ticket
from continuum_router.backends.holding import Holding, Tier
from continuum_router.backends.pieces import Pieces
from continuum_router.backends.pool import Backend
from continuum_router.routing.cost_score import CostScorer, explained
from continuum_router.routing.kv_score import KvScorer
from continuum_router.routing.least_work import WorkBook
from continuum_router.routing.strategies import Ask, Rule, Strategy
from continuum_shared.logs import fields
from continuum_shared.metrics import Metrics

log = logging.getLogger("continuum_router.routing")

SCORE_BUCKETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class Decision(StrEnum):
    """Label ``decision`` of ``continuum_kv_index_routing_decisions_total``."""

    KV_AWARE = "kv_aware"
    FALLBACK = "fallback"


class TierLabel(StrEnum):
    """Label ``tier`` of the same family: a :class:`Tier`, or none for a fallback."""

    GPU_HOT = Tier.GPU_HOT.value
    STORAGE_WARM = Tier.STORAGE_WARM.value
    NONE = "none"


class PrefixOutcome(StrEnum):
    """Label ``strategy`` of ``continuum_prefix_routing_requests_total``."""

    PREFIX_HASH = Rule.PREFIX_HASH.value
    OVERFLOW = Rule.OVERFLOW.value
    FALLBACK = Rule.FALLBACK.value


@dataclass(slots=True, kw_only=True)
class Choice:
    """Who serves, and why. Read-only, see :class:`Ask`.

    ``tier``, ``score`` and ``held`` (tokens) are given exactly when ``rule`` is ``kv_aware``.
    ``scored`` says whether the KV scorer ran for this selection, whoever won. ``ticket`` goes with
    the attempt's lease: it is how the books of cost mode and of ``LeastWork`` are kept. ``terms``
    are those of the cost of who won, in cost mode.
    """

    backend: Backend
    rule: Rule
    tier: Tier | None = None
    score: float | None = None
    held: int | None = None
    scored: bool = False
    terms: tuple[tuple[str, float], ...] = ()
    ticket: Ticket | None = field(default=None, repr=False, compare=False)

    def route_header(self) -> str:
        """Value of ``x-continuum-route`` (decisions J7)."""
        parts = [self.rule.value]
        if self.score is not None and self.tier is not None:
            parts.append(f"tier={self.tier.value}; score={self.score:.3f}; held={self.held}")
        parts += [f"{name}={value:.4g}" for name, value in self.terms]
        return "; ".join(parts)


class Selector:
    """The rules of one configuration, ready to choose.

    ``scorer`` is there in composite mode, ``cost`` in cost mode, neither when the index is off.
    ``book`` is there when somebody needs to know the work in line and cost mode does not keep it.
    ``success_rate`` gives a backend's, 0 to 1, by name (``Fleet.success_rate``).
    """

    def __init__(
        self,
        *,
        strategy: Strategy,
        scorer: KvScorer | None,
        success_rate: Callable[[str], float],
        cost: CostScorer | None = None,
        book: WorkBook | None = None,
    ) -> None:
        self._strategy = strategy
        self._book = book
        self._cost = cost
        self._scorer = scorer
        self._success_rate = success_rate

    def select(
        self,
        ask: Ask,
        *,
        holdings: Mapping[str, Holding] | None,
        now: float,
        tried: Collection[str] = (),
    ) -> Choice | None:
        """Choose a backend; ``None`` when ``ask`` has no candidates.

        ``holdings`` is the index's answer for this request's key; ``None`` when it was not asked
        (no key, or a client's own cache salt, decisions C41), and then the scorer does not run.
        ``tried`` names backends to avoid while another candidate is left (S2
        ``prefer_untried_backends``). ``now`` is monotonic seconds.
        """
        if tried:
            untried = tuple(backend for backend in ask.candidates if backend.name not in tried)
            ask = replace(ask, candidates=untried or ask.candidates, retry=True)
        if not ask.candidates:
            return None
        if self._cost is not None and ask.pieces is not None:
            return self._cheapest(self._cost, ask, ask.pieces, now)
        scored = False
        if self._scorer is not None and holdings is not None and ask.prefix is not None:
            scored = True
            best = self._scorer.best(
                ask.candidates, holdings, ask.loads, self._success_rate, now, ask.prefix
            )
            if best is not None:
                return Choice(
                    backend=best.backend,
                    rule=Rule.KV_AWARE,
                    tier=best.holding.tier,
                    score=best.score,
                    held=best.holding.tokens,
                    scored=True,
                    ticket=self._ticket(ask, best.backend, best.holding.tokens),
                )
        pick = self._strategy.pick(ask)
        if pick is None:
            return None
        ticket = self._ticket(ask, pick.backend, 0)
        return Choice(backend=pick.backend, rule=pick.rule, scored=scored, ticket=ticket)

    def _ticket(self, ask: Ask, backend: Backend, held: int) -> Ticket | None:
        return None if self._book is None else self._book.ticket(ask, backend, held)

    def _cheapest(self, scorer: CostScorer, ask: Ask, pieces: Pieces, now: float) -> Choice:
        """Cost mode decides whenever there is a prompt; it is KV-aware if something is held."""
        pick = scorer.choose(ask, pieces, self._success_rate, now)
        if log.isEnabledFor(logging.DEBUG):
            terms = scorer.explain(ask, pieces, self._success_rate, now)
            log.debug(
                "Cost mode chose",
                extra=fields(backend=pick.backend.name, terms=explained(terms)),
            )
        if not pick.held:
            return Choice(
                backend=pick.backend,
                rule=Rule.LEAST_WORK,
                scored=True,
                terms=pick.terms,
                ticket=pick.ticket,
            )
        return Choice(
            backend=pick.backend,
            rule=Rule.KV_AWARE,
            tier=pick.tier,
            score=pick.share,
            held=pick.held,
            scored=True,
            terms=pick.terms,
            ticket=pick.ticket,
        )


class RoutingMetrics:
    """Counts each choice once (S0 "Metrics", Tier 1 and Tier 4)."""

    def __init__(self, metrics: Metrics) -> None:
        outcomes = metrics.counter(
            "continuum_prefix_routing_requests_total",
            "Selections that the PrefixAwareHash strategy made, by how it made them.",
            {"strategy": PrefixOutcome},
        )
        decisions = metrics.counter(
            "continuum_kv_index_routing_decisions_total",
            "Selections for which the KV scorer ran, by who decided and the tier that was held.",
            {"decision": Decision, "tier": TierLabel},
        )
        scores = metrics.histogram(
            "continuum_kv_index_overlap_score",
            "Best composite score of the selections that the KV scorer decided.",
            SCORE_BUCKETS,
        )
        self._by_rule = {Rule(outcome.value): outcomes.child(outcome) for outcome in PrefixOutcome}
        self._by_tier = {
            tier: decisions.child(Decision.KV_AWARE, TierLabel(tier.value)) for tier in Tier
        }
        self._fallback = decisions.child(Decision.FALLBACK, TierLabel.NONE)
        self._score = scores.child()

    def count(self, choice: Choice) -> None:
        """Count one selection."""
        outcome = self._by_rule.get(choice.rule)
        if outcome is not None:
            outcome.value += 1
        if not choice.scored:
            return
        if choice.tier is not None and choice.score is not None:
            self._by_tier[choice.tier].value += 1
            self._score.observe(choice.score)
        else:
            self._fallback.value += 1
