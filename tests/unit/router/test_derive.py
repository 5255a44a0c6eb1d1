"""One configuration's values."""

from continuum_router.backends.pool import Pool
from continuum_router.derive import backend_of, condition_rules, probe_plans, retry_policy
from support.edge import edge_config


def test_a_backend_entry_becomes_a_backend() -> None:
    config = edge_config(
        "backends: [{name: a, type: vllm, url: 'https://h/v1', models: [x, y], weight: 2, "
        "api_key: k, headers: {X-A: v}, max_connections: 9, replay: disabled}]"
    )
    made = backend_of(config.backends[0])
    assert (made.name, made.type.value, str(made.url)) == ("a", "vllm", "https://h")
    assert made.models == {"x", "y"}
    assert (made.weight, made.max_connections, made.replay_allowed) == (2.0, 9, False)
    assert made.api_key is not None
    assert made.api_key.reveal() == "k"
    assert [(name, str(value)) for name, value in made.headers][0][0] == "X-A"


def test_the_rules_of_health() -> None:
    more = (
        "health_checks: {interval: 5s, unhealthy_threshold: 7, last_resort: false, "
        "breaker: {failures: 4, cooldown: 3s}}"
    )
    rules = condition_rules(edge_config(["http://h:1"], more))
    assert (rules.probing, rules.last_resort) == (True, False)
    assert (rules.health.interval, rules.health.unhealthy_threshold) == (5.0, 7)
    assert (rules.breaker.enabled, rules.breaker.failures, rules.breaker.cooldown) == (True, 4, 3.0)


def test_plans_only_when_somebody_probes() -> None:
    for more, names in (("health_checks: {enabled: true}", {"b1", "b2"}), ("", set())):
        config = edge_config(["http://h:1", "http://h:2"], more)
        pool = Pool([backend_of(entry) for entry in config.backends])
        assert set(probe_plans(config, pool)) == names


def test_the_retry_policy() -> None:
    more = "retry: {max_attempts: 5, jitter: false, on_timeout: true, budget: {min_retries: 3}}"
    policy = retry_policy(edge_config(["http://h:1"], more))
    assert (policy.max_attempts, policy.jitter, policy.on_timeout) == (5, False, True)
    assert policy.budget.min_retries == 3
