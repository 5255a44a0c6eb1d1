from continuum_router.config.kv_cache_index import KvCacheIndexConfig
from continuum_router.config.root import parse_config
from support.config_files import good_router


def test_defaults():
    index = KvCacheIndexConfig()
    assert (index.enabled, index.backend, index.max_entries) == (False, "memory", 100_000)
    assert (index.entry_ttl_seconds, index.min_tokens, index.event_sources) == (600, 0, ())
    scoring = index.scoring
    assert (scoring.overlap_weight, scoring.load_weight, scoring.health_weight) == (0.6, 0.3, 0.1)
    assert (scoring.min_overlap_threshold, scoring.gpu_tier_weight) == (0.3, 1.0)
    assert (scoring.storage_tier_weight, scoring.holder_load_bound) == (0.6, 0.25)
    assert (scoring.holder_load_floor, scoring.load_snapshot_ms) == (4, 0)
    offloading = index.storage_offloading
    assert (offloading.enabled, offloading.treat_eviction_as_offload) == (False, True)


def test_a_source():
    config = good_router(
        "kv_cache_index:\n  event_sources:\n"
        "  - {backend_name: a, endpoint: 'https://l:7817/events/a', reconnect_interval_ms: 5000}\n"
        "  - {backend_name: b, endpoint: 'http://l:7817/events/b'}\n"
    )
    first, second = config.kv_cache_index.event_sources
    assert (first.endpoint.scheme, first.endpoint.target) == ("https", "/events/a")
    assert (first.reconnect_interval_ms, second.reconnect_interval_ms) == (5000, None)
    assert (first.transport, second.transport) == ("sse", "sse")


def test_an_empty_section_means_its_defaults():
    config = good_router("kv_cache_index:\n  scoring:\n  event_sources:\n")
    assert config.kv_cache_index == KvCacheIndexConfig()


def test_endpoints_of_every_scheme():
    sources = ", ".join(
        f"{{backend_name: b{n}, endpoint: '{scheme}://l/events/b{n}'}}"
        for n, scheme in enumerate(("http", "https", "ws", "wss"))
    )
    backends = ", ".join(f"{{name: b{n}, url: 'http://b'}}" for n in range(4))
    text = f"backends: [{backends}]\nkv_cache_index: {{event_sources: [{sources}]}}\n"
    config, report = parse_config(text, path="f", env={})
    assert config is not None, str(report)
    found = [source.endpoint for source in config.kv_cache_index.event_sources]
    assert [(e.scheme, e.port, e.tls, e.web_socket) for e in found] == [
        ("http", 80, False, False),
        ("https", 443, True, False),
        ("ws", 80, False, True),
        ("wss", 443, True, True),
    ]
    assert str(found[3]) == "wss://l/events/b3"
