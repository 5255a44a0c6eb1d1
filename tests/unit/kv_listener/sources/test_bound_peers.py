"""Counting the publishers of a bound socket from its monitor's events."""

import pytest

from continuum_kv_listener.sources.bound_peers import BoundPeers


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ("", 0),
        ("a1", 0),
        ("a1 up", 1),
        ("a1 up e1", 0),
        ("a1 up a2 up", 2),
        ("a1 up a2 up e1", 1),
        ("a1 up a2 e2", 1),
        ("a1 up a2 e2 a2 e2 a2 e2", 1),
        ("a1 up a2 e2 e1", 0),
        ("a1 a2 up", 1),
        ("a1 a2 up e1", 1),
        ("a1 a2 up e1 e2", 0),
        ("a1 a2 up up", 2),
        ("a1 a2 up up e2", 1),
        ("a1 a2 up a3 e3 e2", 1),
        ("a1 a2 up a3 e3 e2 e1", 0),
        ("a1 up a1 up", 1),
        ("up", 0),
        ("e1", 0),
        ("a1 up e2", 1),
        ("a1 up e1 e1", 0),
    ],
)
def test_the_count(events, count):
    """``a1``: connection 1 accepted, ``up``: a handshake succeeded, ``e1``: connection 1 ended."""
    peers = BoundPeers()
    for event in events.split():
        if event == "up":
            peers.shaken_hands()
        elif event[0] == "a":
            peers.accepted(int(event[1:]))
        else:
            peers.ended(int(event[1:]))
    assert peers.count == count


def test_whether_a_publisher_ended():
    peers = BoundPeers()
    peers.accepted(1)
    peers.shaken_hands()
    peers.accepted(2)
    assert not peers.ended(2)
    assert not peers.ended(3)
    assert peers.ended(1)
