"""The tracker's rules with exact values; random histories are in tests/property."""

import base64
import json
from array import array
from pathlib import Path

import pytest

from continuum_kv_listener.attribution_types import (
    Completion,
    PathVerdict,
    Question,
    UnattributedReason,
)
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.chain_stats import ChainLimits, Unattributed
from continuum_kv_listener.decode import decode_batch
from continuum_kv_listener.engine_events import Cleared, DropReason, Medium, Removed, Stored
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import PrefixKey

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"
A, B = PrefixKey(b"a" * 32), PrefixKey(b"b" * 32)
SIZE = 4


def stored(*hashes: int, parent: int | None = None, **changes: object) -> Stored:
    fields: dict[str, object] = {
        "hashes": hashes,
        "parent": parent,
        "tokens": array("I", [each for each in hashes for _ in range(SIZE)]),
        "block_size": SIZE,
    }
    return Stored(**{**fields, **changes})  # type: ignore[arg-type]


def removed(*hashes: int, **changes: object) -> Removed:
    return Removed(hashes=hashes, **changes)  # type: ignore[arg-type]


def ask(tracker: ChainTracker, now: float = 0.0) -> Question:
    (question,) = tracker.questions(9, now)
    return question


def complete(tracker: ChainTracker, index: int, *keys: PrefixKey, now: float = 0.0) -> None:
    """The only path to be asked about completes ``keys`` at its block ``index``."""
    verdict = PathVerdict(completions=(Completion(block_index=index, keys=keys),), done=True)
    tracker.answer(ask(tracker, now).node, verdict, now)


def told(tracker: ChainTracker, now: float) -> list[tuple[KvAction, PrefixKey | None, int | None]]:
    return [(event.action, event.prefix, event.tokens) for event in tracker.drain(now)]


def attributed(**options: object) -> ChainTracker:
    """Blocks 1-2-3 with key A completed at block 2, told at time 0."""
    tracker = ChainTracker(**options)  # type: ignore[arg-type]
    tracker.apply(stored(1, 2, 3), 0.0)
    complete(tracker, 1, A)
    assert told(tracker, 0.0) == [(KvAction.CREATED, A, 12)]
    return tracker


def test_a_question_holds_the_path_from_the_root():
    tracker = ChainTracker()
    tracker.apply(stored(1, 2, lora_name="adapter"), 0.0)
    tracker.apply(stored(3, parent=2, lora_name="adapter"), 0.0)
    question = ask(tracker)
    assert question.tokens == array("I", [1] * 4 + [2] * 4 + [3] * 4)
    assert question.block_ends == (4, 8, 12)
    assert question.lora_name == "adapter"
    assert tracker.questions(9, 0.0) == []
    assert tracker.stats.questions_open == 1


def test_descendants_inherit_and_keep_no_tokens():
    tracker = attributed()
    assert tracker.stats.tokens == SIZE  # block 1: siblings may diverge below it
    tracker.apply(stored(4, 5, parent=3), 1.0)
    assert tracker.questions(9, 1.0) == []
    assert told(tracker, 1.0) == [(KvAction.CREATED, A, 20)]
    assert tracker.stats.tokens == SIZE
    assert tracker.stats.unattributed == {}


def test_a_sibling_above_the_completing_block_is_asked_anew_and_gets_its_own_key():
    tracker = attributed()
    tracker.apply(stored(7, 8, parent=1), 1.0)
    assert ask_again(tracker).block_ends == (4, 8, 12)
    assert told(tracker, 1.0) == [(KvAction.CREATED, B, 12)]


def ask_again(tracker: ChainTracker) -> Question:
    question = ask(tracker, 1.0)
    verdict = PathVerdict(completions=(Completion(block_index=2, keys=(B,)),), done=True)
    tracker.answer(question.node, verdict, 1.0)
    return question


def test_a_sibling_below_the_completing_block_inherits():
    tracker = attributed()
    tracker.apply(stored(7, 8, parent=2), 1.0)
    assert tracker.questions(9, 1.0) == []
    assert told(tracker, 1.0) == [(KvAction.CREATED, A, 16)]


