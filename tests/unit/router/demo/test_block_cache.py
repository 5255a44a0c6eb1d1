"""The block cache: what real engines were seen to do, as exact events."""

import pytest

from continuum_router.demo.block_cache import (
    BlockCache,
    BlockRemoved,
    BlocksStored,
    CacheCleared,
    ResidentChain,
    block_hash,
)

ONE = (1, 2, 3, 4)
TWO = (5, 6, 7, 8)
H1 = block_hash(None, ONE, None)
H2 = block_hash(H1, TWO, None)


def run(cache: BlockCache, prompt: tuple[int, ...], answer: tuple[int, ...] = ()) -> int:
    """One whole sequence; gives its cached tokens."""
    sequence = cache.begin(prompt, len(answer), None)
    cache.commit(sequence)
    for token in answer:
        cache.append(sequence, token)
    cache.end(sequence)
    return sequence.cached_tokens


def stored(*hashes: bytes, parent: bytes | None, tokens: tuple[int, ...]) -> BlocksStored:
    return BlocksStored(hashes=hashes, parent=parent, tokens=tokens, block_size=4, salt=None)


def test_whole_blocks_of_a_prompt_are_stored_in_one_event() -> None:
    cache = BlockCache(8, 4)
    assert run(cache, (*ONE, *TWO, 9)) == 0
    assert cache.take_events() == [stored(H1, H2, parent=None, tokens=(*ONE, *TWO))]
    assert cache.resident_chains() == [ResidentChain(tokens=(*ONE, *TWO), salt=None)]
    assert cache.in_use == 0


def test_a_whole_block_hit_says_nothing() -> None:
    cache = BlockCache(8, 4)
    run(cache, (*ONE, *TWO, 9))
    cache.take_events()
    assert run(cache, (*ONE, *TWO, 10)) == 8
    assert cache.take_events() == []


def test_a_prompt_below_one_block_says_nothing() -> None:
    cache = BlockCache(8, 4)
    assert run(cache, (1, 2, 3)) == 0
    assert cache.take_events() == []


def test_the_last_block_of_a_prompt_of_whole_blocks_is_computed_and_stored_again() -> None:
    cache = BlockCache(8, 4)
    run(cache, (*ONE, *TWO))
    cache.take_events()
    assert run(cache, (*ONE, *TWO)) == 4
    assert cache.take_events() == [stored(H2, parent=H1, tokens=TWO)]
    assert cache.resident_copies == 3


def test_each_copy_is_removed_by_its_own_event() -> None:
    cache = BlockCache(3, 4)
    run(cache, (*ONE, *TWO))
    run(cache, (*ONE, *TWO))
    cache.take_events()
    run(cache, tuple(range(100, 112)))
    removed = [e for e in cache.take_events() if isinstance(e, BlockRemoved)]
    assert removed == [BlockRemoved(hash=H2), BlockRemoved(hash=H2), BlockRemoved(hash=H1)]


def test_blocks_of_the_answer_are_stored_as_they_fill() -> None:
    cache = BlockCache(8, 4)
    sequence = cache.begin(ONE, 5, None)
    cache.commit(sequence)
    cache.take_events()
    for token in (5, 6, 7):
        cache.append(sequence, token)
        assert cache.take_events() == []
    cache.append(sequence, 8)
    assert cache.take_events() == [stored(H2, parent=H1, tokens=TWO)]


def test_eviction_takes_the_oldest_sequence_first_and_its_tail_before_its_head() -> None:
    cache = BlockCache(4, 4)
    run(cache, (*ONE, *TWO))
    run(cache, (11, 12, 13, 14, 15, 16, 17, 18))
    cache.take_events()
    run(cache, (21, 22, 23, 24, 25))
    assert cache.take_events()[:2] == [BlockRemoved(hash=H2), BlockRemoved(hash=H1)]


def test_using_a_prefix_keeps_it() -> None:
    cache = BlockCache(4, 4)
    run(cache, (*ONE, 9))
    run(cache, (11, 12, 13, 14, 15))
    run(cache, (*ONE, 10))
    cache.take_events()
    run(cache, (21, 22, 23, 24, 25, 26, 27, 28, 29))
    other = block_hash(None, (11, 12, 13, 14), None)
    removed = [e for e in cache.take_events() if isinstance(e, BlockRemoved)]
    assert removed == [BlockRemoved(hash=other)]
    assert ResidentChain(tokens=ONE, salt=None) in cache.resident_chains()


def test_a_salt_separates_and_is_told_on_the_first_block_only() -> None:
    cache = BlockCache(8, 4)
    sequence = cache.begin((*ONE, *TWO, 9), 4, "tenant")
    cache.commit(sequence)
    first = block_hash(None, ONE, "tenant")
    second = block_hash(first, TWO, None)
    assert cache.take_events() == [
        BlocksStored(
            hashes=(first, second), parent=None, tokens=(*ONE, *TWO), block_size=4, salt="tenant"
        )
    ]
    for token in (10, 11, 12):
        cache.append(sequence, token)
    (later,) = cache.take_events()
    assert isinstance(later, BlocksStored)
    assert (later.parent, later.salt) == (second, None)
    cache.end(sequence)
    assert run(cache, (*ONE, *TWO, 9)) == 0
    assert {c.salt for c in cache.resident_chains()} == {None, "tenant"}


def test_a_reset_is_told_with_the_next_events() -> None:
    cache = BlockCache(8, 4)
    run(cache, (*ONE, 9))
    cache.take_events()
    assert cache.reset()
    assert cache.resident_chains() == []
    assert cache.take_events() == []
    run(cache, (1, 2, 3))
    assert cache.take_events() == []
    run(cache, (*ONE, 9))
    assert cache.take_events() == [CacheCleared(), stored(H1, parent=None, tokens=ONE)]


def test_a_reset_is_refused_while_a_sequence_runs() -> None:
    cache = BlockCache(8, 4)
    sequence = cache.begin(ONE, 0, None)
    cache.commit(sequence)
    assert not cache.reset()
    assert cache.resident_copies == 1
    cache.end(sequence)
    assert cache.reset()


def test_a_sequence_that_ends_before_its_prompt_is_computed_stores_nothing() -> None:
    cache = BlockCache(2, 4)
    run(cache, (*ONE, 9))
    cache.take_events()
    sequence = cache.begin((11, 12, 13, 14, 15), 0, None)
    assert cache.take_events() == [BlockRemoved(hash=H1)]
    cache.end(sequence)
    assert cache.take_events() == []
    assert (cache.in_use, cache.resident_copies) == (0, 0)


def test_room_counts_what_running_sequences_were_promised() -> None:
    cache = BlockCache(4, 4)
    sequence = cache.begin(ONE, 8, None)
    assert cache.can_begin((21, 22, 23, 24), 0, None)
    assert not cache.can_begin((21, 22, 23, 24), 1, None)
    with pytest.raises(ValueError, match="no room"):
        cache.begin((21, 22, 23, 24), 1, None)
    cache.end(sequence)
    cache.end(sequence)
    assert cache.can_begin((21, 22, 23, 24), 12, None)


def test_an_answer_longer_than_announced_is_refused() -> None:
    cache = BlockCache(4, 4)
    sequence = cache.begin(ONE, 1, None)
    for _ in range(4):
        cache.append(sequence, 5)
    with pytest.raises(ValueError, match="longer"):
        cache.append(sequence, 5)


@pytest.mark.parametrize(("blocks", "size"), [(0, 4), (4, 0)])
def test_a_cache_of_nothing_is_refused(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockCache(blocks, size)
