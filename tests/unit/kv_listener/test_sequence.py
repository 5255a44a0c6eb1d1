"""The numbers of one publisher: next, duplicate, gap, restart."""

import pytest

from continuum_kv_listener.sequence import (
    MARKED_BYTES,
    MAX_REPLAYED,
    RestartLog,
    SequenceTracker,
    Verdict,
    mark_of,
)

N, D, G, B = Verdict.NEXT, Verdict.DUPLICATE, Verdict.GAP, Verdict.BACKWARDS


def run(steps):
    """Play (how, seq[, fingerprint]) steps; returns the verdicts and the tracker."""
    tracker = SequenceTracker()
    out = []
    for how, *args in steps:
        if how == "connect":
            tracker.connected()
        elif how == "confirm":
            tracker.confirmed()
        elif how == "restart":
            tracker.restarted()
        elif how == "skip":
            out.append(tracker.skip_to_live(args[0], args[0]))
        elif how == "skip-replay":
            out.append(tracker.skip_to_replayed(args[0], args[0]))
        else:
            seq = args[0]
            mark = args[1] if len(args) > 1 else seq
            out.append(getattr(tracker, how)(seq, mark))
    return out, tracker


CASES = {
    "a fresh publisher counts from zero": ([("live", 0), ("live", 1), ("live", 2)], [N, N, N]),
    "the first number above zero is a gap (J6)": ([("live", 3)], [G]),
    "a gap does not move": ([("live", 0), ("live", 5), ("live", 1)], [N, G, N]),
    "a gap can be skipped": ([("live", 0), ("live", 5), ("skip", 5), ("live", 6)], [N, G, 4, N]),
    "a replay fills the gap and the live one is a duplicate": (
        [("live", 0), ("live", 2), ("replayed", 1), ("replayed", 2), ("live", 2), ("live", 3)],
        [N, G, N, N, D, N],
    ),
    "a replay that overlaps gives duplicates": (
        [("live", 0), ("live", 1), ("replayed", 0), ("replayed", 1), ("replayed", 2), ("live", 2)],
        [N, N, D, D, N, D],
    ),
    "a hole in a replay is a gap": ([("replayed", 0), ("replayed", 2)], [N, G]),
    "a replay whose buffer begins late": (
        [("skip-replay", 40), ("replayed", 41), ("live", 42)],
        [40, N, N],
    ),
    "backwards on one connection": ([("live", 0), ("live", 1), ("live", 0, 77)], [N, N, B]),
    "the very same message again": ([("live", 0), ("live", 1), ("live", 1)], [N, N, D]),
    "the same number with another payload": ([("live", 0), ("live", 0, 99)], [N, B]),
    "a known number on a new connection without replay": (
        [("live", 0), ("live", 1), ("connect",), ("confirm",), ("live", 1)],
        [N, N, B],
    ),
    "a known number that the replay gave on this connection": (
        [("live", 0), ("connect",), ("replayed", 0), ("replayed", 1), ("live", 1), ("live", 2)],
        [N, D, N, D, N],
    ),
    "a number beyond the replay but known from before": (
        [("live", 0), ("live", 1), ("live", 2), ("connect",), ("replayed", 0), ("live", 2)],
        [N, N, N, D, B],
    ),
    "the newest replayed number comes live with another payload": (
        [("replayed", 0), ("replayed", 1), ("live", 1, 5)],
        [N, N, B],
    ),
    "an older replayed number comes live with another payload": (
        [("replayed", 0), ("replayed", 1), ("replayed", 2), ("live", 1, 5)],
        [N, N, N, B],
    ),
    "older replayed numbers come live as they were": (
        [("replayed", 0), ("replayed", 1), ("replayed", 2), ("live", 1), ("live", 2), ("live", 3)],
        [N, N, N, D, D, N],
    ),
    "after a restart everything is new": (
        [("live", 0), ("live", 1), ("restart",), ("live", 0), ("live", 1)],
        [N, N, N, N],
    ),
}


@pytest.mark.parametrize(("steps", "verdicts"), CASES.values(), ids=CASES)
def test_verdicts(steps, verdicts):
    assert run(steps)[0] == verdicts


def test_the_anchor_is_the_newest_batch_before_the_first_unconfirmed_connection():
    _, tracker = run([("live", 0), ("live", 1, 11), ("connect",), ("live", 2, 22), ("connect",)])
    assert tracker.anchor is not None
    assert (tracker.anchor.seq, tracker.anchor.fingerprint) == (1, 11)
    tracker.confirmed()
    assert tracker.anchor is None


def test_there_is_no_anchor_before_anything_is_known():
    _, tracker = run([("connect",)])
    assert tracker.anchor is None
    assert tracker.next_wanted == 0


def test_fingerprints_of_replayed_batches_are_bounded():
    tracker = SequenceTracker()
    for seq in range(MAX_REPLAYED + 5):
        tracker.replayed(seq, seq)
    assert tracker.live(4, 99) is D
    assert tracker.live(5, 99) is B


def test_next_wanted_and_missing():
    _, tracker = run([("live", 0), ("live", 1)])
    assert tracker.next_wanted == 2
    assert tracker.missing_before(2) == 0
    assert tracker.missing_before(7) == 5


@pytest.mark.parametrize(
    ("times", "now", "suspicious"),
    [
        ([0, 1, 2], 2, False),
        ([0, 1, 2, 3], 3, True),
        ([0, 30, 45, 61], 61, False),
        ([0, 1, 2, 3], 60.5, False),
        ([0, 50, 51, 52, 53], 53, True),
    ],
)
def test_more_than_three_restarts_a_minute_are_suspicious(times, now, suspicious):
    log = RestartLog()
    for time in times:
        log.note(time)
    assert log.total == len(times)
    assert log.suspicious(now) is suspicious


def test_a_mark_tells_payloads_apart_by_what_an_engine_changes():
    """Of a large payload the ends and the size count: the time stamp is at the front."""
    large = bytes(4 * MARKED_BYTES)
    assert mark_of(large) == mark_of(bytes(4 * MARKED_BYTES))
    assert mark_of(b"a") == hash(b"a")
    others = (b"\1" + large[1:], large[:-1] + b"\1", large + b"\0", b"")
    assert len({mark_of(each) for each in (large, *others)}) == 5
