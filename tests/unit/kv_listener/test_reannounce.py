"""Slots of the re-announcement interval, and when a source may still vouch."""

from continuum_kv_listener.reannounce import SLOTS, Reannouncer, Vouching, in_slots
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import PrefixKey

EVENTS = [
    KvEvent(action=KvAction.CREATED, prefix=PrefixKey(bytes([first]) * 32), tokens=first)
    for first in range(256)
]


def test_every_prefix_comes_exactly_once_an_interval():
    told = [e.prefix for slot in range(SLOTS) for e in in_slots(EVENTS, [slot])]
    assert sorted(told) == sorted(e.prefix for e in EVENTS)
    sizes = [len(list(in_slots(EVENTS, [slot]))) for slot in range(SLOTS)]
    assert (min(sizes), max(sizes)) == (12, 13)


def test_slots_come_one_after_the_other():
    timer = Reannouncer(200.0, now=0.0)
    assert timer.wait(0.0) == 10.0
    assert timer.due(9.9) == []
    assert timer.due(10.0) == [0]
    assert timer.due(10.0) == []
    assert timer.due(30.0) == [1, 2]
    assert timer.wait(33.0) == 7.0


def test_after_a_pause_each_slot_comes_at_most_once():
    timer = Reannouncer(20.0, now=0.0)
    assert sorted(timer.due(1000.0)) == list(range(SLOTS))
    assert timer.wait(1000.0) == 1.0


def test_a_source_vouches_until_one_interval_of_silence():
    vouching = Vouching(100.0, now=0.0)
    vouching.healthy(50.0)
    vouching.note(50.0, link=True, process=True)
    assert vouching.holds(149.9)
    assert not vouching.holds(150.0)


def test_each_of_the_three_is_needed():
    for missing in ("link", "process", "health"):
        vouching = Vouching(100.0, now=0.0)
        vouching.note(90.0, link=missing != "link", process=missing != "process")
        if missing != "health":
            vouching.healthy(90.0)
        assert not vouching.holds(110.0), missing
        vouching.note(120.0, link=True, process=True)
        vouching.healthy(120.0)
        assert vouching.holds(130.0), missing


def test_how_long_the_engine_is_silent():
    vouching = Vouching(100.0, now=0.0)
    vouching.healthy(10.0)
    assert vouching.engine_silent_for(35.0) == 25.0
