"""Rules over several sections: the warnings, and when a rule stays silent."""

import pytest

from support.config_files import ROUTER_BASE, router_lines

TIERS = "  scoring: {gpu_tier_weight: 0.2}\n"
SOURCES = "  event_sources: [{backend_name: a, endpoint: 'http://l/events/a'}]\n"
BOTH_ON = "prefix_routing: {enabled: true}\nkv_cache_index:\n  enabled: true\n" + SOURCES


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "selection_strategy: prefix_aware_hash",
            [
                "2: warning: selection_strategy: PrefixAwareHash has no prefix keys to hash while "
                "prefix_routing is off; set prefix_routing.enabled: true"
            ],
        ),
        ("selection_strategy: PrefixAwareHash\nprefix_routing: {enabled: true}", []),
        ("selection_strategy: RoundRobin", []),
        (
            BOTH_ON + TIERS,
            [
                "6: warning: kv_cache_index.scoring.gpu_tier_weight: no backend can reach "
                "min_overlap_threshold, so every request falls back; set it to at least 0.3"
            ],
        ),
        (BOTH_ON + "  scoring: {gpu_tier_weight: 0.3}\n", []),
        ("kv_cache_index:\n" + TIERS, []),
        ("prefix_routing: {enabled: true}\nkv_cache_index:\n" + TIERS, []),
        (
            "kv_cache_index:\n  enabled: true\n" + SOURCES,
            [
                "3: warning: kv_cache_index.enabled: the index is never asked while "
                "prefix_routing is off; set prefix_routing.enabled: true"
            ],
        ),
        (
            "prefix_routing: {enabled: true}\nkv_cache_index: {enabled: true}",
            [
                "3: warning: kv_cache_index.enabled: the index stays empty without event_sources; "
                "name the listener's streams in kv_cache_index.event_sources"
            ],
        ),
        (
            "kv_cache_index: {scoring: {holder_load_bound: null}}",
            [
                "2: warning: kv_cache_index.scoring.holder_load_bound: without a bound one holder "
                "may be given all requests of a popular prefix; default 0.25"
            ],
        ),
        ("kv_cache_index: {scoring: {holder_load_bound: 0}}", []),
        (
            "timeouts: {request: {standard: {first_byte: 40s}}}",
            [
                "2: warning: timeouts.request.standard.first_byte: is deprecated and has no "
                "effect; use standard.total"
            ],
        ),
        ("timeouts: {request: {standard: {first_byte: 30s}}}", []),
        ("timeouts: {request: {standard: {total: 20s}}}", []),
        (
            "timeouts: {request: {standard: {first_byte: 30s, total: 20s}}}",
            [
                "2: timeouts.request.standard.first_byte: first_byte (30s) is longer than total "
                "(20s); first_byte must not be longer than total"
            ],
        ),
        (
            "timeouts: {limits: {max_chunk_interval: 10s}}",
            [
                "2: timeouts.request.streaming.chunk_interval: is above the cap of 10s; lower it, "
                "or raise timeouts.limits.max_chunk_interval"
            ],
        ),
        (
            "timeouts: {limits: {max_streaming_timeout: 1300s}, request: {streaming: "
            "{total: 1250s, first_byte: 601s, chunk_interval: 0}}}",
            [
                "2: timeouts.request.streaming.first_byte: is above the cap of 600s; lower it, or "
                "raise timeouts.limits.max_first_byte_timeout"
            ],
        ),
        (
            "retry: {max_delay: 50ms}",
            [
                "2: retry.max_delay: initial_delay (100ms) is longer than max_delay (50ms); "
                "initial_delay must not be longer than max_delay"
            ],
        ),
        (
            "kv_cache_index: {scoring: {overlap_weight: 0.1, load_weight: 0.2, "
            "health_weight: 0.7000000001}}",
            [],
        ),
        (
            "kv_cache_index: {scoring: {overlap_weight: 0.1, load_weight: 0.2, "
            "health_weight: 0.70000001}}",
            [
                "2: kv_cache_index.scoring: overlap_weight, load_weight and health_weight add up "
                "to 1.00000001; they must add up to 1.0"
            ],
        ),
    ],
)
def test_rules(text, said):
    assert router_lines(ROUTER_BASE + text) == [f"r.yaml:{line}" for line in said]


