"""After a loss the tracker claims less than is true, never more, once suspects had their time."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.engine_events import Cleared, Medium
from support.chain_model import BLOCKS, ChainModel, Reader, audit, judge, removed, stored_singly

PATIENCE = 10.0
PATHS = st.lists(st.integers(0, len(BLOCKS) - 1), min_size=1, max_size=6).map(tuple)
MEDIA = st.sampled_from([Medium.GPU, Medium.GPU, Medium.GPU, Medium.CPU])


@dataclass(frozen=True)
class Happens:
    """An engine that stores a path, or removes the ``pick``-th resident copy (path None)."""

    path: tuple[int, ...] | None
    pick: int
    medium: Medium
    lost: bool


@dataclass(frozen=True)
class Wait:
    seconds: float


STEPS = st.lists(
    st.one_of(
        st.builds(Happens, PATHS, st.just(0), MEDIA, st.booleans()),
        st.builds(Happens, st.none(), st.integers(0, 9), MEDIA, st.booleans()),
        st.builds(Happens, st.none(), st.integers(0, 9), MEDIA, st.just(False)),
        st.builds(Wait, st.sampled_from([0.2, 3.0, 11.0])),
    ),
    min_size=10,
    max_size=50,
)


class Play:
    def __init__(self) -> None:
        self.tracker = ChainTracker(doubt_seconds=PATIENCE)
        self.model = ChainModel()
        self.reader = Reader()
        self.now = 100.0

    def step(self, step: object) -> None:
        if isinstance(step, Wait):
            self.now += step.seconds
            self.read()
            return
        assert isinstance(step, Happens)
        events = self.store(step) if step.path is not None else self.remove(step)
        if step.lost:
            self.tracker.suspect(self.now)
        else:
            for event in events:
                self.tracker.apply(event, self.now)
        audit(self.tracker)

    def store(self, step: Happens) -> list:
        """As an engine does: what is resident is used, the rest of the path is stored."""
        path, start = step.path, 0
        assert path is not None
        while start < len(path) and self.model.copies[path[: start + 1], step.medium]:
            start += 1
        if start == len(path):
            start -= 1  # the last block is computed anew: one copy more
        on_gpu = all(self.model.copies[path[:n], Medium.GPU] for n in range(1, len(path) + 1))
        if step.medium is Medium.CPU and not on_gpu:
            return []  # what is offloaded was on the GPU
        self.model.store(path, start, step.medium)
        return stored_singly(path, start, step.medium)

    def remove(self, step: Happens) -> list:
        """Tail first: a block goes when none below it is resident."""
        copies = self.model.copies
        ends = [
            path
            for path in self.model.paths()
            if copies[path, step.medium]
            and not any(
                copies[other, medium]
                for other in self.model.paths()
                if other[:-1] == path
                for medium in Medium
            )
        ]
        if not ends:
            return []
        path = ends[step.pick % len(ends)]
        self.model.remove(path, step.medium)
        return [removed(path, step.medium)]

    def read(self) -> None:
        for question in self.tracker.questions(99, self.now):
            self.tracker.answer(question.node, judge(question), self.now)
        audit(self.tracker)
        self.reader.read(self.tracker.drain(self.now), self.now)
        audit(self.tracker)
        sure = {key for key, _, _ in self.tracker.snapshot()} - self.tracker.doubted()
        assert sure <= set(self.reader.known)


@given(STEPS)
@settings(max_examples=400, deadline=None)
def test_nothing_is_claimed_beyond_its_time_that_the_engine_does_not_hold(script) -> None:
    play = Play()
    for step in script:
        play.step(step)
    for _ in range(4):
        play.step(Wait(11.0))
    true = play.model.expected()
    for key, (tokens, warm) in play.reader.known.items():
        assert key in true
        assert tokens <= true[key][0] or true[key][1] != warm
        assert warm or not true[key][1]
    assert play.tracker.doubted() == frozenset()


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_what_is_stored_after_the_last_loss_is_known_at_once(script) -> None:
    play = Play()
    for step in script:
        play.step(step)
    path = (1, 2, 1)
    play.model.clear()
    play.tracker.apply(Cleared(), play.now)
    play.step(Happens(path, 0, Medium.GPU, False))
    play.step(Wait(0.2))
    play.step(Wait(0.2))
    assert play.reader.known == play.model.expected()