def test_every_served_name_is_told():
    """Decisions A17, A18: a chain has a set of keys."""
    tracker = ChainTracker()
    tracker.apply(stored(1), 0.0)
    complete(tracker, 0, A, B)
    assert told(tracker, 0.0) == [(KvAction.CREATED, A, 4), (KvAction.CREATED, B, 4)]
    tracker.apply(removed(1), 0.0)
    assert told(tracker, 0.0) == [(KvAction.EVICTED, A, None), (KvAction.EVICTED, B, None)]


def test_two_keys_at_different_depths():
    """Decisions A18: the default system prompt, then the first message below it."""
    tracker = ChainTracker()
    tracker.apply(stored(1, 2), 0.0)
    verdict = PathVerdict(completions=(Completion(block_index=0, keys=(A,)),), done=False)
    tracker.answer(ask(tracker).node, verdict, 0.0)
    assert told(tracker, 0.0) == [(KvAction.CREATED, A, 8)]
    tracker.apply(stored(3, parent=2), 1.0)
    verdict = PathVerdict(
        completions=(
            Completion(block_index=0, keys=(A,)),
            Completion(block_index=2, keys=(B,)),
        ),
        done=True,
    )
    tracker.answer(ask(tracker, 1.0).node, verdict, 1.0)
    assert told(tracker, 1.0) == [(KvAction.CREATED, A, 12), (KvAction.CREATED, B, 12)]
    tracker.apply(removed(3), 2.0)
    assert told(tracker, 2.0) == [(KvAction.CREATED, A, 8), (KvAction.EVICTED, B, None)]


def test_copies_are_counted():
    """Decisions C16: three stores, three removes; a fourth removes nothing."""
    tracker = attributed()
    tracker.apply(stored(3, parent=2), 0.0)
    tracker.apply(stored(3, parent=2), 0.0)
    assert tracker.apply(removed(3), 1.0) == ()
    assert tracker.apply(removed(3), 1.0) == ()
    assert told(tracker, 1.0) == []
    assert tracker.apply(removed(3), 1.0) == ()
    assert told(tracker, 1.0) == [(KvAction.CREATED, A, 8)]
    assert tracker.apply(removed(3), 1.0) == (DropReason.UNKNOWN_BLOCK,)
    assert told(tracker, 1.0) == []


def test_eviction_of_the_last_completing_block_is_told_at_once():
    tracker = attributed()
    tracker.apply(removed(3), 0.01)
    tracker.apply(removed(2), 0.01)
    assert told(tracker, 0.01) == [(KvAction.EVICTED, A, None)]
    assert tracker.stats.blocks == 1


def test_growth_is_told_at_most_every_100_ms():
    tracker = attributed()
    for block in range(4, 10):
        tracker.apply(stored(block, parent=block - 1), 0.01 * block)
        assert told(tracker, 0.01 * block) == []
    assert tracker.next_due(0.09) == pytest.approx(0.1)
    assert told(tracker, 0.1) == [(KvAction.CREATED, A, 36)]
    assert tracker.next_due(0.1) is None


def test_clear_forgets_copies_and_is_one_record():
    """Decisions C16, C39; user report K4."""
    tracker = attributed()
    tracker.apply(stored(3, parent=2), 0.0)
    assert tracker.apply(Cleared(), 1.0) == ()
    assert tracker.drain(1.0) == [KvEvent(action=KvAction.PURGED)]
    assert tracker.snapshot() == []
    assert tracker.apply(removed(3), 1.0) == (DropReason.UNKNOWN_BLOCK,)
    tracker.apply(stored(3, parent=2), 1.0)
    assert tracker.stats.unattributed == {Unattributed.UNKNOWN_PARENT: 1}


def test_a_late_clear_rides_before_the_next_requests_blocks():
    tracker = attributed()
    tracker.apply(Cleared(), 1.0)
    tracker.apply(stored(1, 2), 1.0)
    assert [event.action for event in tracker.drain(1.0)] == [KvAction.PURGED]
    complete(tracker, 1, A, now=1.0)
    assert told(tracker, 1.0) == [(KvAction.CREATED, A, 8)]


