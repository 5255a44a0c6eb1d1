"""Errors: what clients read, and what the retry rule reads."""

import pytest

from continuum_router import error_bodies, errors
from continuum_router.errors import AttemptFailure, Cause, Fault, RouterError, Stage

CASES = {
    errors.BadRequest: (400, "invalid_request_error", "invalid_request", "client", "admission"),
    errors.NotFound: (404, "invalid_request_error", "not_found", "client", "routing"),
    errors.ModelNotFound: (404, "invalid_request_error", "model_not_found", "client", "routing"),
    errors.RefreshNotAllowed: (
        403,
        "authentication_error",
        "refresh_not_allowed",
        "client",
        "policy",
    ),
    errors.TooManyRefreshes: (
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        "client",
        "rate_limit",
    ),
    errors.MethodNotAllowed: (
        405,
        "invalid_request_error",
        "method_not_allowed",
        "client",
        "routing",
    ),
    errors.BodyTooLarge: (413, "invalid_request_error", "request_too_large", "client", "admission"),
    errors.UnsupportedBody: (
        415,
        "invalid_request_error",
        "unsupported_media_type",
        "client",
        "admission",
    ),
    errors.AdminRefused: (403, "authentication_error", "admin_not_allowed", "client", "auth"),
    errors.ClientGone: (499, "invalid_request_error", "client_closed_request", "client", None),
    errors.InternalError: (500, "api_error", "internal_error", "router", None),
    errors.UpstreamFailed: (502, "api_error", "upstream_error", "backend", None),
    errors.NoBackend: (
        503,
        "service_unavailable_error",
        "no_backend_available",
        "backend",
        "routing",
    ),
    errors.Overloaded: (503, "service_unavailable_error", "overloaded", "router", None),
    errors.Draining: (503, "service_unavailable_error", "shutting_down", "router", "admission"),
    errors.UpstreamTimeout: (504, "timeout_error", "upstream_timeout", "backend", None),
}


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_each_error_has_its_status_and_object(kind):
    status, type_, code, fault, stage = CASES[kind]
    err = kind()
    assert error_bodies.to_openai(err, "req-1") == (
        status,
        {
            "error": {
                "message": kind.default_message,
                "type": type_,
                "param": None,
                "code": code,
                "request_id": "req-1",
            }
        },
    )
    assert (err.fault.value, err.stage.value if err.stage else None) == (fault, stage)


def test_the_table_is_whole():
    assert set(RouterError.__subclasses__()) == set(CASES)


@pytest.mark.parametrize(
    "kind", [kind for kind in CASES if kind.status >= 500], ids=lambda kind: kind.__name__
)
def test_a_server_error_never_shows_its_cause(kind):
    _, body = error_bodies.to_openai(kind("connect to 10.0.0.7 refused: canary"), "r")
    assert body["error"]["message"] == kind.default_message
    assert "canary" not in str(body)


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.2, "1"), (1.0, "1"), (2.4, "2"), (30, "30"), (None, None)]
)
def test_retry_after_is_whole_seconds_and_at_least_one(seconds, header):
    assert errors.NoBackend(retry_after=seconds).headers.get("Retry-After") == header


def test_headers_given_are_kept():
    assert errors.MethodNotAllowed(headers={"Allow": "POST"}).headers == {"Allow": "POST"}


@pytest.mark.parametrize(
    ("cause", "fault"),
    [
        (Cause.REFUSED, Fault.BACKEND),
        (Cause.CUT, Fault.BACKEND),
        (Cause.POOL_FULL, Fault.ROUTER),
        (Cause.POOL_CLOSED, Fault.ROUTER),
        (Cause.ABORTED, Fault.ROUTER),
    ],
)
def test_our_own_limits_are_not_the_backends_fault(cause, fault):
    assert AttemptFailure(Stage.CONNECTING, cause).fault is fault


@pytest.mark.parametrize(
    ("stage", "cause", "reused", "began", "lost"),
    [
        (Stage.SENDING, Cause.RESET, True, False, True),
        (Stage.AWAITING_HEAD, Cause.CLOSED, True, False, True),
        (Stage.AWAITING_HEAD, Cause.CLOSED, False, False, False),
        (Stage.AWAITING_HEAD, Cause.RESET, True, True, False),
        (Stage.STREAMING, Cause.RESET, True, True, False),
        (Stage.AWAITING_HEAD, Cause.BAD_HEAD, True, False, False),
    ],
)
def test_only_a_kept_connection_that_died_unused_is_retried_fresh(
    stage, cause, reused, began, lost
):
    assert AttemptFailure(stage, cause, reused=reused, began=began).lost_unused is lost


def test_an_attempt_failure_names_stage_and_cause():
    failure = AttemptFailure(Stage.CONNECTING, Cause.REFUSED, detail="ECONNREFUSED")
    assert str(failure) == "refused while connecting (ECONNREFUSED)"
