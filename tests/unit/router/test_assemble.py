"""What each configuration switches on."""

from continuum_router.assemble import (
    build_snapshot,
    build_state,
    start_tasks,
    stop_state,
)
from continuum_router.kv_index.index import MemoryKvIndex, NoKvIndex
from continuum_router.runtime import Runtime
from continuum_router.upstream.deadlines import Limits
from support.edge import edge_config

KV = """
prefix_routing: {enabled: true, max_prefix_length: 77}
kv_cache_index:
  enabled: true
  event_sources: [{backend_name: b1, endpoint: "http://127.0.0.1:1/events/b1"}]
"""


async def test_the_least() -> None:
    config = edge_config(["http://h:1"])
    state = build_state(config)
    snap = build_snapshot(config, state)
    assert isinstance(state.kv, NoKvIndex)
    assert (state.routing.scorer, state.consumer_metrics) == (None, None)
    assert not snap.request_rules.want_keys
    assert snap.routing_headers
    assert snap.max_body_bytes == 64 * 1024 * 1024
    assert snap.dispatcher.standard == Limits(total=180.0)
    assert snap.dispatcher.streaming == Limits(total=600.0, first_byte=120.0, chunk_interval=30.0)
    assert snap.dispatcher.connect_timeout == 10.0
    assert snap.dispatcher.retry.max_attempts == 3


async def test_the_index_brings_its_tasks_and_families() -> None:
    config = edge_config(["http://h:1"], KV)
    state = build_state(config)
    runtime = Runtime(build_snapshot(config, state))
    assert isinstance(state.kv, MemoryKvIndex)
    assert state.routing.scorer is not None
    assert runtime.current.request_rules.max_prefix_length == 77
    await start_tasks(runtime, state)
    assert state.supervisor.names() == ["kv-events:b1", "kv-sweep", "model-list"]
    text = state.metrics.exposition().decode()
    assert 'continuum_kv_consumer_connected{backend="b1"} 0.0' in text
    assert "continuum_kv_index_entries 0.0" in text
    await stop_state(state)
    assert state.supervisor.names() == []


async def test_round_robin_keeps_its_place_over_snapshots() -> None:
    config = edge_config(["http://h:1"])
    state = build_state(config)
    one, two = build_snapshot(config, state), build_snapshot(config, state)
    assert one.dispatcher.selector is not two.dispatcher.selector
    assert one.dispatcher.state is two.dispatcher.state


async def test_authenticated_routing_headers_mean_nobody_while_nobody_is() -> None:
    for value, shown in (("true", True), ("false", False), ("authenticated", False)):
        more = f"server: {{listen: '127.0.0.1:0', routing_headers: {value}}}"
        config = edge_config(["http://h:1"], more)
        assert build_snapshot(config, build_state(config)).routing_headers is shown


async def test_a_recovered_backend_begins_a_pass_over_the_model_lists() -> None:
    state = build_state(edge_config("backends: [{name: b1, url: 'http://h:1'}]"))
    assert state.dispatch.fleet.conditions.on_recovery == state.catalog.recovered