def test_a_restart_drops_answers_that_are_still_to_come():
    tracker = ChainTracker()
    tracker.apply(stored(1), 0.0)
    question = ask(tracker)
    tracker.purge(1.0)
    tracker.apply(stored(1), 1.0)
    verdict = PathVerdict(completions=(Completion(block_index=0, keys=(A,)),), done=True)
    tracker.answer(question.node, verdict, 1.0)
    tracker.retry(question.node, 2.0)
    assert [event.action for event in tracker.drain(1.0)] == [KvAction.PURGED]
    assert tracker.stats.pending == tracker.pending == 1


def test_an_answer_for_a_block_that_left_is_dropped():
    tracker = ChainTracker()
    tracker.apply(stored(1, 2), 0.0)
    question = ask(tracker)
    tracker.apply(removed(2), 0.0)
    verdict = PathVerdict(completions=(Completion(block_index=1, keys=(A,)),), done=True)
    tracker.answer(question.node, verdict, 0.0)
    tracker.answer(question.node, verdict, 0.0)
    assert told(tracker, 0.0) == []
    assert ask(tracker).block_ends == (4,)


@pytest.mark.parametrize("index", [-1, 3, 99])
def test_a_verdict_about_no_block_of_the_path_completes_nothing(index: int):
    tracker = ChainTracker()
    tracker.apply(stored(1, 2, 3), 0.0)
    complete(tracker, index, A)
    assert told(tracker, 0.0) == []
    assert tracker.stats.unattributed == {Unattributed.NO_MATCH: 3}


def test_a_hopeless_path_is_counted_whole_and_never_asked_again():
    tracker = ChainTracker()
    tracker.apply(stored(1, 2, 3), 0.0)
    verdict = PathVerdict(done=True, reason=UnattributedReason.UNSUPPORTED_CONTENT)
    tracker.answer(ask(tracker).node, verdict, 0.0)
    tracker.apply(stored(4, parent=3), 0.0)
    assert tracker.questions(9, 1e9) == []
    assert tracker.stats.unattributed == {Unattributed.UNSUPPORTED_CONTENT: 4}
    tracker.apply(stored(5, parent=1), 0.0)
    complete(tracker, 1, A)
    assert tracker.stats.unattributed == {Unattributed.UNSUPPORTED_CONTENT: 3}


def test_a_short_completion_prompt_stays_pending():
    """Decisions C21."""
    tracker = ChainTracker()
    tracker.apply(stored(1), 0.0)
    tracker.answer(ask(tracker).node, PathVerdict(done=False), 0.0)
    assert tracker.questions(9, 1e9) == []
    assert tracker.next_due(0.0) is None
    assert tracker.stats.pending == 1
    assert tracker.stats.unattributed == {Unattributed.PENDING: 1}


def test_a_reason_that_may_pass_is_counted_and_asked_again_in_time():
    tracker = ChainTracker()
    tracker.apply(stored(1, 2), 0.0)
    waiting = PathVerdict(done=False, reason=UnattributedReason.NO_FORMAT)
    tracker.answer(ask(tracker).node, waiting, 0.0)
    assert tracker.stats.unattributed == {Unattributed.NO_FORMAT: 2}
    assert tracker.questions(9, 0.5) == []
    due = tracker.next_due(0.5)
    assert due == 1.0
    complete(tracker, 0, A, now=due)
    assert tracker.stats.unattributed == {}


def test_retry_asks_again_at_its_time():
    tracker = ChainTracker()
    tracker.apply(stored(1), 0.0)
    tracker.retry(ask(tracker).node, 5.0)
    assert tracker.next_due(0.0) == 5.0
    assert tracker.questions(9, 4.9) == []
    complete(tracker, 0, A, now=5.0)
    assert told(tracker, 5.0) == [(KvAction.CREATED, A, 4)]


# -- chains of unknown or foreign beginning -------------------------------------------------------


