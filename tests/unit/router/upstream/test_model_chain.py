"""Which models follow, and what each request looks like."""

from dataclasses import replace

import orjson

from continuum_router.backends.holding import Holding, Tier
from continuum_router.backends.pool import Pool
from continuum_router.providers.prepare import sort_headers
from continuum_router.request import RequestRules, for_model
from continuum_router.upstream.model_chain import ModelChain
from continuum_router.upstream.outcome import Call, Outcome
from support.dispatch import RecordingSink, backend, chat

POOL = Pool([backend("b1"), backend("b2", models=frozenset({"n", "o"}))])
HELD = {"b2": Holding(tokens=16, tier=Tier.GPU_HOT)}


def _call(**changes: object) -> Call:
    return Call(
        request=replace(chat(), **changes),
        inbound=sort_headers([]),
        holdings={},
        sink=RecordingSink(),
        request_id="r",
        outcome=Outcome(),
    )


def test_it_stands_at_the_clients_model_first() -> None:
    call = _call()
    chain = ModelChain(call, POOL, ("n",), RequestRules())
    assert chain.request is call.request
    assert [member.name for member in chain.members] == ["b1"]
    assert chain.more
    assert call.outcome.model_used is None


def test_each_next_model_has_its_own_body_keys_and_backends() -> None:
    call = _call()
    chain = ModelChain(call, POOL, ("n", "nobody", "o"), RequestRules())
    asked: list[bytes] = []
    assert chain.advance(lambda prefix: (asked.append(prefix), HELD)[1])
    assert chain.request.raw == call.request.raw.replace(b'"m"', b'"n"')
    assert orjson.loads(chain.request.raw) == chain.request.body
    assert chain.request.model == call.outcome.model_used == "n"
    assert [member.name for member in chain.members] == ["b2"]
    assert chain.request.prefix not in {None, call.request.prefix}
    assert asked == [chain.request.prefix]
    assert chain.holdings == HELD
    assert chain.advance(lambda _prefix: None)
    assert chain.request.model == "o"
    assert not chain.more
    assert not chain.advance(lambda _prefix: None)
    assert chain.request.model == "o"


def test_the_key_is_the_one_of_a_request_for_that_model() -> None:
    asked = chat(model="m")
    other = for_model(asked, "n", asked.raw.replace(b'"m"', b'"n"'), RequestRules())
    assert other == chat(model="n")


def test_the_index_is_not_asked_where_it_was_not_asked_before() -> None:
    chain = ModelChain(replace(_call(), holdings=None), POOL, ("n",), RequestRules())

    def never(_prefix: bytes) -> None:
        raise AssertionError("the index was asked")

    assert chain.advance(never)
    assert chain.holdings is None


def test_a_body_that_is_no_json_object_stays_with_its_model() -> None:
    chain = ModelChain(_call(raw=b"--boundary"), POOL, ("n",), RequestRules())
    assert not chain.more
