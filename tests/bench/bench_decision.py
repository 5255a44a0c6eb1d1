"""Cost of one routing decision, JSON parsing excluded, and of an index with a million entries.

    .venv/bin/python tests/bench/bench_decision.py [--quick]

Composite mode: index lookup and selection for a request whose prefix key is known. Cost mode: cut
and hash a prompt of 20 KB, walk the index, weigh every backend. Both grow with the backends.
"""

import argparse
import random
import resource
import time
from collections.abc import Callable

import orjson

from continuum_router.backends.fleet import Fleet
from continuum_router.backends.holding import Tier
from continuum_router.backends.pieces import Pieces, piece_end
from continuum_router.backends.pool import Backend
from continuum_router.config.backends import BackendType
from continuum_router.config.kv_cache_index import ScoringConfig
from continuum_router.kv_index.index import MemoryKvIndex
from continuum_router.kv_index.lookup import IndexLookup
from continuum_router.kv_index.piece_index import PieceIndex
from continuum_router.providers.piecer import Piecer
from continuum_router.request import Endpoint, RequestRules, parse_generate
from continuum_router.routing.cost_score import CostScorer
from continuum_router.routing.kv_score import KvScorer
from continuum_router.routing.selector import Selector
from continuum_router.routing.strategies import Ask, RoundRobin
from continuum_router.routing.token_ratio import TokenRatios
from continuum_router.routing.work_ledger import WorkLedger
from continuum_shared.config.kinds import BackendUrl
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey

FLEETS = (8, 64, 1000)
RULES = RequestRules()


def backends(count: int) -> tuple[Backend, ...]:
    """That many."""
    return tuple(
        Backend(name=f"b{n}", type=BackendType.VLLM, url=BackendUrl.parse("http://b.invalid"))
        for n in range(count)
    )


def body(tail: str = "") -> bytes:
    """A conversation of 20 KB in eleven messages."""
    turns = [{"role": "system", "content": "s" * 2000}]
    turns += [{"role": ("user", "assistant")[n % 2], "content": "x" * 1780} for n in range(10)]
    turns.append({"role": "user", "content": tail})
    return orjson.dumps({"model": "m", "messages": turns})


def micros(act: Callable[[], object], times: int) -> float:
    """Microseconds of one call: the best of seven rounds, so that a busy machine counts less."""
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(times):
            act()
        best = min(best, (time.perf_counter() - start) / times)
    return best * 1e6


def composite(count: int, times: int) -> float:
    """Lookup and selection with half of the backends holding the prefix, at most 64."""
    members, metrics = backends(count), Metrics()
    index = MemoryKvIndex(max_entries=100_000, ttl=600.0)
    request = parse_generate(Endpoint.CHAT, body(), RULES)
    assert request.prefix is not None
    for member in members[: min(64, count // 2)]:
        index.set(member.name, request.prefix, 5000, Tier.GPU_HOT, time.monotonic())
    fleet = Fleet(metrics, (member.name for member in members))
    lookup = IndexLookup(index, metrics, clock=time.monotonic)
    selector = Selector(
        strategy=RoundRobin(), scorer=KvScorer(ScoringConfig()), success_rate=fleet.success_rate
    )
    prefix = request.prefix

    def decide() -> None:
        ask = Ask(
            model="m", prefix=prefix, candidates=members, ring_members=members, loads=fleet.loads
        )
        selector.select(ask, holdings=lookup.holdings(prefix), now=time.monotonic())

    return micros(decide, times)


def cost(count: int, times: int) -> tuple[float, float, float]:
    """The whole decision; cutting alone; begin and end of an attempt, which come after it."""
    members = backends(count)
    fleet = Fleet(Metrics(), (member.name for member in members))
    index = PieceIndex(max_entries=1_000_000, ttl=600.0)
    scorer = CostScorer(
        ScoringConfig(), index=index, ledger=WorkLedger(time.monotonic), ratios=TokenRatios()
    )
    selector = Selector(
        strategy=RoundRobin(), scorer=None, success_rate=fleet.success_rate, cost=scorer
    )
    piecer = Piecer(RULES)
    request = parse_generate(Endpoint.CHAT, body(), RULES)
    for place, member in enumerate(members):
        cut = piecer.of(parse_generate(Endpoint.CHAT, body(str(place)), RULES))
        assert cut is not None
        part = Pieces(digests=cut.digests[: place % 12], size=piece_end(place % 12))
        index.sent(member.name, part, time.monotonic())
        scorer.ledger.lane(member.name).sent(1, 5000.0, 5000.0, time.monotonic())

    def ask() -> Ask:
        return Ask(
            model="m",
            prefix=request.prefix,
            candidates=members,
            ring_members=members,
            loads=fleet.loads,
            pieces=piecer.of(request),
        )

    def decide() -> None:
        selector.select(ask(), holdings=None, now=time.monotonic())

    def attempt() -> None:
        choice = selector.select(asked, holdings=None, now=time.monotonic())
        assert choice is not None
        with fleet.lease(choice.backend.name, ticket=choice.ticket):
            assert choice.ticket is not None
            choice.ticket.first_token()

    asked = ask()
    whole = micros(decide, times)
    choosing = micros(lambda: selector.select(asked, holdings=None, now=0.0), times)
    return whole, micros(lambda: piecer.of(request), times), micros(attempt, times) - choosing


def resident() -> float:
    """Megabytes of this process now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 1e6


def million(pairs: int) -> None:
    """Memory of that many (piece, backend) pairs, and the walk among them."""
    rng = random.Random(1)
    before = resident()
    index = PieceIndex(max_entries=pairs, ttl=600.0, room_tokens=10**9)
    names = tuple(f"b{n}" for n in range(8))
    prompt = None
    started = time.perf_counter()
    key = PrefixKey(rng.randbytes(32))
    for turn in range(pairs // 10):
        if turn % 20 == 0:
            key = PrefixKey(rng.randbytes(32))
        digests = tuple(rng.randbytes(16) for _ in range(10))
        prompt = Pieces(digests=digests, size=piece_end(10), group=key)
        index.sent(names[turn % 8], prompt, float(turn))
    took = time.perf_counter() - started
    assert prompt is not None
    walked = prompt
    walk = micros(lambda: index.depths(walked, names), 2000)
    stats = index.stats()
    print(
        f"{stats.pairs:>9,} pairs: {resident() - before:6.1f} MB, filled in {took:.1f} s, "
        f"walk of 10 pieces {walk:.2f} us"
    )


def main() -> None:
    """Print it all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rounds and pairs")
    quick = parser.parse_args().quick
    for count in FLEETS:
        times = max(20, (300 if quick else 3000) * 8 // count)
        whole, cutting, books = cost(count, times)
        print(
            f"{count:>5} backends: composite {composite(count, times):7.1f} us; cost mode "
            f"{whole:7.1f} us, of which cutting 20 KB {cutting:.1f} us; books of an attempt "
            f"{books:.1f} us"
        )
    for pairs in (10_000, 100_000) if quick else (10_000, 1_000_000):
        million(pairs)


if __name__ == "__main__":
    main()
