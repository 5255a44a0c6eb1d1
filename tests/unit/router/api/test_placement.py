"""From bytes to a backend, and what is left to the general way without a trace."""

import json

import pytest

from continuum_router.api.placement import MEMO_ENTRIES, Places
from continuum_router.assemble import build_snapshot, build_state
from continuum_router.config.root import parse_config
from continuum_router.request import Endpoint
from continuum_router.routing.strategies import Rule
from continuum_router.runtime import Snapshot

BACKENDS = """
backends:
- {name: b1, url: "http://127.0.0.1:1", models: [m, other]}
- {name: b2, url: "http://127.0.0.1:2", models: [m], aliases: {alias: m}}
"""


def snapshot(more: str = "", backends: str = BACKENDS) -> Snapshot:
    config, report = parse_config(
        f"{backends}\nprefix_routing: {{enabled: true}}\n{more}", path="x.yaml", env={}
    )
    assert config is not None, str(report)
    return build_snapshot(config, build_state(config))


def chat(**more: object) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], **more}
    ).encode()


def requests_noted(snap: Snapshot) -> int:
    return sum(slot.requests for slot in snap.dispatcher.state.budget._slots)


async def test_an_ordinary_request_is_placed_and_counted_once() -> None:
    snap = snapshot("selection_strategy: PrefixAwareHash")
    placed = Places(snap).place(Endpoint.CHAT, chat(), 5.0)
    assert placed is not None
    assert placed.reading[1:3] == ("m", False)
    assert placed.choice.rule is Rule.PREFIX_HASH
    assert placed.limits == snap.dispatcher.standard
    assert placed.holdings is None
    assert requests_noted(snap) == 1


async def test_the_index_is_asked() -> None:
    snap = snapshot("kv_cache_index: {enabled: true}")
    placed = Places(snap).place(Endpoint.CHAT, chat(), 5.0)
    assert placed is not None
    assert placed.holdings == {}


async def test_limits_are_those_of_the_kind_and_the_model() -> None:
    more = """
timeouts:
  request:
    model_overrides: {other: {streaming: {total: 777s}}}
"""
    places = Places(snapshot(more))
    streamed = places.place(Endpoint.CHAT, chat(stream=True), 0.0)
    other = places.place(Endpoint.CHAT, chat(model="other", stream=True), 0.0)
    assert streamed is not None
    assert other is not None
    assert streamed.limits.first_byte == 120.0
    assert other.limits.total == 777.0


LEFT = {
    "no json": (Endpoint.CHAT, b"{", ""),
    "no messages": (Endpoint.CHAT, b'{"model":"m"}', ""),
    "an unknown model": (Endpoint.CHAT, chat(model="nobody"), ""),
    "an alias": (Endpoint.CHAT, chat(model="alias"), ""),
    "a model that only a fallback serves": (
        Endpoint.CHAT,
        chat(model="spare"),
        "fallbacks: {spare: [m]}",
    ),
    "a stream that is to be kept alive": (
        Endpoint.CHAT,
        chat(stream=True),
        "server: {sse_keepalive: 10s}",
    ),
    "no model where there are several": (Endpoint.EMBEDDINGS, b'{"input":"x"}', ""),
    "a response that goes on": (
        Endpoint.RESPONSES,
        b'{"model":"m","input":"x","previous_response_id":"resp_1"}',
        "",
    ),
}


@pytest.mark.parametrize("name", LEFT)
async def test_left_to_the_general_way_uncounted(name: str) -> None:
    endpoint, raw, more = LEFT[name]
    snap = snapshot(more)
    assert Places(snap).place(endpoint, raw, 0.0) is None
    assert requests_noted(snap) == 0


async def test_a_plain_answer_needs_no_keepalive() -> None:
    places = Places(snapshot("server: {sse_keepalive: 10s}"))
    assert places.place(Endpoint.CHAT, chat(), 0.0) is not None


async def test_one_model_need_not_be_named() -> None:
    only = "backends:\n- {name: b1, url: 'http://127.0.0.1:1', models: [m]}\n"
    places = Places(snapshot(backends=only))
    assert places.place(Endpoint.EMBEDDINGS, b'{"input":"x"}', 0.0) is not None
    assert places.place(Endpoint.CHAT, b'{"messages":[{}]}', 0.0) is None


async def test_what_is_remembered_of_models_is_bounded() -> None:
    places = Places(snapshot(backends="backends:\n- {name: b1, url: 'http://127.0.0.1:1'}\n"))
    for number in range(MEMO_ENTRIES + 5):
        assert places.place(Endpoint.CHAT, chat(model=f"m{number}"), 0.0) is not None
    assert len(places) == 5


COST = "kv_cache_index: {enabled: true, scoring: {mode: cost}}"


async def test_cost_mode_places_by_the_prompt_and_keeps_its_books() -> None:
    snap = snapshot(COST)
    places = Places(snap)
    body = chat(messages=[{"role": "user", "content": "x" * 5000}])
    first = places.place(Endpoint.CHAT, body, 5.0)
    assert first is not None
    assert first.choice.rule is Rule.LEAST_WORK
    name, ticket = first.choice.backend.name, first.choice.ticket
    with snap.dispatcher.state.fleet.lease(name, ticket=ticket):
        assert ticket is not None
        ticket.first_token()
    again = places.place(Endpoint.CHAT, body, 5.0)
    assert again is not None
    assert (again.choice.rule, again.choice.backend.name) == (Rule.KV_AWARE, name)


async def test_a_prompt_too_long_to_be_cut_here_is_left_to_the_general_way() -> None:
    body = chat(messages=[{"role": "user", "content": "x" * (1 << 20)}])
    assert Places(snapshot(COST)).place(Endpoint.CHAT, body, 5.0) is None
    assert Places(snapshot()).place(Endpoint.CHAT, body, 5.0) is not None
