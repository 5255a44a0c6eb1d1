"""The product's own index, scorers and strategies as policies of the fleet simulator (J12).

A policy gives the product what it has in production and nothing else: keys made of the prompt, its
own counts, times of first tokens, usage, and KV events reduced to the wire contract (prefix,
resident tokens, evicted when the last block goes). Time is the simulator's. The simulator itself is
not part of the project; `scripts/bench_routing.py` puts it on the path.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from continuum_router.backends.fleet import Ticket
from continuum_router.backends.holding import Tier
from continuum_router.backends.pieces import DIGEST_SIZE, HEADS, Pieces
from continuum_router.backends.pool import Backend
from continuum_router.config.backends import BackendType
from continuum_router.config.kv_cache_index import ScoringConfig
from continuum_router.config.routing import PrefixRoutingConfig
from continuum_router.kv_index.index import MemoryKvIndex
from continuum_router.kv_index.lookup import IndexLookup
from continuum_router.kv_index.piece_index import DEFAULT_ROOM_TOKENS, PieceIndex
from continuum_router.routing.cost_score import CostScorer
from continuum_router.routing.kv_score import KvScorer
from continuum_router.routing.selector import Choice, Selector
from continuum_router.routing.strategies import Ask, PrefixAwareHash
from continuum_router.routing.token_ratio import TokenRatios
from continuum_router.routing.work_ledger import WorkLedger
from continuum_shared.config.kinds import BackendUrl
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey

BLOCK = 512
"""Tokens of one of the simulator's blocks."""

MODEL = "m"
TTL = 600.0


class SimRequest(Protocol):
    """What a router may read of a simulated request. `hit` only when it is done: usage."""

    rid: int
    chain: Sequence[int]
    key: int
    n_in: int
    hit: int


class SimState(Protocol):
    """What a router may see of the fleet."""

    now: float
    inflight: list[int]
    success: list[float]


def engine_name(engine: int) -> str:
    """The simulator's ring knows its engines by these names."""
    return f"e{engine}"


def engines(count: int) -> tuple[Backend, ...]:
    """That many backends."""
    return tuple(
        Backend(
            name=engine_name(engine),
            type=BackendType.VLLM,
            url=BackendUrl.parse(f"http://{engine_name(engine)}.invalid"),
        )
        for engine in range(count)
    )


def system_key(block: int) -> PrefixKey:
    """The prefix key of a simulated system prompt; its ring point is the simulator's."""
    return PrefixKey(hashlib.sha256(f"k{block}".encode()).digest())


def pieces_of(request: SimRequest) -> Pieces:
    """The pieces that a prompt of four bytes a token would be cut into.

    A block of 512 tokens is a piece of 2 KiB; the first one is cut in three.
    """
    digests: list[bytes] = []
    for place, block in enumerate(request.chain):
        digest = block.to_bytes(DIGEST_SIZE, "big", signed=True)
        if place == 0:
            digests += [b"h%d%b" % (head, digest[2:]) for head in range(len(HEADS) - 1)]
        digests.append(digest)
    return Pieces(
        digests=tuple(digests), size=request.n_in * 4, group=bytes(system_key(request.key))
    )


