"""The model list: what was configured, what was found, what is kept while a backend is silent."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import pytest

from continuum_router.backends.pool import Backend, Pool
from continuum_router.models.catalog import Catalog, FetchFailed, ModelCard
from support.dispatch import backend

LISTED = backend("b1", models=frozenset({"z", "a"}))
OPEN = backend("b2", models=frozenset())
CLOCK = time.monotonic
OTHER = backend("b3", models=frozenset())


class Fetcher:
    def __init__(self, answers: Mapping[str, Sequence[ModelCard] | None]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []

    async def __call__(self, asked: Backend) -> Sequence[ModelCard]:
        self.asked.append(asked.name)
        await asyncio.sleep(0)
        found = self.answers[asked.name]
        if found is None:
            raise FetchFailed("timeout")
        return found


def _ids(catalog: Catalog, pool: Pool) -> list[object]:
    return [entry["id"] for entry in catalog.listing(pool)]


async def test_backends_that_list_their_models_are_not_asked() -> None:
    fetch = Fetcher({"b2": [ModelCard(id="m2")]})
    catalog = Catalog(fetch, started=7, clock=CLOCK)
    pool = Pool([LISTED, OPEN])
    found = await catalog.refresh(pool)
    assert fetch.asked == ["b2"]
    assert found == {"b2": frozenset({"m2"})}
    assert _ids(catalog, pool.with_discovered(found)) == ["a", "z", "m2"]


async def test_what_a_backend_said_of_its_model_is_told_on() -> None:
    fetch = Fetcher({"b2": [ModelCard(id="m", created=5, owned_by="vllm")]})
    catalog = Catalog(fetch, started=7, clock=CLOCK)
    pool = Pool([LISTED, OPEN])
    listing = catalog.listing(pool.with_discovered(await catalog.refresh(pool)))
    assert listing == [
        {"id": "a", "object": "model", "created": 7, "owned_by": "continuum-router"},
        {"id": "z", "object": "model", "created": 7, "owned_by": "continuum-router"},
        {"id": "m", "object": "model", "created": 5, "owned_by": "vllm"},
    ]


async def test_a_silent_backend_keeps_its_last_list() -> None:
    fetch = Fetcher({"b2": [ModelCard(id="m2")], "b3": None})
    catalog = Catalog(fetch, started=7, clock=CLOCK)
    pool = Pool([OPEN, OTHER])
    assert await catalog.refresh(pool) == {"b2": frozenset({"m2"})}
    fetch.answers = {"b2": None, "b3": [ModelCard(id="m3")]}
    assert await catalog.refresh(pool) == {"b2": frozenset({"m2"}), "b3": frozenset({"m3"})}


async def test_an_empty_list_is_an_answer() -> None:
    catalog = Catalog(Fetcher({"b2": []}), started=7, clock=CLOCK)
    pool = Pool([OPEN])
    found = await catalog.refresh(pool)
    assert found == {"b2": frozenset()}
    assert pool.with_discovered(found).for_model("m") == ()


async def test_a_backend_that_left_is_forgotten() -> None:
    catalog = Catalog(Fetcher({"b2": [ModelCard(id="m2")]}), started=7, clock=CLOCK)
    await catalog.refresh(Pool([OPEN]))
    assert await catalog.refresh(Pool([LISTED])) == {}


@pytest.mark.parametrize("known", [True, False])
async def test_it_refreshes_at_once_and_publishes_each_time(known: bool) -> None:
    fetch = Fetcher({"b2": [ModelCard(id="m2")] if known else None})
    catalog = Catalog(fetch, started=7, clock=CLOCK)
    published: list[Mapping[str, frozenset[str]]] = []
    done = asyncio.Event()

    def publish(found: Mapping[str, frozenset[str]]) -> None:
        published.append(found)
        done.set()

    task = asyncio.create_task(catalog.keep_fresh(lambda: Pool([OPEN]), publish))
    await done.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert published == [{"b2": frozenset({"m2"})} if known else {}]


async def test_an_alias_has_the_card_of_its_model() -> None:
    fetch = Fetcher({"b2": [ModelCard(id="m", created=5, owned_by="vllm")]})
    catalog = Catalog(fetch, started=7, clock=CLOCK)
    open_pool = Pool([backend("b2", models=frozenset(), aliases={"gpt": "m"})])
    pool = open_pool.with_discovered(await catalog.refresh(open_pool))
    listing = catalog.listing(pool)
    assert listing == [
        {"id": name, "object": "model", "created": 5, "owned_by": "vllm"} for name in ("gpt", "m")
    ]
    assert catalog.entry("gpt", pool) == {**listing[0], "id": "gpt"}
    assert catalog.entry("neither", pool) is None
