from continuum_router.config.reload import compare, keep_running
from support.config_files import good_router

OLD = """
server: {drain_timeout: 1m, max_body_bytes: 1MiB}
backends:
- {name: a, url: 'http://h:1', api_key: canary-1, headers: {X-A: canary, X-B: same}}
- {name: b, url: 'http://h:2', models: [m]}
kv_cache_index:
  event_sources: [{backend_name: a, endpoint: 'http://l/events/a'}]
"""
NEW = """
server: {drain_timeout: 90s, max_body_bytes: 2MiB}
selection_strategy: PrefixAwareHash
prefix_routing: {enabled: true}
backends:
- {name: c, url: 'http://h:3'}
- {name: a, url: 'http://h:9', api_key: canary-2, headers: {X-B: same, X-C: canary}}
kv_cache_index:
  max_entries: 200
  scoring: {holder_load_bound: 0.5}
  event_sources: []
timeouts: {limits: {max_standard_timeout: 900s}}
retry: {retryable_status_codes: [503]}
"""


def _told(old, new):
    return [
        (str(c.sign), c.path, c.before, c.after, str(c.reload))
        for c in compare(good_router(old), good_router(new))
    ]


def test_every_difference_with_its_reload_class():
    assert _told(OLD, NEW) == [
        ("~", ("server", "max_body_bytes"), "1MiB", "2MiB", "restart"),
        ("~", ("server", "drain_timeout"), "60s", "90s", "restart"),
        ("~", ("backends", "a", "url"), "http://h:1", "http://h:9", "hot"),
        ("~", ("backends", "a", "api_key"), "***", "***", "hot"),
        ("-", ("backends", "a", "headers", "X-A"), "", "", "hot"),
        ("+", ("backends", "a", "headers", "X-C"), "", "", "hot"),
        ("-", ("backends", "b"), "", "", "hot"),
        ("+", ("backends", "c"), "", "", "hot"),
        ("~", ("selection_strategy",), "round_robin", "prefix_aware_hash", "hot"),
        ("~", ("prefix_routing", "enabled"), "false", "true", "hot"),
        ("~", ("kv_cache_index", "max_entries"), "100000", "200", "restart"),
        ("~", ("kv_cache_index", "scoring", "holder_load_bound"), "0.25", "0.5", "restart"),
        ("-", ("kv_cache_index", "event_sources", "a"), "", "", "hot"),
        ("~", ("timeouts", "limits", "max_standard_timeout"), "540s", "900s", "refused"),
        ("~", ("retry", "retryable_status_codes"), "[429, 502, 503, 504]", "[503]", "hot"),
    ]


def test_a_reordered_list_is_no_difference():
    old = "backends: [{name: a, url: 'http://h:1'}, {name: b, url: 'http://h:2'}]"
    new = "backends: [{name: b, url: 'http://h:2'}, {name: a, url: 'http://h:1'}]"
    assert _told(old, new) == []


def test_the_same_thing_in_other_words_is_no_difference():
    assert _told("server: {drain_timeout: 1m}", "server: {drain_timeout: 60000ms}") == []


def test_a_running_router_takes_what_is_hot_and_keeps_the_rest():
    old, new = good_router(OLD), good_router(NEW)
    kept = keep_running(old, new)
    assert kept.server == old.server
    assert kept.timeouts.limits == old.timeouts.limits
    assert kept.kv_cache_index.max_entries == old.kv_cache_index.max_entries
    assert kept.kv_cache_index.scoring == old.kv_cache_index.scoring
    assert kept.kv_cache_index.event_sources == ()
    assert kept.backends == new.backends
    assert kept.selection_strategy == new.selection_strategy
    assert kept.retry == new.retry
    assert {str(change.reload) for change in compare(old, kept)} == {"hot"}
    assert {str(change.reload) for change in compare(kept, new)} == {"restart", "refused"}