def test_an_unknown_parent_is_tracked_and_joins_when_it_appears():
    """Invariant 5, with another key for the orphan than its parent would have alone."""
    tracker = ChainTracker()
    assert tracker.apply(stored(3, 4, parent=2), 0.0) == ()
    assert tracker.stats.unattributed == {Unattributed.UNKNOWN_PARENT: 2}
    assert tracker.questions(9, 0.0) == []
    tracker.apply(stored(1, 2), 0.0)
    question = ask(tracker)
    assert question.tokens == array("I", [n for n in (1, 2, 3, 4) for _ in range(SIZE)])
    verdict = PathVerdict(completions=(Completion(block_index=2, keys=(A,)),), done=True)
    tracker.answer(question.node, verdict, 0.0)
    assert told(tracker, 0.0) == [(KvAction.CREATED, A, 16)]


@pytest.mark.parametrize(
    ("fields", "drops"),
    [
        ({"extra_keys": (("tenant",), None)}, (DropReason.FOREIGN_SALT,)),
        ({"extra_keys": ((b"media",), None)}, (DropReason.FOREIGN_SALT,)),
        ({"extra_keys": ((("image", 3),), None)}, (DropReason.FOREIGN_SALT,)),
        ({"extra_keys": (("cr1.looks.like",), None)}, (DropReason.FOREIGN_SALT,)),
        ({"cache_salt": "tenant"}, (DropReason.FOREIGN_SALT,)),
        (
            {"extra_keys": (("lora", "tenant"), ("lora",)), "lora_name": "lora"},
            (DropReason.FOREIGN_SALT,),
        ),
        (  # a client may choose its salt so
            {"extra_keys": (("lora", "lora"), ("lora",)), "lora_name": "lora"},
            (DropReason.FOREIGN_SALT,),
        ),
        ({"extra_keys": (("lora",), ("lora",)), "lora_name": "lora"}, ()),
        ({"extra_keys": (None, ("an image later on",))}, ()),
        ({"extra_keys": ()}, ()),
        ({"extra_keys": ((), None)}, ()),
    ],
    ids=str,
)
def test_foreign_salts(fields: dict[str, object], drops: tuple[DropReason, ...]):
    """Decisions C25, C41: counted once a chain, tracked, inherited, never asked nor announced."""
    tracker = ChainTracker()
    assert tracker.apply(stored(1, 2, **fields), 0.0) == drops
    assert tracker.apply(stored(1, 2, **fields), 0.0) == ()
    assert tracker.apply(stored(3, parent=2, lora_name=fields.get("lora_name")), 0.0) == ()
    assert tracker.stats.blocks == 3
    if drops:
        assert tracker.questions(9, 0.0) == []
        assert tracker.stats.tokens == 0
        assert tracker.stats.unattributed == {Unattributed.FOREIGN_SALT: 3}
        assert told(tracker, 0.0) == []
    else:
        assert len(tracker.questions(9, 0.0)) == 1


def test_a_salt_named_below_an_unknown_parent_is_foreign_too():
    tracker = ChainTracker()
    assert tracker.apply(stored(2, parent=1, cache_salt="t"), 0.0) == (DropReason.FOREIGN_SALT,)
    tracker.apply(stored(1, cache_salt="t"), 0.0)
    assert tracker.stats.unattributed == {Unattributed.FOREIGN_SALT: 2}


def test_verified_salts_need_no_text():
    """The seam for salt echo (C24, J15): verified, foreign and forged."""
    tracker = ChainTracker(verify_salt=lambda salt, _: (A,) if salt == "cr1.good" else None)
    assert tracker.apply(stored(1, 2, extra_keys=(("cr1.good",), None)), 0.0) == ()
    assert tracker.apply(stored(5, extra_keys=(("cr1.forged",),)), 0.0) == (DropReason.BAD_SALT,)
    assert tracker.apply(stored(6, cache_salt="plain"), 0.0) == (DropReason.FOREIGN_SALT,)
    assert tracker.questions(9, 0.0) == []
    assert told(tracker, 0.0) == [(KvAction.CREATED, A, 8)]
    assert tracker.stats.unattributed == {Unattributed.BAD_SALT: 1, Unattributed.FOREIGN_SALT: 1}


