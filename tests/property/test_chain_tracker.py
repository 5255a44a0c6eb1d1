"""The chain tracker against a naive model that keeps whole chains (design/chains.md, invariants).

Each example is a script of engine events, questions, late answers and drains. After every step the
tracker's incremental state is recomputed and compared; at the end, when everything asked was
answered and time has passed, what a reader of its records knows must equal the model.
"""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_kv_listener.attribution_types import Question
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.chain_stats import ChainLimits, TokenCount
from continuum_kv_listener.engine_events import Cleared, DropReason, Medium, Removed
from support.chain_model import (
    BLOCKS,
    ChainModel,
    Reader,
    audit,
    hash_of,
    judge,
    misjudge,
    removed,
    stored,
    stored_singly,
)

PATHS = st.lists(st.sampled_from([0, 0, 1, 2, 2, 3, 4]), min_size=1, max_size=7).map(tuple)
PICKS = st.integers(0, 8)
"""Which known path, most recently used first."""
MEDIA = st.sampled_from([Medium.GPU, Medium.GPU, Medium.GPU, Medium.CPU, Medium.DISK])


@dataclass(frozen=True)
class Store:
    path: tuple[int, ...]
    start: int
    medium: Medium


@dataclass(frozen=True)
class Restore:
    """Blocks that were stored once are stored again: a copy more, or back after all left."""

    pick: int
    back: int
    medium: Medium


@dataclass(frozen=True)
class Extend:
    """A block below a known path, whether its parent is still there or not."""

    pick: int
    block: int


@dataclass(frozen=True)
class Fell:
    """Every copy on the way from a known block down to the last one of a known path goes."""

    pick: int
    back: int


@dataclass(frozen=True)
class Remove:
    pick: int
    medium: Medium


@dataclass(frozen=True)
class RemoveStranger:
    path: tuple[int, ...]


@dataclass(frozen=True)
class Clear:
    pass


@dataclass(frozen=True)
class Ask:
    limit: int


@dataclass(frozen=True)
class Answer:
    pick: int


@dataclass(frozen=True)
class Fail:
    pick: int


@dataclass(frozen=True)
class Drain:
    wait: float


@dataclass(frozen=True)
class Settle:
    """Everything that can be asked now is asked and answered, and the records are read."""

    wait: float


def stores(whole: bool) -> st.SearchStrategy[Store]:
    start = st.just(0) if whole else st.sampled_from([0, 0, 0, 1, 2])
    return st.builds(
        lambda path, start, medium: Store(path, min(start, len(path) - 1), medium),
        PATHS,
        start,
        MEDIA,
    )


STEPS = st.one_of(
    stores(False),
    stores(False),
    st.builds(Remove, PICKS, MEDIA),
    st.builds(Restore, PICKS, st.integers(1, 4), MEDIA),
    st.builds(Restore, PICKS, st.integers(1, 4), MEDIA),
    st.builds(Extend, PICKS, st.integers(0, len(BLOCKS) - 1)),
    st.builds(Extend, PICKS, st.integers(0, len(BLOCKS) - 1)),
    st.builds(Fell, PICKS, st.integers(1, 4)),
    st.builds(RemoveStranger, PATHS),
    st.builds(Ask, st.integers(1, 3)),
    st.builds(Answer, st.integers(0, 5)),
    st.builds(Fail, st.integers(0, 5)),
    st.builds(Drain, st.sampled_from([0.0, 0.01, 0.05, 0.2, 2.0])),
    st.builds(Settle, st.sampled_from([0.0, 0.03, 0.2])),
    st.builds(Settle, st.sampled_from([0.0, 0.03, 0.2])),
    st.builds(Settle, st.sampled_from([0.0, 0.03, 0.2])),
    st.just(Clear()),
)
SCRIPTS = st.lists(STEPS, min_size=15, max_size=50)


