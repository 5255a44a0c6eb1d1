"""`health_checks` and `backends[].health_check`: defaults of S2, and what is refused."""

import pytest

from support.config_files import ROUTER_BASE, good_router, router_lines

BACKEND = "backends: [{name: a, url: 'http://h:1', health_check: %s}]\n"


def test_the_defaults_are_those_of_the_source() -> None:
    section = good_router("").health_checks
    assert section.enabled is True
    assert (section.interval, section.timeout) == (30.0, 10.0)
    assert (section.unhealthy_threshold, section.healthy_threshold) == (3, 2)
    assert section.endpoint == "/health"
    assert (section.warmup_check_interval, section.max_warmup_duration) == (1.0, 300.0)
    assert section.block_startup is True
    assert section.prewarm_timeout == 10.0
    assert section.last_resort is True
    assert (section.breaker.enabled, section.breaker.failures, section.breaker.cooldown) == (
        True,
        5,
        10.0,
    )
    assert good_router("health_checks: {enabled: false}").health_checks.enabled is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "health_checks: {intervall: 30s}",
            'health_checks.intervall: is not a known key; did you mean "interval"?',
        ),
        (
            "health_checks: {endpoint: health}",
            "health_checks.endpoint: is not a path; begin with one /, no spaces, no host",
        ),
        (
            "health_checks: {endpoint: //evil/health}",
            "health_checks.endpoint: is not a path; begin with one /, no spaces, no host",
        ),
        (
            "health_checks: {unhealthy_threshold: 0}",
            "health_checks.unhealthy_threshold: must be at least 1; default 3",
        ),
    ],
)
def test_bad_sections(text: str, message: str) -> None:
    assert router_lines(ROUTER_BASE + text) == [f"r.yaml:2: {message}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{accept_status: []}", "accept_status: is empty, so nothing would ever be healthy; list"),
        ("{accept_status: [200, 200]}", "accept_status[1]: 200 is listed twice; remove one"),
        ("{warmup_status: [99]}", "warmup_status[0]: 99 is not a status; use statuses from 100"),
        ("{method: PUT}", 'method: "PUT" is not a known value; '),
        ("{fallback_endpoints: [v1]}", "fallback_endpoints[0]: is not a path; begin with one /"),
    ],
)
def test_bad_checks_of_a_backend(text: str, message: str) -> None:
    (line,) = router_lines(BACKEND % text)
    assert f"health_check.{message}" in line


def test_a_backend_s_own_check() -> None:
    text = (
        "{endpoint: /api/v1/health, method: POST, body: {check: true}, accept_status: [200, 400]}"
    )
    config = good_router(BACKEND % text)
    own = config.backends[0].health_check
    assert own is not None
    assert (own.endpoint, own.method, own.body) == ("/api/v1/health", "POST", {"check": True})
    assert own.accept_status == (200, 400)
    assert own.warmup_status == (503,)
    assert own.timeout is None
    assert own.fallback_endpoints is None
