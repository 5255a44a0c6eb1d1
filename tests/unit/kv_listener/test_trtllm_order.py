import pytest

from continuum_kv_listener.trtllm_order import REMEMBERED, EventOrder, Step


def steps(order, *events, rank=0):
    return [order.step(rank, number, mark)[0] for number, mark in events]


N, D, G, R = Step.NEXT, Step.DUPLICATE, Step.GAP, Step.RESTART


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(0, 1), (1, 1), (2, 1)], [N, N, N]),
        ([(7, 1), (8, 1)], [N, N]),
        ([(0, 1), (1, 2), (0, 1), (1, 2), (2, 3)], [N, N, D, D, N]),
        ([(0, 1), (2, 1), (3, 1)], [N, G, N]),
        ([(5, 1), (0, 9), (1, 1)], [N, R, N]),
        ([(0, 1), (1, 2), (1, 3), (2, 3)], [N, N, R, N]),
        ([(5, 1), (3, 1), (4, 1)], [N, R, N]),
    ],
)
def test_what_each_number_means(events, expected):
    assert steps(EventOrder(), *events) == expected


def test_a_gap_says_how_many_are_missing():
    order = EventOrder()
    order.step(0, 3, 0)
    assert order.step(0, 7, 0) == (Step.GAP, 3)
    assert order.last == 7


def test_ranks_have_numbers_of_their_own_and_restart_together():
    order = EventOrder()
    assert steps(order, (0, 1), (1, 1)) == [N, N]
    assert steps(order, (0, 1), (1, 1), (2, 1), rank=1) == [N, N, N]
    assert order.last == 2
    assert steps(order, (0, 5)) == [R]
    assert steps(order, (0, 5), rank=1) == [N]
    assert order.last == 0


def test_the_same_words_after_an_outage_are_a_new_process():
    order = EventOrder()
    assert steps(order, (0, 1), (1, 2)) == [N, N]
    order.unanswered()
    assert steps(order, (0, 1)) == [R]
    assert steps(order, (1, 2)) == [N]


def test_an_outage_alone_is_no_restart():
    order = EventOrder()
    assert steps(order, (0, 1)) == [N]
    order.unanswered()
    assert steps(order, (1, 1), (2, 1)) == [N, N]


def test_what_is_remembered_is_bounded():
    order = EventOrder()
    for number in range(REMEMBERED + 1):
        order.step(0, number, 0)
    assert steps(order, (1, 0)) == [D]
    assert steps(order, (0, 0)) == [R]