# -- sizes, groups, tiers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hashes", "tokens", "size", "mismatches"),
    [
        pytest.param(1, 4, 4, 0, id="one whole block"),
        pytest.param(3, 12, 4, 0, id="several, split evenly"),
        pytest.param(1, 3, 3, 0, id="a partial block says its own size"),
        pytest.param(1, 7, 0, 0, id="one hash without a size takes all"),
        pytest.param(1, 12, 4, 1, id="one hash over masked blocks"),
        pytest.param(2, 12, 4, 1, id="several hashes that do not fit"),
        pytest.param(3, 12, 0, 1, id="several hashes without a size"),
        pytest.param(1, 4, 2**60, 1, id="an absurd size"),
    ],
)
def test_block_sizes(hashes: int, tokens: int, size: int, mismatches: int):
    """Decisions C20."""
    tracker = ChainTracker()
    event = Stored(
        hashes=tuple(range(1, hashes + 1)), tokens=array("I", range(tokens)), block_size=size
    )
    assert tracker.apply(event, 0.0) == ()
    assert tracker.stats.blocks == hashes
    assert tracker.stats.block_size_mismatches_total == mismatches
    if mismatches:
        assert tracker.stats.unattributed == {Unattributed.BLOCK_SIZE: hashes}
        assert tracker.questions(9, 0.0) == []
        assert tracker.stats.tokens == 0
    else:
        assert ask(tracker).block_ends[-1] == tokens


def test_the_subtree_of_a_mismatch_is_unattributed_and_its_parent_keeps_its_worth():
    tracker = attributed()
    tracker.apply(stored(4, parent=3, block_size=9), 1.0)
    tracker.apply(stored(5, parent=4), 1.0)
    assert told(tracker, 1.0) == []
    assert tracker.stats.unattributed == {Unattributed.BLOCK_SIZE: 2}
    tracker.apply(removed(5), 1.0)
    tracker.apply(removed(4), 1.0)
    assert told(tracker, 1.0) == []
    assert tracker.stats.blocks == 3


def test_other_cache_groups_change_nothing():
    """User report K7: ten window blocks more and less."""
    tracker = attributed()
    window = stored(1, 2, 3, group=1, full_attention=False)
    assert tracker.apply(window, 1.0) == ()
    assert tracker.apply(removed(1, 2, 3, group=1), 1.0) == ()
    assert told(tracker, 1.0) == []
    assert tracker.stats.blocks == 3
    assert tracker.stats.ignored_group_events_total == 2


def test_groups_with_full_attention_count_their_copies_apart():
    tracker = attributed()
    tracker.apply(stored(1, group=2), 1.0)
    assert tracker.stats.blocks == 4
    assert tracker.apply(removed(1, group=2), 1.0) == ()
    assert tracker.apply(removed(1, group=2), 1.0) == (DropReason.UNKNOWN_BLOCK,)
    assert told(tracker, 1.0) == []


def test_lower_tiers_without_tokens_resolve_by_hash():
    """Decisions C13, C14; dynamo 10368."""
    tracker = attributed()
    lower = {"tokens": array("I"), "block_size": 0, "medium": Medium.CPU}
    assert tracker.apply(stored(1, 2, 3, **lower), 1.0) == ()
    assert told(tracker, 1.0) == []
    assert tracker.apply(stored(77, parent=3, **lower), 1.0) == (DropReason.UNKNOWN_BLOCK,)
    tracker.apply(removed(3, 2, 1), 1.0)
    assert told(tracker, 1.0) == [(KvAction.OFFLOADED, A, 12)]
    assert tracker.snapshot() == [(A, 12, True)]
    tracker.apply(stored(1, 2), 1.5)
    assert told(tracker, 1.5) == [(KvAction.RELOADED, A, 8)]
    tracker.apply(removed(3, 2, 1, medium=Medium.CPU), 2.0)
    assert told(tracker, 2.0) == []
    tracker.apply(removed(2, 1), 3.0)
    assert told(tracker, 3.0) == [(KvAction.EVICTED, A, None)]


def test_a_removal_from_a_tier_without_a_copy_is_harmless():
    tracker = attributed()
    assert tracker.apply(removed(3, medium=Medium.DISK), 1.0) == (DropReason.UNKNOWN_BLOCK,)
    assert told(tracker, 1.0) == []


def test_bytes_and_equal_ints_are_different_blocks():
    """User report K2."""
    tracker = attributed()
    raw = Stored(hashes=(b"\x03",), tokens=array("I", [1]), block_size=1)
    tracker.apply(raw, 1.0)
    assert tracker.stats.blocks == 4
    assert tracker.apply(Removed(hashes=(b"\x03",)), 1.0) == ()
    assert told(tracker, 1.0) == []


