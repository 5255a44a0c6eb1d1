"""The list of models clients can name: configured ones, and what the other backends say they serve.

A backend that lists no models is asked for its own list (decisions E22). One pass asks all of them
at once; passes follow each other in a background task, so that no client request ever waits for a
dead backend (user report O1). What a backend last answered is kept while it is silent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from continuum_router.backends.pool import Backend, Pool

CACHE_TTL = 60.0
"""Seconds between two passes (S2 `model_aggregation.cache_ttl`)."""

RETRY_AFTER_FAILURE = 5.0
"""Seconds until the next pass when a backend has never answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One entry of a backend's model list. `created` is Unix time."""

    id: str
    created: int | None = None
    owned_by: str | None = None


class FetchFailed(Exception):
    """A backend's model list could not be had now. The text is for the log and names no content."""


Fetch = Callable[[Backend], Awaitable[Sequence[ModelCard]]]
"""Asks one backend. Raises FetchFailed."""


class Catalog:
    """What the backends last said they serve. State: keyed by backend name, outlives a reload.

    `started` is the Unix time that models without a date of their own get.
    """

    def __init__(self, fetch: Fetch, *, started: int) -> None:
        self._fetch = fetch
        self._started = started
        self._cards: dict[str, tuple[ModelCard, ...]] = {}
        self._complete = False

    async def refresh(self, pool: Pool) -> Mapping[str, frozenset[str]]:
        """Ask every backend that lists no models. Returns what is known now, by backend name.

        A backend that fails keeps its last answer; one that never answered is absent, which means
        that any model may be tried on it.
        """
        asked = pool.undiscovered()
        answers = await asyncio.gather(*(self._ask(backend) for backend in asked))
        known = {name: cards for name, cards in self._cards.items() if name in pool.by_name}
        for backend, cards in zip(asked, answers, strict=True):
            if cards is not None:
                known[backend.name] = cards
        self._cards = known
        self._complete = all(backend.name in known for backend in asked)
        return {name: frozenset(card.id for card in cards) for name, cards in known.items()}

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
        """Refresh for ever: at once, then each minute, sooner while a backend is still unknown."""
        while True:
            found = await self.refresh(current_pool())
            publish(found)
            await asyncio.sleep(CACHE_TTL if self._complete else RETRY_AFTER_FAILURE)

    def listing(self, pool: Pool) -> list[dict[str, object]]:
        """The `data` of `GET /v1/models`: backends in their order, then by name (decisions E19)."""
        cards: dict[str, ModelCard] = {}
        for backend in pool.backends:
            for card in self._cards.get(backend.name, ()):
                cards.setdefault(card.id, card)
        return [self._object(self._card(name, cards, pool)) for name in pool.models()]

    def entry(self, name: str, pool: Pool) -> dict[str, object] | None:
        """The entry of one name in the listing; None when it is not served."""
        return next((entry for entry in self.listing(pool) if entry["id"] == name), None)

    def _card(self, name: str, cards: Mapping[str, ModelCard], pool: Pool) -> ModelCard:
        """The card of a name; an alias has the card of its model, under its own name (H7)."""
        for known in (name, *sorted(pool.real_names(name))):
            if known in cards:
                return replace(cards[known], id=name)
        return ModelCard(id=name)

    async def _ask(self, backend: Backend) -> tuple[ModelCard, ...] | None:
        try:
            return tuple(await self._fetch(backend))
        except FetchFailed:
            return None

    def _object(self, card: ModelCard) -> dict[str, object]:
        return {
            "id": card.id,
            "object": "model",
            "created": self._started if card.created is None else card.created,
            "owned_by": card.owned_by or "continuum-router",
        }
