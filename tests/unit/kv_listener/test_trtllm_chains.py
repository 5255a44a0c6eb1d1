import pytest

from continuum_kv_listener.chain_stats import ChainLimits, TokenCount
from continuum_kv_listener.engine_events import Cleared, DropReason
from continuum_kv_listener.trtllm_chains import MAX_DISCARDED, TrtllmChains
from continuum_kv_listener.trtllm_decode import events_of
from continuum_shared.prefix_key import PrefixKey
from support.trtllm_server import block, numbered, removed, stored, updated

A, B = PrefixKey(b"a" * 32), PrefixKey(b"b" * 32)
GOOD = {"cr1.a": (A,), "cr1.b": (B,)}
FOREIGN, BAD, UNKNOWN = DropReason.FOREIGN_SALT, DropReason.BAD_SALT, DropReason.UNKNOWN_BLOCK


def chains(limit=1000, count=TokenCount.LONGEST_CHAIN):
    limits = ChainLimits(max_tracked_blocks=limit)
    return TrtllmChains(limits, token_count=count, verify_salt=lambda salt, _: GOOD.get(salt))


def feed(made, *datas, rank=0):
    events = events_of(numbered(datas, attention_dp_rank=rank))
    return [reason for event in events for reason in made.apply(event, 0.0)]


def held(made, now=[0.0]):  # noqa: B006  a clock that has always moved on
    """key -> (tokens, warm) as told."""
    now[0] += 1.0
    made.drain(now[0])
    return {key: (tokens, warm) for key, tokens, warm in made.snapshot()}


@pytest.mark.parametrize(
    ("fed", "expected", "drops"),
    [
        pytest.param([stored(None, block(1, salt="cr1.a"))], {A: (32, False)}, [], id="verified"),
        pytest.param([stored(None, block(1))], {}, [FOREIGN], id="no salt"),
        pytest.param([stored(None, block(1, salt="mine"))], {}, [FOREIGN], id="a client's own"),
        pytest.param([stored(None, block(1, salt=""))], {}, [FOREIGN], id="empty"),
        pytest.param([stored(None, block(1, salt=7))], {}, [FOREIGN], id="a number"),
        pytest.param([stored(None, block(1, salt="cr1.x"))], {}, [BAD], id="forged"),
        pytest.param([stored(8, block(9))], {}, [UNKNOWN], id="unknown parent"),
        pytest.param([stored(8, block(9, salt="cr1.b"))], {B: (32, False)}, [], id="told"),
        pytest.param([removed(4)], {}, [UNKNOWN], id="removal of nothing"),
        pytest.param([updated(4, 1)], {}, [UNKNOWN], id="move of nothing"),
    ],
)  # fmt: skip
def test_who_a_chain_belongs_to(fed, expected, drops):
    made = chains()
    assert feed(made, *fed) == drops
    assert held(made) == expected
    assert made.stats.tokens == 0


def test_a_discarded_chain_is_discarded_to_its_end():
    made = chains()
    assert feed(made, stored(None, block(1)), stored(1, block(2, salt="cr1.a"))) == [FOREIGN] * 2
    assert feed(made, stored(2, block(3)), updated(3, 1), removed(3), removed(3)) == [
        *[FOREIGN] * 3,
        UNKNOWN,
    ]
    assert feed(made, stored(None, block(5, salt="cr1.x")), stored(5, block(6))) == [BAD, BAD]
    assert (held(made), made.stats.blocks) == ({}, 0)


def test_what_is_remembered_of_discarded_chains_is_bounded():
    made = chains()
    for number in range(0, MAX_DISCARDED + 100, 100):
        feed(made, stored(None, *[block(number + at, 1) for at in range(100)]))
    assert feed(made, stored(0, block(-5))) == [UNKNOWN]
    assert feed(made, stored(MAX_DISCARDED, block(-6))) == [FOREIGN]


