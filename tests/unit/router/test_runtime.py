"""The snapshot in force is swapped whole; what took the old one keeps it."""

import pytest

from continuum_router.assemble import build_snapshot, build_state
from continuum_router.config.root import Config
from continuum_router.runtime import ReloadRefused, Runtime, Snapshot
from support.edge import edge_config


def _snapshot(config: Config) -> Snapshot:
    return build_snapshot(config, build_state(config))


async def test_ready_means_a_backend_for_clients() -> None:
    assert _snapshot(edge_config(["http://h:1"])).ready
    for more in ("enabled: false", "internal: true"):
        entry = f"backends: [{{name: b1, url: 'http://h:1', {more}}}]"
        assert not _snapshot(edge_config(entry)).ready


async def test_models_that_were_found_enter_a_new_snapshot() -> None:
    entry = "backends: [{name: b1, url: 'http://h:1'}, {name: b2, url: 'http://h:2'}]"
    runtime = Runtime(_snapshot(edge_config(entry)))
    before = runtime.current
    assert [b.name for b in before.dispatcher.pool.for_model("x")] == ["b1", "b2"]
    runtime.publish_models({"b1": frozenset({"m"}), "b2": frozenset({"n"})})
    after = runtime.current
    assert [b.name for b in after.dispatcher.pool.for_model("m")] == ["b1"]
    assert after.dispatcher.pool.for_model("x") == ()
    assert [b.name for b in before.dispatcher.pool.for_model("x")] == ["b1", "b2"]
    assert after.dispatcher.selector is before.dispatcher.selector
    assert after.dispatcher.state is before.dispatcher.state
    members = after.dispatcher.pool.for_model("m")
    runtime.publish_models({"b2": frozenset({"n"}), "b1": frozenset({"m"})})
    assert runtime.current is after
    assert runtime.current.dispatcher.pool.for_model("m") is members
    runtime.publish_models({"b1": frozenset({"m"})})
    assert runtime.current is not after
    assert [b.name for b in runtime.current.dispatcher.pool.for_model("n")] == ["b2"]


async def test_swap() -> None:
    config = edge_config(["http://h:1"])
    state = build_state(config)
    runtime = Runtime(build_snapshot(config, state))
    new = build_snapshot(config, state, generation=2)
    runtime.swap(new)
    assert runtime.current is new
    assert not runtime.draining
    assert not runtime.stopping


async def test_a_configuration_that_changes_a_frozen_key_is_refused() -> None:
    """S2: no way to a new configuration may widen `timeouts.limits`."""
    config = edge_config(["http://h:1"])
    state = build_state(config)
    runtime = Runtime(build_snapshot(config, state))
    before = runtime.current
    wider = edge_config(["http://h:1"], "timeouts: {limits: {max_standard_timeout: 900s}}")
    with pytest.raises(ReloadRefused, match=r"timeouts\.limits\.max_standard_timeout") as caught:
        runtime.swap(build_snapshot(wider, state, generation=2))
    assert caught.value.keys == ("timeouts.limits.max_standard_timeout",)
    assert runtime.current is before
    within = edge_config(["http://h:1"], "timeouts: {request: {standard: {total: 500s}}}")
    runtime.swap(build_snapshot(within, state, generation=2))
    assert runtime.current.dispatcher.standard.total == 500.0
