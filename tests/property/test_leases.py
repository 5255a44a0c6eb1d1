"""In-flight counts after any interleaving of leases and reloads."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from continuum_router.backends.fleet import AttemptResult, Fleet
from continuum_shared.metrics import Metrics

NAMES = st.sampled_from(["a", "b", "c", "d"])


class Leases(RuleBasedStateMachine):
    """The model: a list of leases that are held, and the set of configured names."""

    @initialize(names=st.sets(NAMES))
    def start(self, names):
        self.metrics = Metrics()
        self.fleet = Fleet(self.metrics, names)
        self.configured = set(names)
        self.held = []
        self.ended = []

    @rule(name=NAMES, by_prefix=st.booleans())
    def begin(self, name, by_prefix):
        self.held.append((name, by_prefix, self.fleet.lease(name, by_prefix).begin()))

    @rule(name=NAMES)
    def make_and_never_begin(self, name):
        self.fleet.lease(name).end()

    @rule(data=st.data())
    def end(self, data):
        if self.held:
            at = data.draw(st.integers(0, len(self.held) - 1))
            _, _, lease = self.held.pop(at)
            lease.end()
            self.ended.append(lease)

    @rule(data=st.data())
    def end_again(self, data):
        if self.ended:
            self.ended[data.draw(st.integers(0, len(self.ended) - 1))].end()

    @rule(name=NAMES)
    def fail_inside(self, name):
        try:
            with self.fleet.lease(name):
                raise KeyError
        except KeyError:
            pass

    @rule(names=st.sets(NAMES))
    def reload(self, names):
        self.fleet.reconcile(names)
        self.configured = set(names)

    @rule(name=NAMES, result=st.sampled_from(list(AttemptResult)))
    def record(self, name, result):
        self.fleet.record(name, result)
        assert 0.0 <= self.fleet.success_rate(name) <= 1.0

    @invariant()
    def counts_are_those_of_the_held_leases(self):
        if not hasattr(self, "fleet"):
            return
        counts = Counter(name for name, _, _ in self.held)
        known = self.configured | set(counts)
        assert dict(self.fleet.loads) == {name: counts[name] for name in known}
        placed = Counter(name for name, by_prefix, _ in self.held if by_prefix)
        assert dict(self.fleet.by_prefix) == {name: placed[name] for name in known}
        for name in known:
            shown = self.metrics.registry.get_sample_value(
                "continuum_backend_in_flight", {"backend": name}
            )
            assert shown == counts[name]

    def teardown(self):
        for _, _, lease in getattr(self, "held", ()):
            lease.end()
        if hasattr(self, "fleet"):
            assert set(self.fleet.loads) == self.configured
            assert not any(self.fleet.loads.values())


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