def test_a_chain_grows_branches_and_shrinks():
    made = chains()
    feed(made, stored(None, block(1, salt="cr1.a"), block(2)), stored(1, block(3), block(4, 5)))
    assert held(made) == {A: (69, False)}
    feed(made, removed(4))
    assert held(made) == {A: (64, False)}
    feed(made, removed(3, 2))
    assert held(made) == {A: (32, False)}
    feed(made, removed(1))
    assert (held(made), made.stats.blocks) == ({}, 0)


def test_a_block_is_in_one_place_however_often_it_is_told():
    made = chains()
    chain = stored(None, block(1, salt="cr1.a"), block(2))
    assert feed(made, chain, chain, updated(2, 0), updated(2, 1), updated(2, 1)) == []
    assert held(made) == {A: (32, False)}
    feed(made, stored(1, block(2)))
    assert held(made) == {A: (64, False)}
    feed(made, updated(1, 1), updated(2, 1))
    assert held(made) == {A: (64, True)}
    feed(made, updated(2, 2))
    assert held(made) == {A: (64, True)}
    assert feed(made, removed(2), removed(1)) == []
    assert (held(made), made.stats.blocks) == ({}, 0)


def test_known_and_new_blocks_in_one_event():
    made = chains()
    feed(made, stored(None, block(1, salt="cr1.a")), stored(1, block(3, 1)))
    assert feed(made, stored(None, block(1, salt="cr1.a"), block(2), block(4, 32))) == []
    assert held(made) == {A: (96, False)}
    feed(made, removed(4), removed(2))
    assert held(made) == {A: (33, False)}


def test_ranks_hold_apart_and_count_together():
    made = chains()
    feed(made, stored(None, block(1, salt="cr1.a"), block(2)))
    feed(made, stored(None, block(1, salt="cr1.a")), rank=1)
    assert held(made) == {A: (64, False)}
    feed(made, removed(2, 1))
    assert held(made) == {A: (32, False)}
    assert feed(made, removed(2), rank=1) == [UNKNOWN]
    feed(made, removed(1), rank=1)
    assert held(made) == {}


def test_shared_head_counts_the_first_block():
    made = chains(count=TokenCount.SHARED_HEAD)
    feed(made, stored(None, block(1, salt="cr1.a"), block(2), block(3)))
    assert held(made) == {A: (32, False)}


def test_the_block_limit_holds_and_takes_the_oldest():
    made = chains(limit=10)
    feed(made, stored(None, block(1, salt="cr1.a")))
    for number in range(100, 120):
        feed(made, stored(None, block(number, salt="cr1.b")))
        assert made.stats.blocks <= 10
    assert held(made) == {B: (32, False)}
    assert made.stats.blocks_evicted_total == 11


def test_a_chain_longer_than_the_limit_keeps_its_key():
    made = chains(limit=4)
    feed(made, stored(None, block(1, salt="cr1.a"), *[block(n) for n in range(2, 9)]))
    assert A in held(made)
    assert made.stats.blocks == 4


@pytest.mark.parametrize("how", ["cleared", "purge", "suspect"])
def test_dropping_all_is_told_once(how):
    made = chains()
    feed(made, stored(None, block(1, salt="cr1.a")), stored(None, block(7)))
    made.drain(0.0)
    if how == "cleared":
        made.apply(Cleared(), 1.0)
    else:
        getattr(made, how)(1.0)
    assert [record.action.value for record in made.drain(1.0)] == ["cache_purged"]
    assert feed(made, stored(1, block(2)), stored(7, block(8))) == [UNKNOWN, UNKNOWN]
    assert made.stats.blocks == 0


def test_nothing_is_ever_asked():
    made = chains()
    feed(made, stored(None, block(1, salt="cr1.a")), stored(None, block(2)))
    assert made.questions(10, 0.0) == []
    assert (made.ask_again(0.0), made.fit(0), made.doubted()) == (0, 0, frozenset())
    assert made.stats.pending == 0
