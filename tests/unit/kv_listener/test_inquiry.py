"""One question a path, moving with its growth; again when it grew enough or its time came."""

from array import array

from continuum_kv_listener.block_graph import Node, Phase, TipState
from continuum_kv_listener.chain_stats import Unattributed
from continuum_kv_listener.inquiry import PATIENCE_S, Inquiry, question
from continuum_kv_listener.scope import Kind, Scope

SCOPE = Scope(Kind.OPEN, reason=Unattributed.PENDING)


class Paths:
    """Builds chains of 4-token blocks under one inquiry."""

    def __init__(self) -> None:
        self.inquiry = Inquiry()
        self._next = 0

    def grow(self, parent: Node | None, blocks: int, now: float = 0.0) -> list[Node]:
        above, fresh = parent, []
        for _ in range(blocks):
            self._next += 1
            depth = above.depth if above else 0
            node = Node(self._next, above, size=4, depth=depth + 4, scope=SCOPE)
            node.tokens = array("I", [self._next] * 4).tobytes()
            if above is not None:
                from_above = above.kids
                above.kids = node if from_above is None else {**_as_dict(from_above), node: None}
            self.inquiry.begin(node)
            fresh.append(node)
            above = node
        self.inquiry.grown(parent, fresh[-1], now)
        return fresh

    def claim(self, now: float = 0.0) -> tuple[int, list[Node]]:
        taken = self.inquiry.claim(now)
        assert taken is not None
        return taken

    def insufficient(self, handle: int, now: float, *, curable: bool = False) -> None:
        tip = self.inquiry.land(handle)
        assert tip is not None
        self.inquiry.insufficient(tip, now, curable=curable)


def _as_dict(kids: object) -> dict:
    return kids if isinstance(kids, dict) else {kids: None}


def test_a_growing_path_is_one_question_about_all_of_it():
    paths = Paths()
    first = paths.grow(None, 3)
    more = paths.grow(first[-1], 2)
    handle, path = paths.claim()
    assert path == first + more
    assert paths.inquiry.claim(0.0) is None
    asked = question(handle, path)
    assert asked is not None
    assert asked.block_ends == (4, 8, 12, 16, 20)
    assert asked.tokens == array("I", [n for n in (1, 2, 3, 4, 5) for _ in range(4)])


def test_branches_are_asked_about_each():
    paths = Paths()
    trunk = paths.grow(None, 2)
    left = paths.grow(trunk[-1], 1)
    right = paths.grow(trunk[-1], 1)
    asked = [paths.claim()[1], paths.claim()[1]]
    assert asked == [trunk + left, trunk + right]


def test_a_path_in_the_air_is_not_asked_about_again_however_it_grows():
    paths = Paths()
    first = paths.grow(None, 1)
    handle, _ = paths.claim()
    grown = paths.grow(first[-1], 3)
    assert paths.inquiry.claim(0.0) is None
    assert [node.phase for node in grown] == [Phase.FLYING] * 3
    paths.insufficient(handle, 0.0)
    assert paths.claim()[1] == first + grown


def test_growth_that_makes_asking_again_worth_it_doubles():
    paths = Paths()
    end = paths.grow(None, 1)[-1]
    asked_at = []
    for block in range(1, 40):
        taken = paths.inquiry.claim(0.0)
        if taken is not None:
            asked_at.append(block)
            paths.insufficient(taken[0], 0.0)
        end = paths.grow(end, 1)[-1]
    assert asked_at == [1, 2, 4, 8, 16, 32]


def test_a_little_growth_is_asked_about_after_a_while():
    paths = Paths()
    end = paths.grow(None, 1)[-1]
    paths.insufficient(paths.claim()[0], 0.0)
    end = paths.grow(end, 1, 1.0)[-1]
    paths.insufficient(paths.claim(1.0)[0], 1.0)  # the step is two blocks now
    paths.grow(end, 1, 2.0)
    assert paths.inquiry.claim(2.5) is None
    assert paths.inquiry.next_due() == 2.0 + PATIENCE_S
    assert len(paths.claim(3.0)[1]) == 3


def test_without_growth_nothing_is_asked_again():
    paths = Paths()
    paths.grow(None, 1)
    paths.insufficient(paths.claim()[0], 0.0)
    assert paths.inquiry.next_due() is None
    assert paths.inquiry.claim(1e9) is None


def test_a_curable_answer_is_asked_again_in_time_with_back_off():
    paths = Paths()
    paths.grow(None, 1)
    now, waits = 0.0, []
    for _ in range(8):
        paths.insufficient(paths.claim(now)[0], now, curable=True)
        due = paths.inquiry.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_failed_question_waits_for_its_time_and_not_for_growth():
    paths = Paths()
    first = paths.grow(None, 1)
    tip = paths.inquiry.land(paths.claim()[0])
    assert tip is not None
    paths.inquiry.failed(tip, 7.0)
    paths.grow(first[-1], 9)
    assert paths.inquiry.claim(6.9) is None
    assert len(paths.claim(7.0)[1]) == 10


def test_branches_that_grew_in_the_air_all_wait_for_a_failed_question():
    paths = Paths()
    trunk = paths.grow(None, 1)
    handle, _ = paths.claim()
    paths.grow(trunk[-1], 1)
    paths.grow(trunk[-1], 2)
    tip = paths.inquiry.land(handle)
    assert tip is not None
    paths.inquiry.failed(tip, 3.0)
    assert paths.inquiry.claim(2.9) is None
    assert sorted(len(paths.claim(3.0)[1]) for _ in range(2)) == [2, 3]


def test_a_branch_below_judged_text_is_asked_about_at_once():
    paths = Paths()
    trunk = paths.grow(None, 4)
    paths.insufficient(paths.claim()[0], 0.0)
    assert [node.phase for node in trunk] == [Phase.COVERED] * 4
    branch = paths.grow(trunk[1], 1)
    assert paths.claim()[1] == trunk[:2] + branch


def test_when_the_end_of_an_unasked_path_leaves_its_parent_is_the_end():
    paths = Paths()
    first, last = paths.grow(None, 2)
    paths.inquiry.forget(last)
    first.kids = None
    paths.inquiry.fallen(first)
    assert paths.claim()[1] == [first]


def test_an_answer_for_a_path_that_left_finds_nothing():
    paths = Paths()
    node = paths.grow(None, 1)[0]
    handle, _ = paths.claim()
    paths.inquiry.forget(node)
    assert paths.inquiry.land(handle) is None
    assert paths.inquiry.land(handle) is None
    assert paths.inquiry.in_flight == 0


def test_dead_tips_do_not_pile_up_while_nobody_asks():
    paths = Paths()
    for _ in range(5_000):
        node = paths.grow(None, 1)[0]
        paths.inquiry.forget(node)
    assert len(paths.inquiry._ready) < 300
    assert paths.inquiry.claim(0.0) is None


def test_stale_timers_do_not_pile_up():
    paths = Paths()
    node = paths.grow(None, 1)[0]
    for turn in range(2_000):
        tip = paths.inquiry.land(paths.claim(float(turn))[0])
        assert tip is not None
        paths.inquiry.failed(tip, turn + 0.5)
    assert len(paths.inquiry._timers) < 300
    assert node.tip is not None
    assert node.tip.state is TipState.BACKOFF


def test_a_path_with_a_lost_text_is_no_question():
    paths = Paths()
    first, _ = paths.grow(None, 2)
    handle, path = paths.claim()
    first.tokens = None
    assert question(handle, path) is None
    paths.inquiry.abandon(handle)
    assert paths.inquiry.in_flight == 0
