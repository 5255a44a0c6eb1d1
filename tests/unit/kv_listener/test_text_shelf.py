"""The retained tokens stay within their limit; the least recently needed text goes first."""

from array import array

from continuum_kv_listener.block_graph import Node
from continuum_kv_listener.scope import Kind, Scope
from continuum_kv_listener.text_shelf import TextShelf


def node() -> Node:
    return Node(object(), None, size=1, depth=1, scope=Scope(Kind.OPEN))  # type: ignore[arg-type]


def text(length: int) -> bytes:
    return array("I", range(length)).tobytes()


def test_room_is_made_from_the_oldest_on():
    shelf = TextShelf(10)
    first, second, third = node(), node(), node()
    assert shelf.put(first, text(4))
    assert shelf.put(second, text(4))
    shelf.touch(first)
    assert shelf.put(third, text(4))
    assert second.tokens is None
    assert first.tokens is not None
    assert third.tokens is not None
    assert (shelf.used, shelf.dropped_total) == (8, 1)


def test_a_text_over_the_whole_limit_is_refused_and_takes_nothing_with_it():
    shelf = TextShelf(10)
    kept, huge = node(), node()
    shelf.put(kept, text(10))
    assert not shelf.put(huge, text(11))
    assert kept.tokens is not None
    assert huge.tokens is None
    assert (shelf.used, shelf.dropped_total) == (10, 1)


def test_taking_is_idempotent_and_touching_the_textless_is_harmless():
    shelf = TextShelf(10)
    one = node()
    shelf.put(one, text(3))
    shelf.take(one)
    shelf.take(one)
    shelf.touch(one)
    assert shelf.used == 0
    shelf.put(one, text(3))
    shelf.clear()
    assert shelf.used == 0


def test_texts_that_come_and_go_leave_nothing_behind():
    shelf = TextShelf(10_000)
    for _ in range(10_000):
        one = node()
        shelf.put(one, text(1))
        shelf.take(one)
    assert len(shelf.order) <= 66
    assert (shelf.used, shelf.count) == (0, 0)


def test_texts_that_are_needed_over_and_over_are_mentioned_a_few_times():
    shelf = TextShelf(10)
    one, two, three = node(), node(), node()
    shelf.put(one, text(4))
    shelf.put(two, text(4))
    for _ in range(10_000):
        shelf.touch(two)
        shelf.touch(one)
    assert len(shelf.order) <= 70
    shelf.put(three, text(4))
    assert (one.tokens is None, two.tokens is None) == (False, True)
