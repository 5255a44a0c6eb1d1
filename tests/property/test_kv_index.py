"""The memory index against a naive model: a flat table of entries, searched in full each time."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from continuum_router.backends.holding import Holding, Tier
from continuum_router.kv_index.index import MemoryKvIndex
from support.backends import prefix

BACKENDS = st.sampled_from(["a", "b", "c"])
KEYS = st.sampled_from([prefix(f"k{i}") for i in range(6)])
TOKENS = st.none() | st.integers(0, 5000)
TIERS = st.sampled_from(list(Tier))
TTL = 10.0


class IndexModel(RuleBasedStateMachine):
    """``table``: (backend, prefix) -> (tokens, tier, until)."""

    def __init__(self):
        super().__init__()
        self.index = MemoryKvIndex(max_entries=100, ttl=TTL)
        self.table = {}
        self.now = 0.0

    def alive(self, pair):
        return pair in self.table and self.table[pair][2] > self.now

    def put(self, backend, key, tokens, tier):
        if tokens is None:
            tokens = self.table[(backend, key)][0] if self.alive((backend, key)) else 1
        self.table[(backend, key)] = (tokens, tier, self.now + TTL)

    @rule(backend=BACKENDS, key=KEYS, tokens=TOKENS, tier=TIERS)
    def set(self, backend, key, tokens, tier):
        self.index.set(backend, key, tokens, tier, self.now)
        self.put(backend, key, tokens, tier)

    @rule(backend=BACKENDS, key=KEYS)
    def remove(self, backend, key):
        self.index.remove(backend, key)
        self.table.pop((backend, key), None)

    @rule(backend=BACKENDS)
    def purge(self, backend):
        self.index.purge(backend)
        self.table = {pair: v for pair, v in self.table.items() if pair[0] != backend}

    @rule(backend=BACKENDS, records=st.dictionaries(KEYS, st.tuples(TOKENS, TIERS)))
    def swap(self, backend, records):
        self.index.swap(backend, records, self.now)
        self.table = {
            (name, key): value
            for (name, key), value in self.table.items()
            if name != backend or key in records
        }
        for key, (tokens, tier) in records.items():
            self.put(backend, key, tokens, tier)

    @rule(backend=BACKENDS, key=KEYS)
    def refresh(self, backend, key):
        self.index.refresh(backend, key, self.now)
        if self.alive((backend, key)):
            tokens, tier, _ = self.table[(backend, key)]
            self.table[(backend, key)] = (tokens, tier, self.now + TTL)

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def sweep(self):
        self.index.expire(self.now)

    @rule(key=KEYS)
    def look_up(self, key):
        expected = {
            name: Holding(tokens=tokens, tier=tier)
            for (name, k), (tokens, tier, until) in self.table.items()
            if k == key and until > self.now
        }
        assert self.index.holdings(key, self.now) == expected

    @invariant()
    def one_by_one_they_agree(self):
        for key in {pair[1] for pair in self.table}:
            for name in ("a", "b", "c"):
                found = self.index.holding(name, key, self.now)
                assert (found is not None) == self.alive((name, key))

    @invariant()
    def counts_agree(self):
        stats = self.index.stats()
        alive = [pair for pair in self.table if self.alive(pair)]
        assert len(alive) <= stats.entry_count <= len(self.table)
        assert len({pair[1] for pair in alive}) <= stats.prefix_count <= stats.entry_count


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
