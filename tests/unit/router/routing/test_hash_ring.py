import hashlib

import pytest

from continuum_router.routing.hash_ring import MAX_POINTS, HashRing, key_point, text_point
from continuum_shared.prefix_key import PrefixKey
from support.backends import prefix


def point(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def test_points_are_the_first_eight_bytes_big_endian():
    # decisions A12; the number is the head of SHA-256("e0#0")
    assert text_point("e0#0") == 0xF4B9A58543033276
    assert key_point(PrefixKey(bytes(range(32)))) == 0x0001020304050607


def test_any_string_has_a_point():
    assert text_point("\ud800") != text_point("\ud801")


def test_the_owner_is_the_first_point_strictly_greater():
    ring = HashRing([("a", 1), ("b", 1)], 1)
    first, second = sorted([(point("a#0"), "a"), (point("b#0"), "b")])
    assert next(ring.walk(first[0] - 1)) == first[1]
    assert next(ring.walk(first[0])) == second[1], "a key on a point belongs to the next one"
    assert next(ring.walk(second[0] - 1)) == second[1]
    assert next(ring.walk(second[0])) == first[1], "wraps"
    assert next(ring.walk(2**64 - 1)) == first[1]


def test_the_owner_agrees_with_a_plain_search():
    names = ["e0", "e1", "e2", "e3"]
    ring = HashRing([(name, 1) for name in names], 150)
    points = sorted((point(f"{name}#{i}"), name) for name in names for i in range(150))
    for i in range(200):
        key = prefix(f"p{i}")
        at = int.from_bytes(key[:8], "big")
        plain = next((name for p, name in points if p > at), points[0][1])
        assert next(ring.walk(key_point(key))) == plain


def test_a_walk_gives_each_member_once():
    ring = HashRing([(f"e{i}", 1) for i in range(7)], 40)
    for i in range(50):
        walked = list(ring.walk(text_point(f"k{i}")))
        assert sorted(walked) == [f"e{i}" for i in range(7)]


def test_the_order_of_members_does_not_matter():
    one = HashRing([("a", 1), ("b", 2), ("c", 1)], 30)
    two = HashRing([("c", 1), ("a", 1), ("b", 2)], 30)
    for i in range(100):
        assert list(one.walk(text_point(str(i)))) == list(two.walk(text_point(str(i))))


@pytest.mark.parametrize(
    ("weight", "points"), [(1, 150), (2, 300), (0.5, 75), (0.001, 1), (0, 0), (1e6, MAX_POINTS)]
)
def test_points_follow_the_weight(weight, points):
    assert len(HashRing([("a", weight)], 150)) == points


def test_an_empty_ring_walks_nowhere():
    assert list(HashRing([], 150).walk(1)) == []
    assert list(HashRing([("a", 0)], 150).walk(1)) == []


def test_shares_are_even():
    # user report R6: 10 backends, 10,000 prefixes, max over mean below 1.35
    ring = HashRing([(f"e{i}", 1) for i in range(10)], 150)
    shares = dict.fromkeys((f"e{i}" for i in range(10)), 0)
    for i in range(10_000):
        shares[next(ring.walk(key_point(prefix(f"p{i}"))))] += 1
    assert max(shares.values()) / 1000 < 1.35
    assert min(shares.values()) / 1000 > 0.65