def test_an_event_without_hashes_is_malformed():
    assert ChainTracker().apply(stored(), 0.0) == (DropReason.MALFORMED_EVENT,)


@pytest.mark.parametrize(
    "events",
    [
        [stored(1, parent=1)],
        [stored(1, parent=2), stored(2, parent=1)],
        [stored(1, 1, 1)],
        [stored(1, 2, 1, parent=2)],
        [stored(1, parent=2), stored(2, parent=3), stored(3, parent=1)],
    ],
    ids=["own parent", "each other's", "repeated", "repeated below itself", "a ring of three"],
)
def test_impossible_ancestries_are_survived(events: list[Stored]):
    tracker = ChainTracker(ChainLimits(max_tracked_blocks=2))
    for event in events * 2:
        tracker.apply(event, 0.0)
    for question in tracker.questions(9, 0.0):
        tracker.answer(question.node, PathVerdict(done=False), 0.0)
    for event in events * 3:
        tracker.apply(Removed(hashes=event.hashes), 0.0)
    tracker.drain(1.0)
    assert tracker.stats.blocks == 0
    assert tracker.stats.tokens == 0


# -- limits ---------------------------------------------------------------------------------------


def test_the_block_limit_announces_exactly_the_prefixes_that_lost_their_last_block():
    """Invariant 4, S0: never everything, only what lost its last reference."""
    tracker = ChainTracker(ChainLimits(max_tracked_blocks=4))
    for number, key in ((10, A), (20, B)):
        tracker.apply(stored(number, number + 1), 0.0)
        complete(tracker, 0, key)
    assert told(tracker, 0.0) == [(KvAction.CREATED, A, 8), (KvAction.CREATED, B, 8)]
    tracker.apply(stored(30), 1.0)
    assert told(tracker, 1.0) == []
    tracker.apply(stored(31, parent=30), 1.0)
    assert told(tracker, 1.0) == [(KvAction.EVICTED, A, None)]
    assert tracker.snapshot() == [(B, 8, False)]
    assert tracker.stats.blocks == 4
    assert tracker.stats.blocks_evicted_total == 2


def test_the_token_limit_takes_texts_not_blocks():
    tracker = ChainTracker(ChainLimits(max_retained_tokens=3 * SIZE))
    tracker.apply(stored(1, 2), 0.0)
    tracker.apply(stored(10, 11), 0.0)
    stats = tracker.stats
    assert (stats.blocks, stats.tokens, stats.texts_dropped_total) == (4, 3 * SIZE, 1)
    question = ask(tracker)
    assert question.tokens[0] == 10
    assert tracker.stats.unattributed == {Unattributed.TEXT_DROPPED: 2, Unattributed.PENDING: 2}


def test_a_path_that_lost_a_text_is_asked_about_as_far_as_it_goes():
    tracker = ChainTracker(ChainLimits(max_retained_tokens=3 * SIZE))
    tracker.apply(stored(1, 2), 0.0)
    tracker.apply(stored(8, parent=1), 0.0)
    to_2, to_8 = tracker.questions(9, 0.0)
    tracker.retry(to_2.node, 5.0)
    tracker.retry(to_8.node, 1.0)
    tracker.retry(ask(tracker, 1.0).node, 9.0)  # so 1 was needed later than 2
    tracker.apply(removed(8), 1.0)
    tracker.apply(stored(50, 51), 1.0)
    assert [q.tokens[-1] for q in tracker.questions(9, 5.0)] == [51, 1]
    assert tracker.stats.unattributed == {Unattributed.TEXT_DROPPED: 1, Unattributed.PENDING: 3}


def test_the_chain_limit_asks_about_its_beginning_only():
    tracker = ChainTracker(ChainLimits(max_chain_tokens=2 * SIZE))
    tracker.apply(stored(1, 2, 3, 4), 0.0)
    question = ask(tracker)
    assert question.block_ends == (4, 8)
    verdict = PathVerdict(completions=(Completion(block_index=1, keys=(A,)),), done=True)
    tracker.answer(question.node, verdict, 0.0)
    assert told(tracker, 0.0) == [(KvAction.CREATED, A, 16)]