@pytest.mark.parametrize("flags", ["enabled: false", "internal: true"])
def test_no_backend_for_clients(flags):
    assert router_lines(f"backends: [{{name: a, url: 'http://h', {flags}}}]") == [
        "r.yaml:1: warning: backends: no backend is enabled and not internal; no request can be "
        "served"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "kv_cache_index: {scoring: {overlap_wieght: 0.9, load_weight: 0.0}}",
        "kv_cache_index: {scoring: {overlap_weight: x, load_weight: 0.0}}",
        "selection_strategy: PrefixAwareHash\nprefix_routing: {enabled: maybe}",
        "retry: {initial_delay: 40, max_delay: 1s}",
    ],
)
def test_nothing_is_said_about_what_is_in_doubt(text):
    assert len(router_lines(ROUTER_BASE + text)) == 1


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("{name: a, url: 'http://h', models: [m], aliases: {x: m}}", []),
        (
            "{name: a, url: 'http://h', models: [m, x], aliases: {x: m}}",
            ["backends[0].aliases.x: is also one of its models; keep one of them"],
        ),
        (
            "{name: a, url: 'http://h', models: [m], aliases: {x: n}}",
            [
                "warning: backends[0].aliases.x: means a model that is not in its models; "
                "add it there, or correct it"
            ],
        ),
        (
            "{name: a, url: 'http://h', aliases: {x: m}}, "
            "{name: b, url: 'http://i', aliases: {x: n}}",
            [
                "warning: backends[1].aliases.x: means another model than on backends[0]; what "
                "the KV index knows of this backend is not found under the alias"
            ],
        ),
        (
            "{name: a, url: 'https://h', tls: {client_key: k}}",
            [
                "backends[0].tls.client_key: is the key of no certificate; name the certificate "
                "in client_cert"
            ],
        ),
        (
            "{name: a, url: 'https://h', tls: {insecure_skip_verify: true}}",
            [
                "warning: backends[0].tls.insecure_skip_verify: any certificate is accepted, so "
                "anybody can pose as this backend; name its authority in ca_file"
            ],
        ),
        (
            "{name: a, url: 'http://h', tls: {ca_file: c}}",
            ["warning: backends[0].tls: has no effect: the URL is not https"],
        ),
        (
            "{name: a, url: 'http://h', api_key: k, auth_scheme: 'header:X-Key', "
            "headers: {x-key: v}}",
            [
                "backends[0].headers: X-Key is set twice: by api_key and by headers; "
                "keep one of them"
            ],
        ),
        (
            "{name: a, url: 'http://h', api_key: k, auth_scheme: 'header:X-Key', "
            "headers: {Authorization: v}}",
            [],
        ),
    ],
)
def test_rules_of_backends(entries, said):
    lines = router_lines(f"backends: [{entries}]")
    assert [line.removeprefix("r.yaml:1: ") for line in lines] == said


SALTY = (
    "backends: [{name: a, url: 'http://h:1', type: vllm}]\n"
    "kv_cache_index: {enabled: true, event_sources: [{backend_name: a, endpoint: 'http://l/e'}]}\n"
    "prefix_routing:\n  enabled: true\n  salt_echo: "
)
LONG = "0123456789abcdef"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{enabled: false}", []),
        ("{enabled: false, secret_env: UNSET}", []),
        ("{enabled: true, secret_env: ONE}", []),
        ("{enabled: true, secret_env: [TWO, ONE], scope: fleet}", []),
        (
            "{enabled: true}",
            [
                "5: prefix_routing.salt_echo.enabled: salt echo needs a secret; name an "
                "environment variable in secret_env"
            ],
        ),
        (
            "{enabled: true, secret_env: UNSET}",
            [
                "5: prefix_routing.salt_echo.secret_env: the environment variable UNSET is not set "
                "or empty; export it before the start"
            ],
        ),
        (
            "{enabled: true, secret_env: [ONE, EMPTY]}",
            [
                "5: prefix_routing.salt_echo.secret_env[1]: the environment variable EMPTY is not "
                "set or empty; export it before the start"
            ],
        ),
        (
            "{enabled: true, secret_env: SHORT}",
            [
                "5: warning: prefix_routing.salt_echo.secret_env: the secret in SHORT is short "
                "enough to be guessed; such as the output of: openssl rand -hex 32"
            ],
        ),
        (
            "{enabled: true, secret_env: 'not a name, but a secret'}",
            [
                "5: prefix_routing.salt_echo.secret_env: must be the name of an environment "
                "variable; letters, digits and _, not the secret itself"
            ],
        ),
        (
            "{enabled: true, secret_env: [ONE, ONE]}",
            ["5: prefix_routing.salt_echo.secret_env[1]: is listed twice; remove one"],
        ),
        (
            "{enabled: true, secret_env: ONE, scope: galaxy}",
            [
                '5: prefix_routing.salt_echo.scope: "galaxy" is not a known value; known: '
                "backend, fleet"
            ],
        ),
    ],
)
def test_salt_echo_needs_its_secrets(section, said):
    env = {"ONE": LONG, "TWO": LONG[::-1], "EMPTY": "", "SHORT": "abc"}
    assert router_lines(SALTY + section, env) == [f"r.yaml:{line}" for line in said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            SALTY.replace("enabled: true\n  salt", "enabled: false\n  salt"),
            [
                "2: warning: kv_cache_index.enabled: the index is never asked while "
                "prefix_routing is off; set prefix_routing.enabled: true",
                "5: warning: prefix_routing.salt_echo.enabled: no request has a prefix key while "
                "prefix_routing is off, so none is salted; set prefix_routing.enabled: true",
            ],
        ),
        (
            SALTY.replace("kv_cache_index: {enabled: true", "kv_cache_index: {enabled: false"),
            [
                "5: warning: prefix_routing.salt_echo.enabled: salts keep prompts apart in the "
                "engines' caches, and no index reads them; set kv_cache_index.enabled: true, or "
                "switch salt_echo off"
            ],
        ),
        (
            SALTY.replace(", type: vllm", ""),
            [
                "5: warning: prefix_routing.salt_echo.enabled: no backend takes salts; set their "
                "type: sglang, trtllm, vllm"
            ],
        ),
    ],
)
def test_salts_nobody_reads_or_takes(text, said):
    lines = router_lines(text + "{enabled: true, secret_env: ONE}", {"ONE": LONG})
    assert lines == [f"r.yaml:{line}" for line in said]