class Play:
    """Runs a script on the tracker, the model and a reader at once."""

    def __init__(self, tracker: ChainTracker) -> None:
        self.tracker = tracker
        self.model = ChainModel()
        self.reader = Reader()
        self.open: list[Question] = []
        self.now = 1000.0
        self.judge = judge

    def step(self, step: object) -> None:
        match step:
            case Store(path, start, medium):
                for event in stored_singly(path, start, medium):
                    assert self.tracker.apply(event, self.now) == ()
                self.model.store(path, start, medium)
            case Restore(pick, back, medium):
                paths = self.model.paths()
                if paths:
                    path = paths[pick % len(paths)]
                    self.step(Store(path, max(0, len(path) - back), medium))
            case Extend(pick, block):
                paths = self.model.paths()
                if paths:
                    path = (*paths[pick % len(paths)], block)
                    self.step(Store(path, len(path) - 1, Medium.GPU))
            case Fell(pick, back):
                paths = self.model.paths()
                if paths:
                    path = paths[pick % len(paths)]
                    for end in range(len(path), max(0, len(path) - back), -1):
                        for medium in Medium:
                            for _ in range(self.model.copies[path[:end], medium]):
                                self.remove(path[:end], medium)
            case Remove(pick, medium):
                paths = self.model.paths()
                if paths:
                    self.remove(paths[pick % len(paths)], medium)
            case RemoveStranger(path):
                self.remove(path, Medium.GPU)
            case Clear():
                assert self.tracker.apply(Cleared(), self.now) == ()
                self.model.clear()
            case Ask(limit):
                asked = self.tracker.questions(limit, self.now)
                assert len(asked) <= limit
                for question in asked:
                    assert question.block_ends[-1] == len(question.tokens)
                    assert list(question.block_ends) == sorted(set(question.block_ends))
                self.open += asked
            case Answer(pick):
                if self.open:
                    question = self.open.pop(pick % len(self.open))
                    self.tracker.answer(question.node, self.judge(question), self.now)
            case Fail(pick):
                if self.open:
                    question = self.open.pop(pick % len(self.open))
                    self.tracker.retry(question.node, self.now + 0.5)
            case Settle(wait):
                while self.open:
                    self.step(Answer(0))
                self.step(Ask(9))
                while self.open:
                    self.step(Answer(0))
                self.step(Drain(wait))
            case Drain(wait):
                self.now += wait
                self.drain()

    def remove(self, path: tuple[int, ...], medium: Medium) -> None:
        known = self.model.remove(path, medium)
        drops = self.tracker.apply(removed(path, medium), self.now)
        assert drops == (() if known else (DropReason.UNKNOWN_BLOCK,))

    def drain(self) -> None:
        self.reader.read(self.tracker.drain(self.now), self.now)
        assert self.reader.known == {
            key: (tokens, warm) for key, tokens, warm in self.tracker.snapshot()
        }
        due = self.tracker.next_due(self.now)
        assert due is None or due > self.now - 100

    def come_to_rest(self) -> None:
        for _ in range(60):
            while self.open:
                self.step(Answer(0))
                audit(self.tracker)
            self.step(Ask(3))
            if not self.open and self.tracker.next_due(self.now) is None:
                break
            self.step(Drain(2.0))
        assert not self.open
        assert self.tracker.next_due(self.now) is None


@given(SCRIPTS)
@settings(max_examples=300, deadline=None)
def test_agrees_with_whole_chains(script: list[object]) -> None:
    play = Play(ChainTracker())
    for step in script:
        play.step(step)
        audit(play.tracker)
    play.come_to_rest()
    assert play.reader.known == play.model.expected()


@given(SCRIPTS, SCRIPTS)
@settings(max_examples=150, deadline=None)
def test_a_new_calibration_finds_every_key(before: list[object], after: list[object]) -> None:
    """Whatever was judged by a wrong format is judged anew, questions in the air included."""
    play = Play(ChainTracker())
    play.judge = misjudge
    for step in before:
        play.step(step)
    play.tracker.ask_again(play.now)
    audit(play.tracker)
    in_the_air, play.open = play.open, []
    for question in in_the_air:
        play.tracker.answer(question.node, misjudge(question), play.now)
        audit(play.tracker)
    play.judge = judge
    for step in after:
        play.step(step)
        audit(play.tracker)
    play.come_to_rest()
    assert play.reader.known == play.model.expected()