def test_a_long_lived_tracker_keeps_nothing_of_what_left():
    tracker = ChainTracker()
    for number in range(3_000):
        tracker.apply(stored(number * 10, number * 10 + 1), float(number))
        if number % 3:
            for question in tracker.questions(1, float(number)):
                key = PrefixKey(number.to_bytes(32, "big"))
                verdict = PathVerdict(
                    completions=(Completion(block_index=0, keys=(key,)),), done=True
                )
                tracker.answer(question.node, verdict, float(number))
        tracker.apply(removed(number * 10 + 1, number * 10), float(number))
        tracker.drain(float(number))
    stats = tracker.stats
    assert (stats.blocks, stats.tokens, stats.prefixes, stats.unattributed) == (0, 0, 0, {})
    assert tracker.next_due(1e9) is None
    assert len(tracker._chains.inquiry._ready) < 300
    assert len(tracker._ledger._entries) == 0


# -- recordings -----------------------------------------------------------------------------------


def play(tracker: ChainTracker, name: str, engine: str = "vllm") -> list[DropReason]:
    drops: list[DropReason] = []
    for line in (WIRE / name).read_text().splitlines():
        recorded = json.loads(line)
        if recorded.get("dir") or "frames" not in recorded:
            continue
        payload = base64.b64decode(recorded["frames"][-1])
        for event in decode_batch(payload, engine).events:
            drops += tracker.apply(event, 0.0)
    return drops


def test_duplicates_of_the_recording_end_where_the_engine_did():
    """wire/README.md, 1 and 7: with references counted no removal is of an unknown block."""
    tracker = ChainTracker()
    assert play(tracker, "vllm-0.32.0/evict.jsonl") == []
    assert play(tracker, "vllm-0.32.0/dup.jsonl") == []
    nodes = tracker._chains.graph.nodes.values()
    assert sum(node.gpu for node in nodes) <= 24  # num_gpu_blocks of that engine
    assert not any(node.cut for node in nodes)
    assert all(node.gpu > 0 for node in nodes)


def test_duplicates_alone_begin_in_mid_stream():
    tracker = ChainTracker()
    drops = play(tracker, "vllm-0.32.0/dup.jsonl")
    assert drops == [DropReason.UNKNOWN_BLOCK] * 22


@pytest.mark.parametrize(
    ("name", "engine", "foreign"),
    [
        ("vllm-0.32.0/events.jsonl", "vllm", 3),
        ("vllm-0.23.0/events.jsonl", "vllm", 5),
        ("vllm-0.16.0/events.jsonl", "vllm", 0),
        ("vllm-0.32.0/lora_bytes_hashes.jsonl", "vllm", 1),
        ("sglang-0.5.23/page16.jsonl", "sglang", 1),
        ("sglang-0.5.23/page1.jsonl", "sglang", 1),
        ("sglang-0.5.23/dynamo16.jsonl", "sglang", 1),
        ("sglang-0.5.16/page16.jsonl", "sglang", 0),
    ],
)
def test_recordings_track_without_a_stray_event(name: str, engine: str, foreign: int):
    tracker = ChainTracker()
    assert play(tracker, name, engine) == [DropReason.FOREIGN_SALT] * foreign
    assert tracker.stats.block_size_mismatches_total == 0
    assert Unattributed.UNKNOWN_PARENT not in tracker.stats.unattributed


def test_ask_again_asks_about_paths_that_fit_no_format():
    tracker = ChainTracker()
    tracker.apply(stored(1, 2), 0.0)
    verdict = PathVerdict(done=True, reason=UnattributedReason.NO_MATCH)
    tracker.answer(ask(tracker).node, verdict, 0.0)
    tracker.apply(stored(3, parent=2), 0.0)
    assert tracker.questions(9, 100.0) == []
    assert tracker.stats.unattributed == {Unattributed.NO_MATCH: 3}
    assert tracker.ask_again(100.0) == 1
    question = ask(tracker, 100.0)
    assert question.tokens == array("I", [1] * 4 + [2] * 4 + [3] * 4)
    done = PathVerdict(completions=(Completion(block_index=2, keys=(A,)),), done=True)
    tracker.answer(question.node, done, 100.0)
    assert told(tracker, 100.0) == [(KvAction.CREATED, A, 12)]
    assert tracker.stats.unattributed == {}


