"""The ring and the bounded walk on it, for any members, keys and loads."""

from hypothesis import given
from hypothesis import strategies as st

from continuum_router.routing.hash_ring import HashRing
from continuum_router.routing.load_bound import Crowd, LoadBound
from continuum_router.routing.strategies import PrefixAwareHash, Rule
from support.backends import ask, backend, prefix

NAMES = st.lists(
    st.text("abcdefgh-0123", min_size=1, max_size=6), min_size=2, max_size=6, unique=True
)
POINTS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30)
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 3.5])
EPSILON = st.floats(0.01, 10.0)


def ring(names):
    return HashRing([(name, 1.0) for name in names], 20)


@given(NAMES, POINTS)
def test_a_removed_member_moves_only_its_own_keys(names, points):
    gone = names[0]
    before, after = ring(names), ring(names[1:])
    for point in points:
        owner = next(before.walk(point))
        if owner != gone:
            assert next(after.walk(point)) == owner


@given(NAMES, POINTS)
def test_without_a_member_the_walk_is_the_same_walk(names, points):
    # so a backend that is skipped and one that was removed lead to the same place
    before, after = ring(names), ring(names[1:])
    for point in points:
        assert [name for name in before.walk(point) if name != names[0]] == list(after.walk(point))


@given(NAMES, POINTS, WEIGHTS)
def test_a_walk_visits_each_member_once(names, points, weight):
    made = HashRing([(name, weight) for name in names], 10)
    for point in points:
        assert sorted(made.walk(point)) == sorted(names)


@given(st.data(), NAMES, EPSILON, st.integers(1, 6))
def test_nobody_is_led_past_the_bound_while_somebody_is_below_it(data, names, epsilon, floor):
    members = tuple(backend(name, weight=data.draw(WEIGHTS)) for name in names)
    loads = {name: data.draw(st.integers(0, 40)) for name in names}
    usable = tuple(m for m in members if data.draw(st.booleans())) or members[:1]
    strategy = PrefixAwareHash(load_factor_epsilon=epsilon, load_floor=floor, virtual_nodes=10)
    request = ask(members, key=prefix("p"), loads=loads, candidates=usable)
    pick = strategy.pick(request)
    assert pick is not None
    assert pick.backend in usable
    bound = LoadBound(epsilon=epsilon, floor=floor)
    crowd = Crowd(usable, loads)
    below = [m for m in usable if not crowd.over(m, bound)]
    if below:
        assert pick.backend in below
    # The label: overflow exactly when the first usable member of the walk was over its bound.
    walk = HashRing([(m.name, m.weight) for m in members], 10).walk(
        int.from_bytes(prefix("p")[:8], "big")
    )
    by_name = {m.name: m for m in usable}
    owner = next(by_name[name] for name in walk if name in by_name)
    moved = bool(below) and crowd.over(owner, bound)
    assert pick.rule is (Rule.OVERFLOW if moved else Rule.PREFIX_HASH)
    assert moved or pick.backend == owner


@given(st.integers(1, 12), EPSILON, st.lists(st.integers(0, 50), max_size=12))
def test_equal_members_always_leave_room_for_one_more(count, epsilon, loads):
    members = [backend(f"e{i}") for i in range(count)]
    crowd = Crowd(members, {f"e{i}": load for i, load in enumerate(loads[:count])})
    bound = LoadBound(epsilon=epsilon)
    assert any(not crowd.over(member, bound) for member in members)


@given(NAMES, POINTS)
def test_the_owner_is_where_the_walk_begins(names, points):
    made = ring(names)
    for point in points:
        assert made.owner(point) == next(made.walk(point))
    assert HashRing([("only", 0.0)], 20).owner(points[0]) is None


@given(NAMES, EPSILON, st.data())
def test_one_pass_finds_the_same_bound_as_a_crowd(names, epsilon, data):
    members = [backend(name, weight=data.draw(WEIGHTS)) for name in names]
    loads = {name: data.draw(st.integers(0, 40)) for name in names}
    bound = LoadBound(epsilon=epsilon, floor=data.draw(st.integers(1, 5)))
    crowd = Crowd(members, loads)
    for member in members:
        below = bound.below(member.name, members, loads)
        assert below == (None if crowd.over(member, bound) else member)
    assert bound.below("nobody", members, loads) is None
