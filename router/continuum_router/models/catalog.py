"""The list of models clients can name: configured ones, and what the other backends say they serve.

A backend that lists no models is asked for its own list (decisions E22). One pass asks all of them
at once; passes follow each other in a background task, so that after the first one no request waits
for a dead backend (user report O1). What a backend last answered is kept while it is silent.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from continuum_router.backends.pool import Backend, Pool
from continuum_router.models.freshness import Age, Freshness, Lifetimes

RECOVERY_DEBOUNCE = 5.0
"""Seconds in which recoveries of backends are gathered into one pass (S2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One entry of a backend's model list. `created` is Unix time."""

    id: str
    created: int | None = None
    owned_by: str | None = None


class FetchFailed(Exception):
    """A backend's model list could not be had now. The text is for the log and names no content.

    `transient`: a timeout, a failed connection or a 5xx, so another try makes sense (S2).
    """

    def __init__(self, why: str, *, transient: bool = False) -> None:
        super().__init__(why)
        self.transient = transient


Fetch = Callable[[Backend], Awaitable[Sequence[ModelCard]]]
"""Asks one backend. Raises FetchFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRules:
    """How passes are made (S2 `model_aggregation`). `check_interval` None: no background passes.

    `last_wins`: of equal models the last backend's entry is shown, else the first one's.
    """

    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    max_retries: int = 2
    retry_delay: float = 0.5
    max_total: int = 5000
    last_wins: bool = False
    check_interval: float | None = 10.0


class Catalog:
    """What the backends last said they serve. State: keyed by backend name, outlives a reload.

    One task makes all passes (`keep_fresh`), so two never run at once; everybody else asks for one
    and at most waits for its end. `started` is the Unix time that models without a date of their
    own get, `clock` monotonic seconds, `on_transient` hears of each failed try by backend name.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        started: int,
        clock: Callable[[], float],
        rules: CatalogRules | None = None,
        on_transient: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._fetch = fetch
        self._started = started
        self._clock = clock
        self._rules = rules or CatalogRules()
        self._on_transient = on_transient
        self._cards: dict[str, tuple[ModelCard, ...]] = {}
        self._weak: set[str] = set()
        self._freshness = Freshness(self._rules.lifetimes)
        self._wanted = True
        self._running = False
        self._recovery_due = math.inf
        self._wake = asyncio.Event()
        self._landed = asyncio.Event()

    async def refresh(self, pool: Pool) -> Mapping[str, frozenset[str]]:
        """Ask every backend that lists no models. Returns what is known now, by backend name.

        A backend that fails keeps its last answer; one that never answered is absent, which means
        that any model may be tried on it. One that failed transiently in the pass before is tried
        once; when every backend fails, those get the rest of their tries (S2).
        """
        asked, rules = pool.undiscovered(), self._rules
        once = {backend.name for backend in asked if backend.name in self._weak}
        weak: set[str] = set()

        async def ask_all(members: Sequence[Backend], *, rest: bool) -> None:
            tries = {b.name: 1 if b.name in once else 1 + rules.max_retries for b in members}
            if rest:
                tries = dict.fromkeys(tries, rules.max_retries)
            found = await asyncio.gather(
                *(self._ask(b, tries[b.name], weak, rest) for b in members)
            )
            answers.update(zip((b.name for b in members), found, strict=True))

        answers: dict[str, tuple[ModelCard, ...] | None] = {}
        await ask_all(asked, rest=False)
        if rules.max_retries and all(cards is None for cards in answers.values()):
            await ask_all([b for b in asked if b.name in once and b.name in weak], rest=True)
        self._weak = weak
        known = {name: cards for name, cards in self._cards.items() if name in pool.by_name}
        known.update({name: cards for name, cards in answers.items() if cards is not None})
        self._cards = known
        lacking = any(not known.get(backend.name) for backend in asked)
        self._freshness.filled(self._clock(), empty=lacking)
        return self.known(pool)

    def known(self, pool: Pool) -> Mapping[str, frozenset[str]]:
        """What the backends of `pool` said last, by name."""
        return {
            name: frozenset(card.id for card in cards)
            for name, cards in self._cards.items()
            if name in pool.by_name
        }

    async def keep_fresh(
        self,
        current_pool: Callable[[], Pool],
        publish: Callable[[Mapping[str, frozenset[str]]], None],
    ) -> None:
        """Make passes for ever: one at once, then whenever one is due or asked for."""
        while True:
            await self._until_due()
            self._wanted, self._running, self._recovery_due = False, True, math.inf
            try:
                publish(await self.refresh(current_pool()))
            finally:
                self._running = False
                landed, self._landed = self._landed, asyncio.Event()
                landed.set()

    async def ready(self, pool: Pool) -> None:
        """Before a list is shown: begins a pass when it is old, waits for it only when there is
        no model to show, or only what is older than three lifetimes (S2)."""
        if not pool.undiscovered():
            return
        age = self._freshness.age(self._clock())
        if age is Age.FRESH:
            return
        landed = self._landed
        self._ask_for_pass()
        if age is Age.EXPIRED or (age is Age.EMPTY and not pool.models()):
            await landed.wait()

    async def force(self) -> None:
        """Empty the cache and wait for a new pass (`POST /v1/models/refresh`)."""
        self._freshness.clear()
        landed = self._landed
        self._ask_for_pass()
        await landed.wait()

    def invalidate(self) -> None:
        """Backends have changed: what is known is shown on while a new pass is made (S2)."""
        self._freshness.invalidate(self._clock())
        # A pass that runs now asks the backends of before.
        self._wanted = True
        self._wake.set()

    def recovered(self, _name: str) -> None:
        """A backend has become ready: one pass follows for all that do so within 5 s (S2)."""
        self._recovery_due = min(self._recovery_due, self._clock() + RECOVERY_DEBOUNCE)
        self._wake.set()

    def _ask_for_pass(self) -> None:
        if not self._running:
            self._wanted = True
            self._wake.set()

    async def _until_due(self) -> None:
        every = math.inf if self._rules.check_interval is None else self._rules.check_interval
        check = self._clock() + every
        while not self._wanted:
            now = self._clock()
            if now >= self._recovery_due:
                return
            if now >= check:
                if self._freshness.age(now) is not Age.FRESH:
                    return
                check = now + every
            until = min(check, self._recovery_due)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(until) else until - now):
                    await self._wake.wait()

    def listing(self, pool: Pool) -> list[dict[str, object]]:
        """The `data` of `GET /v1/models`: backends in their order, then by name (decisions E19)."""
        cards: dict[str, ModelCard] = {}
        # Of two entries for one model the earlier one in this order is shown.
        order = reversed(pool.backends) if self._rules.last_wins else pool.backends
        for backend in order:
            for card in self._cards.get(backend.name, ()):
                cards.setdefault(card.id, card)
        names = pool.models()[: self._rules.max_total]
        return [self._object(self._card(name, cards, pool)) for name in names]

    def entry(self, name: str, pool: Pool) -> dict[str, object] | None:
        """The entry of one name in the listing; None when it is not served."""
        return next((entry for entry in self.listing(pool) if entry["id"] == name), None)

    def _card(self, name: str, cards: Mapping[str, ModelCard], pool: Pool) -> ModelCard:
        """The card of a name; an alias has the card of its model, under its own name (H7)."""
        for known in (name, *sorted(pool.real_names(name))):
            if known in cards:
                return replace(cards[known], id=name)
        return ModelCard(id=name)

    async def _ask(
        self, backend: Backend, tries: int, weak: set[str], delayed: bool
    ) -> tuple[ModelCard, ...] | None:
        """One backend's answer, None when there is none; `weak` gets those that may have one yet.

        `delayed`: a try went before, so the first one waits, too.
        """
        for number in range(tries):
            if number or delayed:
                await asyncio.sleep(self._rules.retry_delay)
            try:
                cards = tuple(await self._fetch(backend))
            except FetchFailed as failure:
                if not failure.transient:
                    weak.discard(backend.name)
                    return None
                weak.add(backend.name)
                self._on_transient(backend.name)
            else:
                weak.discard(backend.name)
                return cards
        return None

    def _object(self, card: ModelCard) -> dict[str, object]:
        return {
            "id": card.id,
            "object": "model",
            "created": self._started if card.created is None else card.created,
            "owned_by": card.owned_by or "continuum-router",
        }
