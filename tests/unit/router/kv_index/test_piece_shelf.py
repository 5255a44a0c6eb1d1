import pytest

from continuum_router.kv_index.piece_shelf import HEAD_WEIGHTS, Shelf


def put(shelf, key, now, *pieces, weight=1.0):
    group = shelf.group(key, now)
    for piece in pieces:
        if group.pieces.pop(piece, None) is None:
            shelf.size += weight
        group.pieces[piece] = (now, weight)
    return group


@pytest.fixture
def shelf():
    return Shelf(1, 100.0, least=1.0, step=0.03)


def test_the_three_heads_are_one_piece():
    assert HEAD_WEIGHTS == (0.25, 0.25, 0.5)


def test_the_oldest_use_goes_first_over_all_groups(shelf):
    put(shelf, b"A", 1.0, b"a1", b"a2")
    put(shelf, b"B", 2.0, b"b1")
    put(shelf, b"A", 3.0, b"a1")
    assert shelf.trim(2.0) == [b"a2"]
    assert shelf.trim(1.0) == [b"b1"]
    assert shelf.oldest()[0] == 3.0
    assert shelf.trim(0.0) == [b"a1"]
    assert (shelf.size, shelf.oldest(), shelf.groups) == (0.0, None, {})


def test_trim_takes_no_more_than_is_over(shelf):
    put(shelf, b"A", 1.0, b"1", b"2", b"3", b"4")
    assert shelf.trim(2.5) == [b"1", b"2"]
    assert shelf.trim(2.5) == []
    assert shelf.size == 2.0


def test_time_takes_what_was_not_used_since(shelf):
    put(shelf, b"A", 1.0, b"1", b"2")
    put(shelf, b"B", 2.0, b"3")
    put(shelf, b"B", 3.0, b"4")
    assert shelf.expire(2.0, 2) == [b"1", b"2"]
    assert shelf.expire(2.0, 10) == [b"3"]
    assert shelf.expire(2.0, 10) == []
    assert shelf.size == 1.0


def test_a_group_is_cut_to_what_is_left_of_it(shelf):
    group = put(shelf, b"A", 1.0, b"1", b"2", b"3")
    assert shelf.trim_group(group, 1.0) == [b"1", b"2"]
    assert shelf.trim_group(group, 1.0) == []
    assert (shelf.size, shelf.count(), shelf.pieces()) == (1.0, 1, [b"3"])


def test_a_group_goes_whole(shelf):
    put(shelf, b"A", 1.0, b"1", b"2")
    put(shelf, b"B", 2.0, b"3", weight=0.25)
    assert shelf.drop(b"A") == [b"1", b"2"]
    assert shelf.drop(b"A") == []
    assert shelf.size == 0.25


def test_a_group_that_returns_has_its_new_age(shelf):
    put(shelf, b"A", 1.0, b"1")
    shelf.drop(b"A")
    put(shelf, b"B", 2.0, b"2")
    put(shelf, b"A", 3.0, b"1")
    assert shelf.trim(1.0) == [b"2"]


def test_groups_that_come_and_go_leave_nothing_behind(shelf):
    for turn in range(1000):
        put(shelf, b"%d" % turn, float(turn), b"p%d" % turn)
        shelf.drop(b"%d" % turn)
    assert len(shelf._ages) <= 66