class Tier1Policy:
    """`selection_strategy: PrefixAwareHash` as it comes."""

    name = "product_tier1"
    wants_events = False

    def __init__(self, n: int, rng: random.Random) -> None:
        del rng  # nothing in this tier is left to chance
        self.now = 0.0
        self.loads = dict.fromkeys((engine_name(engine) for engine in range(n)), 0)
        self.success: list[float] = [1.0] * n
        self.members = engines(n)
        self.numbers = {backend.name: number for number, backend in enumerate(self.members)}
        routing = PrefixRoutingConfig()
        self.strategy = PrefixAwareHash(
            load_factor_epsilon=routing.load_factor_epsilon,
            load_floor=routing.load_floor,
            virtual_nodes=routing.virtual_nodes,
        )
        self.selector = Selector(
            strategy=self.strategy,
            scorer=self.make_scorer(),
            success_rate=lambda name: self.success[self.numbers[name]],
        )

    def make_scorer(self) -> KvScorer | None:
        """Tier 1 has none."""
        return None

    def ask(self, request: SimRequest) -> Ask:
        """The selection that this request is."""
        return Ask(
            model=MODEL,
            prefix=system_key(request.key),
            candidates=self.members,
            ring_members=self.members,
            loads=self.loads,
        )

    def decide(self, request: SimRequest, state: SimState) -> Choice:
        """One selection of the product."""
        self.now = state.now
        self.success = state.success
        choice = self.selector.select(self.ask(request), holdings=None, now=state.now)
        assert choice is not None
        return choice

    def choose(self, request: SimRequest, state: SimState) -> int:
        """The simulator's question."""
        return self.numbers[self.decide(request, state).backend.name]

    def on_dispatch(self, request: SimRequest, engine: int, now: float) -> None:
        """The request was sent."""
        self.loads[engine_name(engine)] += 1

    def on_first(self, request: SimRequest, engine: int, now: float) -> None:
        """Its first token passed by."""

    def on_done(self, request: SimRequest, engine: int, now: float) -> None:
        """Its answer has ended."""
        self.loads[engine_name(engine)] -= 1

    def on_kv_event(
        self, engine: int, kind: str, blocks: Sequence[int], key: int, depth: int, now: float
    ) -> None:
        """This tier listens to nothing."""


class Tier4Policy(Tier1Policy):
    """`kv_cache_index` in composite mode, to the letter: no holder bound, loads up to 100 ms old.

    The count of a prefix is that of the longest chain which was stored under it, and the prefix
    goes when its first block goes: what the simulator's own formula keeps.
    """

    name = "product_tier4"
    wants_events = True
    scoring = ScoringConfig(holder_load_bound=None, load_snapshot_ms=100)

    def __init__(self, n: int, rng: random.Random) -> None:
        super().__init__(n, rng)
        self.index = MemoryKvIndex(max_entries=100_000, ttl=TTL)
        self.lookup = IndexLookup(
            self.index,
            Metrics(),
            clock=lambda: self.now,
            max_age=self.scoring.load_snapshot_ms / 1000,
        )
        self._longest: dict[tuple[int, int], int] = {}

    def make_scorer(self) -> KvScorer | None:
        """The composite score."""
        return KvScorer(self.scoring)

    def decide(self, request: SimRequest, state: SimState) -> Choice:
        """Ask the index, then select."""
        self.now = state.now
        self.success = state.success
        ask = self.ask(request)
        assert ask.prefix is not None
        choice = self.selector.select(ask, holdings=self.lookup.holdings(ask.prefix), now=state.now)
        assert choice is not None
        return choice

    def on_kv_event(
        self, engine: int, kind: str, blocks: Sequence[int], key: int, depth: int, now: float
    ) -> None:
        """cache_created with the longest chain's tokens; cache_evicted."""
        if kind == "stored":
            tokens = max(self._longest.get((engine, key), 0), depth * BLOCK)
            self._longest[engine, key] = tokens
            self.index.set(engine_name(engine), system_key(key), tokens, Tier.GPU_HOT, now)
            return
        for block in blocks:
            # A key is its first block's number, so any other block's number finds nothing here.
            if self._longest.pop((engine, block), None) is not None:
                self.index.remove(engine_name(engine), system_key(block))


class WireReducer:
    """Block events of one engine as the listener's records: what a router really gets.

    A record is (key, tokens of the longest resident chain, tokens of all chains); no tokens at all
    when the last block of the prefix has gone.
    """

    def __init__(self) -> None:
        self._key_of: dict[int, int] = {}
        self._depth: dict[int, dict[int, int]] = {}

    def records(
        self, kind: str, blocks: Sequence[int], key: int, depth: int
    ) -> list[tuple[int, int, int]]:
        """The records that one block event leads to."""
        keys = set()
        if kind == "stored":
            for place, block in enumerate(blocks, depth - len(blocks) + 1):
                self._key_of[block] = key
                self._depth.setdefault(key, {})[block] = place
            keys.add(key)
        else:
            for block in blocks:
                found = self._key_of.pop(block, None)
                if found is not None:
                    self._depth[found].pop(block, None)
                    keys.add(found)
        records = []
        for one in keys:
            resident = self._depth.get(one)
            if resident:
                longest = max(resident.values()) * BLOCK
                records.append((one, longest, len(resident) * BLOCK))
            else:
                self._depth.pop(one, None)
                records.append((one, 0, 0))
        return records


