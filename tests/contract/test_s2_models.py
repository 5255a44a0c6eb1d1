"""Every sentence with a number in S2's section on model aggregation, on a clock of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from continuum_router.backends.pool import Backend, Pool
from continuum_router.models.catalog import Catalog, CatalogRules, FetchFailed, ModelCard
from support.dispatch import backend
from support.virtual_time import on_virtual_time

A = backend("a", models=frozenset())
B = backend("b", models=frozenset())
CARD = [ModelCard(id="m")]


class Rig:
    """Backends by name: a list, or seconds after which a try times out, or a FetchFailed."""

    def __init__(self, *members: Backend, rules: CatalogRules | None = None) -> None:
        self.pool = Pool(members)
        self.does: dict[str, Sequence[ModelCard] | float | FetchFailed] = {}
        self.tries: list[tuple[str, float]] = []
        self.passes: list[float] = []
        self.errors: list[str] = []
        self.delay = 0.0
        self.catalog = Catalog(
            self._fetch,
            started=7,
            clock=self.now,
            rules=rules,
            on_transient=self.errors.append,
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _fetch(self, asked: Backend) -> Sequence[ModelCard]:
        self.tries.append((asked.name, self.now()))
        does = self.does.get(asked.name, CARD)
        if isinstance(does, FetchFailed):
            raise does
        if isinstance(does, float):
            await asyncio.sleep(does)
            raise FetchFailed("timeout", transient=True)
        await asyncio.sleep(self.delay)
        return does

    async def timed(self, call: Awaitable[object]) -> float:
        before = self.now()
        await call
        return self.now() - before

    def count(self, name: str) -> int:
        return sum(1 for tried, _when in self.tries if tried == name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(
            self.catalog.keep_fresh(
                lambda: self.pool, lambda _found: self.passes.append(self.now())
            )
        )
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def quiet(**more: int) -> CatalogRules:
    return CatalogRules(check_interval=None, **more)


@on_virtual_time
async def test_a_silent_backend_costs_16_seconds_then_5_and_16_again_after_it() -> None:
    rig = Rig(A, B)
    rig.does = {"a": 5.0}
    assert await rig.timed(rig.catalog.refresh(rig.pool)) == pytest.approx(16.0)
    assert await rig.timed(rig.catalog.refresh(rig.pool)) == pytest.approx(5.0)
    rig.does = {}
    await rig.catalog.refresh(rig.pool)
    rig.does = {"a": 5.0}
    assert await rig.timed(rig.catalog.refresh(rig.pool)) == pytest.approx(16.0)


@on_virtual_time
async def test_all_are_asked_at_once_so_the_slowest_decides() -> None:
    rig = Rig(A, B)
    rig.does = {"a": 5.0, "b": 5.0}
    assert await rig.timed(rig.catalog.refresh(rig.pool)) == pytest.approx(16.0)


@on_virtual_time
async def test_with_all_failed_those_tried_once_get_the_rest_of_their_tries() -> None:
    rig = Rig(A, B)
    rig.does = {"a": 5.0}
    await rig.catalog.refresh(rig.pool)
    rig.does = {"a": 5.0, "b": FetchFailed("refused", transient=True)}
    rig.tries.clear()
    await rig.catalog.refresh(rig.pool)
    assert (rig.count("a"), rig.count("b")) == (3, 3)


@on_virtual_time
async def test_a_failed_single_try_is_counted_and_keeps_the_last_list() -> None:
    rig = Rig(A, B)
    await rig.catalog.refresh(rig.pool)
    rig.does = {"a": 5.0}
    await rig.catalog.refresh(rig.pool)
    assert rig.errors == ["a"] * 3
    found = await rig.catalog.refresh(rig.pool)
    assert rig.errors == ["a"] * 4
    assert found == {"a": frozenset({"m"}), "b": frozenset({"m"})}


@on_virtual_time
async def test_only_transient_errors_are_tried_again() -> None:
    rig = Rig(A)
    rig.does = {"a": FetchFailed("status_404")}
    await rig.catalog.refresh(rig.pool)
    assert (rig.count("a"), rig.errors) == (1, [])


@on_virtual_time
async def test_checks_each_10_seconds_renew_after_48() -> None:
    rig = Rig(A)
    async with rig.running():
        await asyncio.sleep(101)
    assert rig.passes == [0.0, 50.0, 100.0]


@on_virtual_time
async def test_one_pass_for_many_requests_at_the_ttl_and_none_of_them_waits() -> None:
    rig = Rig(A, rules=quiet())
    async with rig.running():
        await asyncio.sleep(60)
        rig.delay = 3.0
        waits = await asyncio.gather(*(rig.timed(rig.catalog.ready(rig.pool)) for _ in range(50)))
        assert waits == [0.0] * 50
        await asyncio.sleep(1)
        assert await rig.timed(rig.catalog.ready(rig.pool)) == 0.0
        await asyncio.sleep(9)
    assert [when for _name, when in rig.tries] == [0.0, 60.0]


@pytest.mark.parametrize(("age", "wait"), [(179.0, 0.0), (180.0, 3.0)])
def test_requests_wait_from_180_seconds_on(age: float, wait: float) -> None:
    @on_virtual_time
    async def run() -> None:
        rig = Rig(A, rules=quiet())
        async with rig.running():
            await asyncio.sleep(0)
            await rig.catalog.ready(rig.pool)
            rig.delay = 3.0
            await asyncio.sleep(age)
            waited = await asyncio.gather(*(rig.timed(rig.catalog.ready(rig.pool)) for _ in "12"))
            assert waited == [wait, wait]
            await asyncio.sleep(5)
        assert len(rig.tries) == 2

    run()


@on_virtual_time
async def test_recoveries_are_gathered_for_5_seconds() -> None:
    rig = Rig(A, rules=quiet())
    async with rig.running():
        await asyncio.sleep(10)
        for _ in range(4):
            rig.catalog.recovered("a")
            await asyncio.sleep(1)
        await asyncio.sleep(20)
    assert rig.passes == [0.0, 15.0]


@on_virtual_time
async def test_an_invalid_list_is_shown_while_the_new_one_is_made() -> None:
    rig = Rig(A, rules=quiet())
    async with rig.running():
        await asyncio.sleep(100)
        rig.delay = 3.0
        rig.pool = Pool([A, B])
        rig.catalog.invalidate()
        assert await rig.timed(rig.catalog.ready(rig.pool)) == 0.0
        assert rig.catalog.known(rig.pool) == {"a": frozenset({"m"})}
        await asyncio.sleep(4)
        assert rig.catalog.known(rig.pool) == {"a": frozenset({"m"}), "b": frozenset({"m"})}


@on_virtual_time
async def test_a_change_during_a_pass_makes_another() -> None:
    rig = Rig(A, rules=quiet())
    rig.delay = 3.0
    async with rig.running():
        await asyncio.sleep(1)
        rig.pool = Pool([A, B])
        rig.catalog.invalidate()
        await asyncio.sleep(10)
    assert rig.passes == [3.0, 6.0]
    assert rig.count("b") == 1


@on_virtual_time
async def test_a_forced_refresh_waits_and_so_does_who_asks_meanwhile() -> None:
    rig = Rig(A, rules=quiet())
    async with rig.running():
        await asyncio.sleep(1)
        rig.delay = 3.0
        calls: list[Callable[[], Awaitable[None]]] = [
            rig.catalog.force,
            lambda: rig.catalog.ready(rig.pool),
        ]
        assert await asyncio.gather(*(rig.timed(call()) for call in calls)) == [3.0, 3.0]
    assert len(rig.tries) == 2


@on_virtual_time
async def test_empty_results_back_off_from_5_seconds_to_60() -> None:
    rig = Rig(A, rules=CatalogRules(check_interval=1.0))
    rig.does = {"a": []}
    async with rig.running():
        await asyncio.sleep(200)
    assert rig.passes == [0.0, 5.0, 15.0, 35.0, 75.0, 135.0, 195.0]


@pytest.mark.parametrize(("last_wins", "owner"), [(False, "first"), (True, "second")])
def test_of_two_entries_one_wins(last_wins: bool, owner: str) -> None:
    @on_virtual_time
    async def run() -> None:
        rig = Rig(A, B, rules=CatalogRules(last_wins=last_wins, max_total=1))
        rig.does = {
            "a": [ModelCard(id="m", owned_by="first"), ModelCard(id="n")],
            "b": [ModelCard(id="m", owned_by="second")],
        }
        pool = rig.pool.with_discovered(await rig.catalog.refresh(rig.pool))
        shown = rig.catalog.listing(pool)
        assert [(entry["id"], entry["owned_by"]) for entry in shown] == [("m", owner)]

    run()
