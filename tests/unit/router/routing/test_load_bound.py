import pytest

from continuum_router.routing.load_bound import Crowd, LoadBound
from support.backends import backend, backends


@pytest.mark.parametrize(
    ("epsilon", "total", "members", "cap"),
    [
        (0.25, 0, 1, 2),  # 1.25 of one
        (0.25, 0, 4, 1),  # never below one
        (0.25, 3, 5, 1),  # 1.25 * 4 / 5 is exactly 1
        (0.25, 4, 5, 2),
        (0.25, 15, 4, 5),
        (0.1, 9, 11, 1),
        (0.1, 49, 1, 55),  # 1.1 * 50 is 55.00000000000001 in floats
        (10.0, 9, 10, 11),
        (0.01, 99, 10, 11),
    ],
)
def test_the_cap_of_equal_members(epsilon, total, members, cap):
    # decisions A9: max(1, ceil((1 + eps) * (total + 1) / n))
    assert LoadBound(epsilon=epsilon).cap(total, 1 / members) == cap


def test_over_counts_the_request_that_is_being_placed():
    bound = LoadBound(epsilon=0.25)
    assert bound.cap(15, 0.25) == 5
    assert not bound.over(4, 15, 0.25)
    assert bound.over(5, 15, 0.25)


def test_below_the_floor_nobody_is_over():
    bound = LoadBound(epsilon=0.25, floor=4)
    assert bound.cap(3, 1 / 8) == 1
    assert not bound.over(3, 3, 1 / 8)
    assert bound.over(4, 4, 1 / 8)


def test_a_crowd_reads_the_loads_of_its_members_only():
    a, b = backends("a", "b")
    crowd = Crowd([a, b], {"a": 3, "elsewhere": 90})
    assert (crowd.total, crowd.max_load) == (3, 3)
    assert (crowd.load(a), crowd.load(b)) == (3, 0)


def test_a_crowd_is_of_one_moment():
    a, b = backends("a", "b")
    loads = {"a": 1}
    crowd = Crowd([a, b], loads)
    loads["a"] = 50
    assert crowd.load(a) == 1


def test_weights_share_the_bound():
    # decisions A12: cap times weight share; total 7, epsilon .25: heavy 8, light 3
    heavy, light = backend("heavy", weight=3), backend("light", weight=1)
    bound = LoadBound(epsilon=0.25)
    assert not Crowd([heavy, light], {"heavy": 7}).over(heavy, bound)
    assert Crowd([heavy, light], {"heavy": 4, "light": 3}).over(light, bound)
    assert not Crowd([heavy, light], {"heavy": 5, "light": 2}).over(light, bound)


def test_nobody_in_a_crowd():
    crowd = Crowd([], {"a": 1})
    assert (crowd.total, crowd.max_load) == (0, 0)
