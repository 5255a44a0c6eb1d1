import hashlib

import pytest

from continuum_router.backends.holding import Tier
from continuum_router.backends.pieces import Pieces, piece_end
from continuum_router.kv_index.piece_index import (
    DEFAULT_ROOM_TOKENS,
    PieceIndex,
    expose_pieces,
)
from continuum_shared.metrics import Metrics

AB = ("a", "b")


def prompt(text, group=b"G"):
    """One piece a letter; letters before it are part of each, as in a chain."""
    digests = tuple(
        hashlib.sha256(text[: end + 1].encode()).digest()[:16] for end in range(len(text))
    )
    return Pieces(digests=digests, size=piece_end(len(text)), group=group)


@pytest.fixture
def index():
    return PieceIndex(max_entries=10_000, ttl=600.0)


def pairs(index):
    """Counted anew, the hard way."""
    held = sum(mask.bit_count() for mask in index._masks.values())
    assert held == index.stats().pairs == sum(s.count() for s in index._shelves.values())
    return held


def test_what_was_sent_is_held_at_once_as_far_as_prompts_agree(index):
    index.sent("a", prompt("abcde"), 1.0)
    index.sent("b", prompt("abx"), 2.0)
    assert index.depths(prompt("abcdefg"), AB) == [5, 2]
    assert index.depths(prompt("abxyz"), AB) == [2, 3]
    assert index.depths(prompt("zzz"), AB) == [0, 0]
    assert index.depths(prompt(""), AB) == [0, 0]
    assert pairs(index) == 8


def test_the_order_and_strangers_of_a_question(index):
    index.sent("a", prompt("abc"), 1.0)
    assert index.depths(prompt("abc"), ("x", "a", "b")) == [0, 3, 0]
    assert index.depths(prompt("abc"), ("b",)) == [0]
    assert PieceIndex(max_entries=100, ttl=1.0).depths(prompt("a"), AB) == [0, 0]


def test_a_question_does_not_teach(index):
    index.depths(prompt("abc"), AB)
    assert index.stats().pairs == 0


def test_full_is_full_and_the_tail_goes_before_the_head():
    # room for 20 pieces; the three heads of a prompt are one
    index = PieceIndex(max_entries=10_000, ttl=600.0, room_tokens=20 * 512)
    index.sent("a", prompt("x" * 14), 1.0)
    index.sent("a", prompt("y" * 12), 2.0)
    assert index.depths(prompt("y" * 12), AB) == [12, 0]
    # 12 + 10 whole pieces, two had to go
    assert index.depths(prompt("x" * 14), AB) == [12, 0]
    assert index.stats().evicted == 2
    assert pairs(index) == 24
    assert index.crowding("a") == pytest.approx(2 / (12 * 0.95 + 0.95**2 + 10))


def test_use_keeps(index):
    small = PieceIndex(max_entries=10_000, ttl=600.0, room_tokens=20 * 512)
    small.sent("a", prompt("x" * 10), 1.0)
    small.sent("a", prompt("y" * 10), 2.0)
    small.used("a", prompt("x" * 10), 3.0)
    small.sent("a", prompt("z" * 10), 4.0)
    assert small.depths(prompt("x" * 10), AB) == [10, 0]
    assert small.depths(prompt("y" * 10), AB) == [6, 0]
    index.used("never", prompt("x"), 1.0)
    assert index.stats().pairs == 0


def test_an_evicted_prefix_takes_everything_below(index):
    index.sent("a", prompt("abc"), 1.0)
    index.sent("a", prompt("abd"), 1.0)
    index.sent("a", prompt("xyz", group=b"H"), 1.0)
    index.sent("b", prompt("abc"), 1.0)
    index.evict("a", b"G")
    assert index.depths(prompt("abc"), AB) == [0, 3]
    assert index.depths(prompt("xyz"), AB) == [3, 0]
    index.evict("a", b"unknown")
    index.evict("nobody", b"G")
    assert pairs(index) == 6


def test_a_purge_is_one_backends_alone(index):
    for name in AB:
        index.sent(name, prompt("abc"), 1.0)
    index.purge("a")
    index.purge("nobody")
    assert index.depths(prompt("abc"), AB) == [0, 3]
    assert pairs(index) == 3


def test_the_tokens_of_all_chains_cut_a_prefix_to_what_is_left(index):
    index.sent("a", prompt("x" * 12), 1.0)
    index.sent("a", prompt("x" * 3 + "y" * 5), 2.0)
    # 10 + 5 pieces of 512 tokens are known; 13 are left
    index.resident("a", b"G", Tier.GPU_HOT, 13 * 512, now=10.0)
    assert index.depths(prompt("x" * 12), AB) == [10, 0]
    assert index.depths(prompt("x" * 3 + "y" * 5), AB) == [8, 0]
    index.resident("a", b"other", Tier.GPU_HOT, 0)
    index.resident("nobody", b"G", Tier.GPU_HOT, 0)
    assert pairs(index) == 15