class CostPolicy(Tier1Policy):
    """`scoring.mode: cost`: pieces of text, usage, and events reduced to the wire contract."""

    name = "product_cost"
    wants_events = True
    publishes_room = True
    tells_total = False
    room_tokens = DEFAULT_ROOM_TOKENS

    def __init__(self, n: int, rng: random.Random) -> None:
        super().__init__(n, rng)
        self.index = PieceIndex(max_entries=1_000_000, ttl=TTL, room_tokens=self.room_tokens)
        self.cost = CostScorer(
            ScoringConfig(),
            index=self.index,
            ledger=WorkLedger(lambda: self.now),
            ratios=TokenRatios(),
        )
        self.selector = Selector(
            strategy=self.strategy,
            scorer=None,
            success_rate=lambda name: self.success[self.numbers[name]],
            cost=self.cost,
        )
        self._chosen: Ticket | None = None
        self._tickets: dict[int, Ticket] = {}
        self._wires = [WireReducer() for _ in range(n)]

    def set_capacity(self, blocks: int) -> None:
        """What an engine publishes of its KV room."""
        if self.publishes_room:
            for backend in self.members:
                self.index.set_room(backend.name, blocks * BLOCK)

    def ask(self, request: SimRequest) -> Ask:
        """The selection, with the prompt's pieces."""
        return replace(super().ask(request), pieces=pieces_of(request))

    def choose(self, request: SimRequest, state: SimState) -> int:
        """The simulator's question."""
        choice = self.decide(request, state)
        self._chosen = choice.ticket
        return self.numbers[choice.backend.name]

    def on_dispatch(self, request: SimRequest, engine: int, now: float) -> None:
        """The request was sent."""
        super().on_dispatch(request, engine, now)
        self.now = now
        assert self._chosen is not None
        self._tickets[request.rid] = self._chosen
        self._chosen.begun()

    def on_first(self, request: SimRequest, engine: int, now: float) -> None:
        """Its first token passed by."""
        self.now = now
        self._tickets[request.rid].first_token()

    def on_done(self, request: SimRequest, engine: int, now: float) -> None:
        """Its answer has ended, with the usage at its end."""
        super().on_done(request, engine, now)
        self.now = now
        ticket = self._tickets.pop(request.rid)
        ticket.usage(request.n_in, request.hit * BLOCK)
        ticket.ended()

    def on_kv_event(
        self, engine: int, kind: str, blocks: Sequence[int], key: int, depth: int, now: float
    ) -> None:
        """One record of the wire contract for each prefix that the event is about."""
        self.now = now
        name = engine_name(engine)
        for one, longest, total in self._wires[engine].records(kind, blocks, key, depth):
            if longest:
                tokens = total if self.tells_total else None
                self.index.resident(name, system_key(one), Tier.GPU_HOT, tokens, now)
            else:
                self.index.evict(name, system_key(one))


class CostNoEventsPolicy(CostPolicy):
    """The same for engines that publish nothing but their KV room."""

    name = "product_cost_no_events"
    wants_events = False


class CostBlindPolicy(CostNoEventsPolicy):
    """The same for engines that publish nothing at all: the room is learned from usage."""

    name = "product_cost_blind"
    publishes_room = False


class CostTotalPolicy(CostPolicy):
    """Events that also tell the tokens of all chains of a prefix together; the room is unknown."""

    name = "product_cost_total"
    tells_total = True
    publishes_room = False


class CostTotalRoomPolicy(CostTotalPolicy):
    """Both."""

    name = "product_cost_total_room"
    publishes_room = True


class Tier4DefaultPolicy(Tier4Policy):
    """Composite mode as the product ships it: holder bound 0.25, floor 4, live loads."""

    name = "product_tier4_default"
    scoring = ScoringConfig()
