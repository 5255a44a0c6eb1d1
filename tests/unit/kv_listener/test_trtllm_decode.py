import json
import time
from pathlib import Path

import orjson
import pytest

from continuum_kv_listener.engine_events import (
    Cleared,
    DropReason,
    Medium,
    Moved,
    Removed,
    Stored,
)
from continuum_kv_listener.trtllm_decode import decode_answer, events_of, read_answer
from support.source_tree import ROOT
from support.trtllm_server import block, created, numbered, removed, stored, updated

SHAPE = Path(ROOT) / "tests" / "fixtures" / "wire" / "trtllm" / "kv_cache_events_shape.json"
BAD, UNKNOWN = DropReason.MALFORMED_EVENT, DropReason.UNKNOWN_TAG


TO_HOST = Moved(hashes=(1,), medium=Medium.CPU)


def told(*datas, **more):
    answer = decode_answer(numbered(datas, **more))
    return list(events_of(numbered(datas, **more))), list(answer.drops)


def run(hashes, parent, size, **more):
    """(hashes, parent, block size, tokens, medium, salt, group) of one Stored."""
    return (
        tuple(hashes),
        parent,
        size,
        size * len(hashes),
        more.get("medium", Medium.GPU),
        more.get("salt"),
        more.get("group", 0),
    )


def flat(event):
    assert isinstance(event, Stored)
    sizes = (event.block_size, len(event.tokens))
    return (event.hashes, event.parent, *sizes, event.medium, event.cache_salt, event.group)


def test_the_recorded_shape():
    answer = decode_answer(SHAPE.read_bytes())
    assert answer.drops == ()
    assert [(i.event_id, i.rank, i.window) for i in answer.items] == [
        (n, 0, 4096) for n in range(5)
    ]
    first, root, child, moved, gone = events_of(SHAPE.read_bytes())
    assert first == Cleared()
    assert flat(root) == run([13871214837331233412], None, 2)
    assert flat(child) == run([2203947715204870041], 13871214837331233412, 1, salt="tenant-a")
    assert moved == Moved(hashes=(13871214837331233412,), medium=Medium.CPU)
    assert gone == Removed(hashes=(2203947715204870041,))


def test_no_token_id_is_kept():
    events, _ = told(stored(None, block(1)))
    assert set(events[0].tokens) == {0}
    assert "salt" not in repr(told(stored(None, block(1, salt="salt-canary")))[0])


def test_a_chain_is_cut_into_runs_of_one_size_and_place():
    events, drops = told(
        stored(9, block(1, salt="s"), block(2), block(3, level=1), block(4, 7, level=1))
    )
    assert [flat(each) for each in events] == [
        run([1, 2], 9, 32, salt="s"),
        run([3], 2, 32, medium=Medium.CPU),
        run([4], 3, 7, medium=Medium.CPU),
    ]
    assert drops == []


@pytest.mark.parametrize(
    ("data", "events", "drops"),
    [
        (None, [], [BAD]),
        ([], [], [BAD]),
        ({}, [], [BAD]),
        ({"type": None}, [], [BAD]),
        ({"type": "evicted"}, [], [UNKNOWN]),
        (created(), [Cleared()], []),
        ({"type": "created"}, [Cleared()], []),
        (removed(1, 2), [Removed(hashes=(1, 2))], []),
        (removed("18446744073709551615"), [Removed(hashes=(2**64 - 1,))], []),
        (removed(-1), [Removed(hashes=(2**64 - 1,))], []),
        (removed(1, None, 2), [Removed(hashes=(1, 2))], [BAD]),
        (removed(True, 1.5, "x", 2**70, "9" * 25), [], [BAD] * 5),
        (removed(), [], [BAD]),
        ({"type": "removed"}, [], [BAD]),
        (updated(1, 1, 0), [Moved(hashes=(1,), medium=Medium.CPU)], []),
        (updated(1, 0, 1), [Moved(hashes=(1,), medium=Medium.GPU)], []),
        (updated(1, 5), [Moved(hashes=(1,), medium=Medium.DISK)], []),
        (updated(1, None), [], []),
        ({"type": "updated", "block_hash": 1, "cache_level": None, "priority": 3}, [], []),
        ({"type": "updated", "block_hash": 1, "cache_level": 1}, [TO_HOST], []),
        (updated(1, "1"), [], [BAD]),
        (updated(1, -1), [], [BAD]),
        (updated(None, 1), [], [BAD]),
        (stored(None), [], [BAD]),
        ({"type": "stored", "blocks": None}, [], [BAD]),
        (stored("x", block(1)), [], [BAD]),
        (stored(None, block(1, 0)), [], [BAD]),
        (stored(None, block(None)), [], [BAD]),
        (stored(None, {"block_hash": 1, "tokens": None}), [], [BAD]),
        (stored(None, block(1, cache_level="0")), [], [BAD]),
        (stored(None, None), [], [BAD]),
    ],
)  # fmt: skip
def test_each_shape(data, events, drops):
    assert told(data) == (events, drops)


