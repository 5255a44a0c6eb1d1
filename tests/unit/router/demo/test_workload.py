"""The demo's workload: the same for one seed, another for another, of the shape that was asked."""

from collections import Counter

from continuum_router.demo.workload import WorkloadShape, conversations, requests_in

SHAPE = WorkloadShape(tenants=3, conversations=2, turns=4, system_words=40, user_words=8)


def test_a_seed_always_gives_the_same_workload() -> None:
    assert conversations(1, SHAPE) == conversations(1, SHAPE)
    assert conversations(1, SHAPE) != conversations(2, SHAPE)


def test_the_shape_is_kept() -> None:
    made = conversations(1, SHAPE)
    assert Counter(one.tenant for one in made) == {0: 2, 1: 2, 2: 2}
    assert {len(one.turns) for one in made} == {4}
    assert requests_in(made) == 24
    low, high = SHAPE.think_seconds
    assert all(low <= pause <= high for one in made for pause in one.pauses)


def test_conversations_of_a_tenant_share_its_system_prompt_and_nothing_else() -> None:
    made = conversations(1, SHAPE)
    assert len({(one.tenant, one.system) for one in made}) == 3
    assert len({one.system for one in made}) == 3
    said = [turn for one in made for turn in one.turns]
    assert len(set(said)) == len(said)