def test_what_is_in_flight_is_not_cut_away(index):
    index.sent("a", prompt("x" * 5), 1.0)
    index.used("a", prompt("x" * 5), 2.0)
    index.sent("a", prompt("y" * 6), 3.0)
    # the report is from before the second prompt was stored
    index.resident("a", b"G", Tier.GPU_HOT, 3 * 512, now=3.1)
    assert index.depths(prompt("x" * 5), AB) == [5, 0]
    assert index.depths(prompt("y" * 6), AB) == [6, 0]


def test_tiers(index):
    index.sent("a", prompt("abc"), 1.0)
    assert (index.any_warm(), index.tier("a", prompt("abc"))) == (False, Tier.GPU_HOT)
    index.resident("a", b"G", Tier.STORAGE_WARM)
    assert (index.any_warm(), index.tier("a", prompt("abc"))) == (True, Tier.STORAGE_WARM)
    assert index.tier("nobody", prompt("abc")) is Tier.GPU_HOT
    index.resident("a", b"G", Tier.GPU_HOT)
    assert index.any_warm() is False
    index.resident("a", b"G", Tier.STORAGE_WARM)
    index.evict("a", b"G")
    assert index.any_warm() is False


def test_an_attempt_that_came_to_nothing(index):
    index.sent("a", prompt("ab"), 1.0)
    index.sent("a", prompt("abcd"), 2.0)
    index.unsent("a", prompt("abcd"), 2)
    index.unsent("nobody", prompt("abcd"), 0)
    assert index.depths(prompt("abcd"), AB) == [2, 0]
    assert pairs(index) == 2


def test_time_takes_what_nobody_uses(index):
    index.sent("a", prompt("abc"), 1.0)
    index.sent("b", prompt("abc"), 2.0)
    assert index.expire(601.5) == 3
    assert index.depths(prompt("abc"), AB) == [0, 3]
    assert (index.stats().expired, pairs(index)) == (3, 3)


def test_the_number_of_pairs_is_bounded():
    index = PieceIndex(max_entries=100, ttl=600.0)
    for turn in range(50):
        index.sent("ab"[turn % 2], prompt(f"{turn:02}" + "x" * 8), float(turn))
        assert index.stats().pairs <= 100
    assert index.depths(prompt("49xxxxxxxx"), AB)[1] == 10
    assert pairs(index) > 80


def test_reports_of_cached_tokens_move_the_room():
    index = PieceIndex(max_entries=10_000, ttl=600.0, room_tokens=100 * 512)
    index.sent("a", prompt("x"), 1.0)
    room = lambda: index.room("a") / 512  # noqa: E731
    index.cached("a", 10.0, 9.0)
    assert room() == 100
    index.cached("a", 10.0, 8.0)
    assert room() == pytest.approx(97)
    index.cached("a", 10.0, 12.0)
    assert room() == pytest.approx(97 * 1.03)
    for _ in range(1000):
        index.cached("a", 10.0, 0.0)
    # a restarted engine must not be taken for a tiny one
    assert room() == pytest.approx(100 / 64)
    index.set_room("a", 200 * 512)
    index.cached("a", 10.0, 8.0)
    assert room() == pytest.approx(198)
    index.cached("a", 10.0, 12.0)
    assert room() == pytest.approx(198 * 1.01)
    for _ in range(1000):
        index.cached("a", 10.0, 0.0)
    assert room() == pytest.approx(100)
    index.cached("nobody", 1.0, 9.0)
    assert index.room("nobody") == 100 * 512
    assert DEFAULT_ROOM_TOKENS == 2_000_000


def test_a_backend_that_leaves_makes_place(index):
    index.sent("a", prompt("abc"), 1.0)
    index.sent("b", prompt("abc"), 1.0)
    index.forget("a")
    index.forget("a")
    index.sent("c", prompt("ab"), 2.0)
    assert index.depths(prompt("abc"), ("a", "b", "c")) == [0, 3, 2]
    assert (len(index._bits), index.names()) == (2, ("b", "c"))


def test_clear(index):
    index.sent("a", prompt("abc"), 1.0)
    index.sent("b", prompt("ab"), 1.0)
    assert index.clear() == 5
    assert pairs(index) == 0
    assert not index._masks


def test_a_piece_under_two_prefixes_is_held_while_it_is_sent(index):
    index.sent("a", prompt("ab", group=b"G"), 1.0)
    index.sent("a", prompt("ab", group=b"H"), 1.0)
    index.evict("a", b"G")
    index.sent("a", prompt("ab", group=b"H"), 2.0)
    assert index.depths(prompt("ab"), AB) == [2, 0]


def test_metrics(index):
    metrics = Metrics()
    expose_pieces(index, metrics)
    index.sent("a", prompt("abc"), 1.0)
    index.sent("b", prompt("ab"), 2.0)
    index.expire(601.5)
    text = metrics.exposition().decode()
    for line in (
        'continuum_kv_index_pieces{kind="pieces"} 2',
        'continuum_kv_index_pieces{kind="pairs"} 2',
        'continuum_kv_index_pieces_gone_total{reason="ttl"} 3',
        'continuum_kv_index_pieces_gone_total{reason="room"} 0',
        'continuum_kv_index_room_tokens{backend="a"} 2e+06',
    ):
        assert line in text