@pytest.mark.parametrize(
    ("blocks", "runs", "bad"),
    [
        pytest.param([block(1, priority=None, cache_level=None)], [run([1], 9, 32)], 0, id="nulls"),
        pytest.param([{"block_hash": 1, "tokens": [0]}], [run([1], 9, 1)], 0, id="least"),
        pytest.param([block(1), block(None), block(3)], [run([1, 3], 9, 32)], 1, id="a hole"),
        pytest.param([block(1), block(1)], [run([1], 9, 32)], 1, id="twice"),
        pytest.param([block(9), block(2)], [run([2], 9, 32)], 1, id="its own parent"),
        pytest.param([block(1, salt=5)], [run([1], 9, 32, salt="")], 0, id="odd salt"),
    ],
)  # fmt: skip
def test_a_bad_block_costs_itself(blocks, runs, bad):
    events, drops = told(stored(9, *blocks))
    assert [flat(each) for each in events] == runs
    assert drops == [BAD] * bad


@pytest.mark.parametrize(
    ("body", "drops"),
    [
        (b"[]", ()),
        (b"[{}, {}]", ()),
        (b"", (DropReason.UNDECODABLE_BATCH,)),
        (b"{}", (DropReason.UNDECODABLE_BATCH,)),
        (b"null", (DropReason.UNDECODABLE_BATCH,)),
        (b'[{"event_id": 1, "da', (DropReason.UNDECODABLE_BATCH,)),
        (b"<html>", (DropReason.UNDECODABLE_BATCH,)),
        (b"\xff\xfe[]", (DropReason.UNDECODABLE_BATCH,)),
        (b"[" * 100_000, (DropReason.UNDECODABLE_BATCH,)),
        (b"[1, null, []]", (BAD, BAD, BAD)),
        (b" [ ] \n", ()),
        (b"[{},]", (DropReason.UNDECODABLE_BATCH,)),
        (b"[{}", (DropReason.UNDECODABLE_BATCH,)),
        (b"[{} {}]", (DropReason.UNDECODABLE_BATCH,)),
        (b"[] []", (DropReason.UNDECODABLE_BATCH,)),
        (b"[NaN]", (DropReason.UNDECODABLE_BATCH,)),
        (b"[" + b"9" * 5000 + b"]", (DropReason.UNDECODABLE_BATCH,)),
    ],
)
def test_answers_without_events(body, drops):
    answer = decode_answer(body)
    assert (answer.items, answer.drops) == ((), drops)


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"event_id": None},
        {"event_id": -1},
        {"event_id": True},
        {"event_id": 1.0},
        {"event_id": "1"},
        {"event_id": 0, "attention_dp_rank": 256},
        {"event_id": 0, "attention_dp_rank": -1},
        {"event_id": 0, "window_size": "4096"},
    ],
    ids=json.dumps,
)
def test_an_element_without_a_usable_number_is_dropped(head):
    answer = decode_answer(orjson.dumps([{**head, "data": removed(1)}]))
    assert (answer.items, answer.drops) == ((), (BAD,))


def test_a_bad_element_keeps_its_number():
    answer = decode_answer(numbered([removed(1), {"type": "stored"}, removed(2)], first=4))
    assert [(i.event_id, len(i.events)) for i in answer.items] == [(4, 1), (5, 0), (6, 1)]


def test_nesting_beyond_any_event_costs_one_event():
    deep = b'{"type":"removed","block_hashes":[1],"x":' + b"[" * 600 + b"]" * 600 + b"}"
    answer = decode_answer(b'[{"event_id":3,"data":' + deep + b"}]")
    assert [(i.event_id, i.events) for i in answer.items] == [(3, (Removed(hashes=(1,)),))]


def test_ranks_are_groups():
    events, _ = told(stored(None, block(1)), removed(1), updated(1, 1), attention_dp_rank=3)
    assert [each.group for each in events] == [3, 3, 3]


def test_equal_words_have_equal_marks():
    words = b'{"event_id":1,"data":{"type":"removed","block_hashes":[1]}}'
    other = words.replace(b"[1]", b"[2]")
    first, second, third = decode_answer(b"[" + b" , ".join([words, words, other]) + b"]").items
    assert first.mark == second.mark != third.mark


def test_an_answer_is_read_step_by_step():
    steps = read_answer(numbered([removed(1), None, removed(2)]) + b"\n")
    assert [next(steps) for _ in range(3)] == [None] * 3
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert [len(item.events) for item in done.value.value.items] == [1, 0, 1]


def test_white_space_is_passed_over_at_once():
    """An answer may be megabytes of it, and nobody else has a turn meanwhile."""
    body = b"[" + b" \n" * 4_000_000 + b"]"
    began = time.process_time()
    assert decode_answer(body).drops == ()
    assert time.process_time() - began < 0.4
