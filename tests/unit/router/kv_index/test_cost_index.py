import pytest

from continuum_router.backends.holding import Holding, Tier
from continuum_router.backends.pieces import Pieces
from continuum_router.kv_index.cost_index import CostKvIndex
from continuum_router.kv_index.index import MemoryKvIndex
from continuum_router.kv_index.piece_index import PieceIndex
from support.backends import prefix

P, Q = prefix("p"), prefix("q")
ABOUT_P = Pieces(digests=(b"p1", b"p2"), size=1024, group=P)
ABOUT_Q = Pieces(digests=(b"q1",), size=512, group=Q)


@pytest.fixture
def index():
    both = CostKvIndex(
        MemoryKvIndex(max_entries=100, ttl=600.0), PieceIndex(max_entries=100, ttl=600.0)
    )
    for name in ("a", "b"):
        both.pieces.sent(name, ABOUT_P, 1.0)
        both.pieces.sent(name, ABOUT_Q, 1.0)
    return both


def depths(index, pieces):
    return index.pieces.depths(pieces, ("a", "b"))


def test_a_record_is_kept_and_its_tier_reaches_the_pieces(index):
    index.set("a", P, 7, Tier.STORAGE_WARM, 2.0)
    assert index.holding("a", P, 2.0) == Holding(tokens=7, tier=Tier.STORAGE_WARM)
    assert index.holdings(P, 2.0) == {"a": Holding(tokens=7, tier=Tier.STORAGE_WARM)}
    assert index.pieces.tier("a", ABOUT_P) is Tier.STORAGE_WARM
    # seven tokens of the longest chain are no reason to doubt what was sent
    assert depths(index, ABOUT_P) == [2, 2]


def test_what_goes_takes_the_pieces_along(index):
    index.set("a", P, 7, Tier.GPU_HOT, 2.0)
    index.remove("a", P)
    assert index.holdings(P, 2.0) == {}
    assert (depths(index, ABOUT_P), depths(index, ABOUT_Q)) == ([0, 2], [1, 1])


def test_a_purge(index):
    index.set("b", P, 7, Tier.GPU_HOT, 2.0)
    index.purge("b")
    assert (depths(index, ABOUT_P), depths(index, ABOUT_Q)) == ([2, 0], [1, 0])
    assert index.stats().entry_count == 0


def test_a_snapshot_takes_what_it_no_longer_names_and_judges_nothing_else(index):
    index.set("a", P, 7, Tier.GPU_HOT, 2.0)
    index.swap("a", {}, 3.0)
    # q was never reported, so its absence says nothing
    assert (depths(index, ABOUT_P), depths(index, ABOUT_Q)) == ([0, 2], [1, 1])
    index.swap("b", {P: (9, Tier.STORAGE_WARM)}, 3.0)
    assert depths(index, ABOUT_P) == [0, 2]
    assert index.pieces.tier("b", ABOUT_P) is Tier.STORAGE_WARM


def test_times(index):
    index.set("a", P, 7, Tier.GPU_HOT, 1.0)
    index.refresh("a", P, 500.0)
    assert index.expire(700.0) == 6
    assert index.holding("a", P, 700.0) is not None
    assert depths(index, ABOUT_P) == [0, 0]


def test_clear(index):
    index.set("a", P, 7, Tier.GPU_HOT, 1.0)
    assert index.clear() == 7
    assert depths(index, ABOUT_P) == [0, 0]
