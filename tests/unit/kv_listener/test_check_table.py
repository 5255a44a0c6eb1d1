"""The table of ``--check`` and the sentence below it."""

import pytest

from continuum_kv_listener.check_table import REPLAY_HINTS, Outcome, next_step, table
from continuum_kv_listener.replay import ReplayFault


def test_the_table():
    rows = [
        Outcome(source="vllm-1", what="replay", endpoint="tcp://h:1", good=True),
        Outcome(source="b", what="health", endpoint="http://h", good=False, note="why"),
        Outcome(source="c", what="events (bind)", endpoint="tcp://*:5", good=None),
    ]
    assert table(rows) == (
        "SOURCE  WHAT           ENDPOINT   RESULT\n"
        "vllm-1  replay         tcp://h:1  ok\n"
        "b       health         http://h   FAILED  why\n"
        "c       events (bind)  tcp://*:5  -"
    )


def rows(*good: bool | None) -> list[Outcome]:
    return [Outcome(source="s", what="w", endpoint="e", good=each) for each in good]


@pytest.mark.parametrize(
    ("outcomes", "sentence"),
    [
        (rows(True, True), "2 ok, 0 failed, 0 not tried. Next: start the listener."),
        (
            rows(True, None),
            "1 ok, 0 failed, 1 not tried. Next: start the listener; GET /sources says when the "
            "rest is there.",
        ),
        (
            rows(False, True, None),
            "1 ok, 1 failed, 1 not tried. Next: what FAILED, from the top; rows below may fail "
            "because of it.",
        ),
    ],
)
def test_what_is_next(outcomes, sentence):
    assert next_step(outcomes) == sentence


def test_every_way_a_replay_fails_has_a_hint():
    assert set(REPLAY_HINTS) == set(ReplayFault)
