from dataclasses import replace

import pytest

from continuum_router.backends.pool import Pool
from continuum_shared.config.kinds import Secret
from support.backends import backend


def names(found):
    return [b.name for b in found]


def test_headers_are_not_printed():
    made = replace(backend("a"), headers=(("X-Org", "canary"),), api_key=Secret("canary"))
    assert "canary" not in repr(made)


def test_candidates_keep_the_configured_order():
    pool = Pool([backend("c", models=["m"]), backend("a", models=["m"]), backend("b")])
    assert names(pool.for_model("m")) == ["c", "a", "b"]
    assert names(pool.for_model("other")) == ["b"]


def test_the_same_tuple_comes_back_each_time():
    pool = Pool([backend("a", models=["m"]), backend("b")])
    assert pool.for_model("m") is pool.for_model("m")
    assert pool.for_model("x") is pool.for_model("y")


def test_disabled_and_internal_backends_get_no_client_requests():
    pool = Pool(
        [
            backend("off", models=["m"], enabled=False),
            backend("own", models=["m"], internal=True),
            backend("in", models=["m"]),
        ]
    )
    assert names(pool.for_model("m")) == ["in"]
    assert pool.models() == ("m",)
    assert set(pool.by_name) == {"off", "own", "in"}


def test_nobody_serves_an_unknown_model_when_all_lists_are_known():
    pool = Pool([backend("a", models=["m"])])
    assert pool.for_model("n") == ()


def test_discovery_fills_in_only_where_nothing_was_written():
    pool = Pool([backend("a", models=["m"]), backend("b"), backend("c")])
    assert names(pool.undiscovered()) == ["b", "c"]
    known = pool.with_discovered({"a": ["n"], "b": ["n"], "gone": ["m"]})
    assert names(known.for_model("n")) == ["b", "c"]
    assert names(known.for_model("m")) == ["a", "c"]
    assert known.models() == ("m", "n")
    assert names(pool.for_model("n")) == ["b", "c"], "the old pool is unchanged"


def test_lists_that_say_nothing_new_leave_the_pool_as_it_is():
    pool = Pool([backend("a"), backend("b")])
    assert pool.with_discovered({}) is pool
    known = pool.with_discovered({"a": ["m", "n"]})
    assert known.with_discovered({"a": ("n", "m")}) is known
    assert known.with_discovered({"a": ["m", "n"], "b": []}) is not known


def test_a_discovered_empty_catalogue_serves_nothing():
    pool = Pool([backend("a")]).with_discovered({"a": []})
    assert pool.for_model("m") == ()


def test_model_names_come_by_backend_then_name():
    pool = Pool([backend("b", models=["z", "y"]), backend("a", models=["x", "y"])])
    assert pool.models() == ("y", "z", "x")


def test_two_backends_cannot_share_a_name():
    with pytest.raises(ValueError, match="share a name"):
        Pool([backend("a"), backend("a")])


def test_aliases_lead_only_to_those_that_have_them():
    """Decisions H7: an alias is a promise of its backends; others are not tried with it."""
    listed = replace(backend("b1", models=["m"]), aliases={"gpt": "m"})
    open_one = backend("b2")
    other = backend("b3", models=["gpt"])
    pool = Pool([listed, open_one, other])
    assert [b.name for b in pool.for_model("gpt")] == ["b1", "b3"]
    assert [b.name for b in pool.for_model("m")] == ["b1", "b2"]
    assert [b.name for b in pool.for_model("")] == ["b1", "b2", "b3"]
    assert pool.models() == ("gpt", "m")
    assert pool.real_names("gpt") == {"m", "gpt"}
    assert pool.for_model("gpt") is pool.for_model("gpt")


def test_when_a_model_must_be_named():
    one = replace(backend("b1", models=["m"]), aliases={"a": "m", "b": "m"})
    assert not Pool([one, backend("b2")]).model_choice
    assert Pool([one, backend("b2", models=["n"])]).model_choice
    assert not Pool([one, replace(backend("b2", models=["n"]), enabled=False)]).model_choice


def test_a_backend_with_aliases_has_a_hash():
    assert hash(replace(backend("b1"), aliases={"a": "m"})) == hash(backend("b1"))