def test_ask_again_wakes_paths_that_wait_for_more_text():
    tracker = ChainTracker()
    tracker.apply(stored(1), 0.0)
    tracker.answer(ask(tracker).node, PathVerdict(done=False), 0.0)
    assert tracker.questions(9, 1000.0) == []
    assert tracker.ask_again(1000.0) == 1
    assert ask(tracker, 1000.0).tokens == array("I", [1] * 4)


def test_ask_again_makes_answers_in_the_air_worthless():
    tracker = ChainTracker()
    tracker.apply(stored(1), 0.0)
    question = ask(tracker)
    assert tracker.ask_again(1.0) == 1
    done = PathVerdict(completions=(Completion(block_index=0, keys=(A,)),), done=True)
    tracker.answer(question.node, done, 1.0)
    assert told(tracker, 1.0) == []
    complete(tracker, 0, B, now=1.0)
    assert told(tracker, 1.0) == [(KvAction.CREATED, B, 4)]


def test_an_unproved_suspect_is_not_told_again_and_lapses():
    tracker = attributed(doubt_seconds=600.0)
    tracker.suspect(100.0)
    assert tracker.doubted() == {A}
    assert tracker.stats.doubted_prefixes == 1
    assert told(tracker, 699.0) == []
    assert tracker.next_due(699.0) == 700.0
    assert told(tracker, 700.0) == [(KvAction.EVICTED, A, None)]
    assert tracker.stats.blocks == 3
    assert tracker.doubted() == frozenset()


def test_a_store_below_a_suspect_proves_it_and_its_ancestors():
    tracker = attributed(doubt_seconds=600.0)
    tracker.suspect(100.0)
    tracker.apply(stored(4, parent=2), 200.0)
    assert tracker.doubted() == frozenset()
    assert told(tracker, 200.0) == []  # block 3 makes as many tokens
    assert told(tracker, 700.0) == []
    tracker.apply(removed(4), 701.0)
    assert told(tracker, 701.0) == [(KvAction.CREATED, A, 8)]  # block 3 has lapsed


def test_a_lapsed_block_is_back_as_soon_as_a_store_proves_it():
    tracker = attributed(doubt_seconds=600.0)
    tracker.suspect(100.0)
    assert told(tracker, 700.0) == [(KvAction.EVICTED, A, None)]
    tracker.apply(stored(5, parent=3), 5000.0)
    assert told(tracker, 5000.0) == [(KvAction.CREATED, A, 16)]


def test_a_proved_block_counts_once_whatever_was_counted_before():
    tracker = attributed(doubt_seconds=600.0)
    tracker.apply(stored(3, parent=2), 1.0)
    tracker.suspect(100.0)  # a removal of one copy may have been lost
    tracker.apply(stored(3, parent=2), 200.0)
    tracker.apply(removed(3), 201.0)
    assert told(tracker, 201.0) == [(KvAction.CREATED, A, 8)]


def test_a_copy_on_a_lower_tier_proves_nothing_above_it():
    tracker = attributed(doubt_seconds=600.0)
    tracker.suspect(100.0)
    tracker.apply(stored(4, parent=3, medium=Medium.CPU), 200.0)
    assert tracker.doubted() == {A}
    assert told(tracker, 700.0) == [(KvAction.EVICTED, A, None)]


def test_copies_beyond_the_engines_blocks_are_drift():
    tracker = attributed()
    for _ in range(3):
        tracker.apply(stored(2, parent=1), 1.0)  # re-reported without new copies
    assert tracker.fit(6) == 0
    assert tracker.fit(4) == 2
    assert told(tracker, 1.0) == []
    assert tracker.fit(3) == 1
    assert tracker.fit(2) == 1  # the end of a chain goes next
    assert told(tracker, 2.0) == [(KvAction.CREATED, A, 8)]
    assert tracker.stats.drifted_copies_total == 4