@given(SCRIPTS, st.integers(1, 8), st.integers(1, 20), st.integers(1, 12))
@settings(max_examples=500, deadline=None)
def test_limits_hold_at_every_moment(
    script: list[object], blocks: int, tokens: int, chain: int
) -> None:
    limits = ChainLimits(
        max_tracked_blocks=blocks, max_retained_tokens=tokens, max_chain_tokens=chain
    )
    play = Play(ChainTracker(limits))
    for step in script:
        if isinstance(step, Fell):
            continue
        if isinstance(step, Remove | RemoveStranger):
            path = step.path if isinstance(step, RemoveStranger) else None
            if path is None:
                known = play.model.paths()
                path = known[step.pick % len(known)] if known else (0,)
            play.model.remove(path, Medium.GPU)
            play.tracker.apply(removed(path), play.now)
        else:
            play.step(step)
        audit(play.tracker)
        stats = play.tracker.stats
        assert stats.blocks <= blocks
        assert stats.tokens <= tokens
        assert all(len(question.tokens) <= chain for question in play.open)
    play.come_to_rest()
    nodes = play.tracker._chains.graph.nodes.values()
    resident = {key for node in nodes if node.bag for key in node.scope.keys}
    assert set(play.reader.known) == resident
    # nothing is announced that the engine could not hold: limits only ever lose
    assert all(any(node.bag for node in nodes if key in node.scope.keys) for key in resident)


@given(SCRIPTS)
@settings(max_examples=150, deadline=None)
def test_shared_head_agrees_with_whole_chains(script: list[object]) -> None:
    play = Play(ChainTracker(token_count=TokenCount.SHARED_HEAD))
    for step in script:
        play.step(step)
        audit(play.tracker)
    play.come_to_rest()
    assert play.reader.known == play.model.expected(shared_head=True)


@given(PATHS, PATHS, st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_prompts_that_share_leading_blocks_get_their_own_keys(
    one: tuple[int, ...], other: tuple[int, ...], shared: int
) -> None:
    other = one[:shared] + other
    play = Play(ChainTracker())
    for path in (one, other):
        play.step(Store(path, 0, Medium.GPU))
        play.come_to_rest()
    assert play.reader.known == play.model.expected()


@given(st.lists(stores(True), min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_order_of_independent_events_does_not_matter(batch: list[Store], rng) -> None:
    """Single-block events in any order: children before parents, removes among strangers."""
    events = [
        (step, event)
        for step in batch
        for event in stored_singly(step.path, step.start, step.medium)
    ]
    plays = []
    for _ in range(2):
        play = Play(ChainTracker())
        for _, event in events:
            play.tracker.apply(event, play.now)
            audit(play.tracker)
        for step in batch:
            play.model.store(step.path, step.start, step.medium)
        play.come_to_rest()
        plays.append(play)
        rng.shuffle(events)
    assert plays[0].reader.known == plays[0].model.expected()
    assert plays[1].reader.known == plays[0].reader.known


@given(PATHS, st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_one_event_equals_its_blocks_one_by_one(path: tuple[int, ...], copies: int) -> None:
    path = tuple(index for index in path if len(BLOCKS[index]) == 2) or (0,)
    whole, single = Play(ChainTracker()), Play(ChainTracker())
    for _ in range(copies):
        whole.tracker.apply(stored(path, 0), 0.0)
        for event in stored_singly(path, 0):
            single.tracker.apply(event, 0.0)
        audit(whole.tracker)
        audit(single.tracker)
    whole.come_to_rest()
    single.come_to_rest()
    assert whole.reader.known == single.reader.known
    everything = Removed(hashes=tuple(hash_of(path[: i + 1]) for i in range(len(path))))
    for _ in range(copies):
        assert whole.reader.known == single.reader.known
        assert whole.tracker.apply(everything, 0.0) == ()
        audit(whole.tracker)
    whole.come_to_rest()
    assert whole.reader.known == {}
    assert whole.tracker.stats.blocks == 0
    assert whole.tracker.stats.tokens == 0
