"""What is asked, and what each status means (S2 "fallback behaviour", E1, E9)."""

import pytest

from continuum_router.backends.health import CredentialState, ProbeError, ProbeOutcome
from continuum_router.backends.pool import Backend
from continuum_router.backends.probe_plan import ProbePlan, plan_for
from continuum_router.config.backends import BackendType
from continuum_router.config.health_checks import BackendHealthCheck, HealthChecksConfig
from continuum_shared.config.kinds import BackendUrl, Secret

SECTION = HealthChecksConfig()


def backend(**more: object) -> Backend:
    values = {"name": "a", "type": BackendType.VLLM, "url": BackendUrl.parse("http://h:1"), **more}
    return Backend(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [BackendType.VLLM, BackendType.SGLANG, BackendType.GENERIC])
def test_engines_are_asked_health_then_their_catalogue(kind: BackendType) -> None:
    plan = plan_for(backend(type=kind), None, SECTION)
    assert (plan.method, plan.paths, plan.timeout) == ("GET", ("/health", "/v1/models"), 10.0)
    assert plan.catalogues == {"/v1/models"}
    assert plan.body == b""


def test_the_section_s_endpoint_takes_the_place_of_health() -> None:
    plan = plan_for(backend(), None, HealthChecksConfig(endpoint="/ping"))
    assert plan.paths == ("/ping", "/v1/models")
    assert plan_for(backend(), None, HealthChecksConfig(endpoint="/v1/models")).paths == (
        "/v1/models",
    )


def test_key_and_headers_go_along() -> None:
    plan = plan_for(
        backend(api_key=Secret("k"), headers=(("X-A", "1"),), organization="o"), None, SECTION
    )
    assert plan.headers == (
        ("Accept", "application/json"),
        ("X-A", "1"),
        ("Authorization", "Bearer k"),
        ("OpenAI-Organization", "o"),
    )


def test_a_check_of_its_own() -> None:
    own = BackendHealthCheck.model_validate(
        {
            "endpoint": "/custom",
            "fallback_endpoints": ["/health"],
            "method": "POST",
            "body": {"check": True},
            "timeout": "2s",
            "accept_status": [200, 404],
            "warmup_status": [425],
        }
    )
    plan = plan_for(backend(), own, SECTION)
    assert (plan.method, plan.paths, plan.timeout) == ("POST", ("/custom", "/health"), 2.0)
    assert plan.body == b'{"check":true}'
    assert ("Content-Type", "application/json") in plan.headers
    assert plan.catalogues == frozenset()
    assert (plan.accepts(404), plan.goes_on(404), plan.goes_on(405)) == (True, False, True)
    assert plan.judge("/custom", 425, 0.1).outcome is ProbeOutcome.WARMING
    assert plan.judge("/custom", 503, 0.1).outcome is ProbeOutcome.FAILED


def test_its_own_endpoint_has_no_built_in_fallback_and_others_keep_it() -> None:
    assert plan_for(backend(), BackendHealthCheck(endpoint="/x"), SECTION).paths == ("/x",)
    assert plan_for(backend(), BackendHealthCheck(accept_status=(204,)), SECTION).paths == (
        "/health",
        "/v1/models",
    )


@pytest.mark.parametrize(
    ("status", "outcome", "error", "next_path"),
    [
        (200, ProbeOutcome.OK, ProbeError.NONE, False),
        (204, ProbeOutcome.OK, ProbeError.NONE, False),
        (301, ProbeOutcome.FAILED, ProbeError.REDIRECT, False),
        (400, ProbeOutcome.FAILED, ProbeError.STATUS, False),
        (401, ProbeOutcome.FAILED, ProbeError.CREDENTIALS, False),
        (403, ProbeOutcome.FAILED, ProbeError.CREDENTIALS, False),
        (404, ProbeOutcome.FAILED, ProbeError.NOT_FOUND, True),
        (405, ProbeOutcome.FAILED, ProbeError.NOT_FOUND, True),
        (429, ProbeOutcome.FAILED, ProbeError.BUSY, False),
        (500, ProbeOutcome.FAILED, ProbeError.STATUS, False),
        (503, ProbeOutcome.WARMING, ProbeError.BUSY, False),
    ],
)
def test_statuses(status: int, outcome: ProbeOutcome, error: ProbeError, next_path: bool) -> None:
    plan = plan_for(backend(), None, SECTION)
    seen = plan.judge("/health", status, 0.25)
    assert (seen.outcome, seen.error, seen.status, seen.latency) == (outcome, error, status, 0.25)
    assert plan.goes_on(status) is next_path
    invalid = error is ProbeError.CREDENTIALS
    assert seen.credentials is (CredentialState.INVALID if invalid else None)


def test_only_a_proving_path_proves_the_key() -> None:
    plan = ProbePlan(
        method="GET",
        paths=("/api/v1/key", "/v1/models"),
        timeout=1.0,
        proves_key=frozenset({"/api/v1/key"}),
    )
    assert plan.judge("/api/v1/key", 200, 0.0).credentials is CredentialState.VALID
    assert plan.judge("/v1/models", 200, 0.0).credentials is None
