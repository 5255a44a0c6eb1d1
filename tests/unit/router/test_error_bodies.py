"""What clients read of errors: the bodies, and the headers that go with them."""

import pytest

from continuum_router import error_bodies, errors


def test_a_client_error_says_what_is_wrong():
    status, body = error_bodies.to_openai(
        errors.BadRequest("model is missing", code="missing_field", param="model"), "r"
    )
    assert status == 400
    assert body["error"] == {
        "message": "model is missing",
        "type": "invalid_request_error",
        "param": "model",
        "code": "missing_field",
        "request_id": "r",
    }


def test_a_broken_stream_carries_the_status_inside():
    assert error_bodies.to_stream_event(errors.UpstreamTimeout(), "r")["error"] == {
        "message": "The backend did not answer in time.",
        "type": "timeout_error",
        "param": None,
        "code": "upstream_timeout",
        "request_id": "r",
        "status": 504,
    }


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/v1/messages2", "openai"),
        ("/v1/chat/completions", "openai"),
        ("", "openai"),
    ],
)
def test_whose_error_object_a_path_gets(path, form):
    assert error_bodies.error_form(path) == form


@pytest.mark.parametrize(
    ("err", "kind"),
    [
        (errors.BadRequest(), "invalid_request_error"),
        (errors.NotFound(), "not_found_error"),
        (errors.BodyTooLarge(), "request_too_large"),
        (errors.MethodNotAllowed(headers={"Allow": "POST"}), "invalid_request_error"),
        (errors.UpstreamFailed(), "api_error"),
        (errors.NoBackend(), "overloaded_error"),
        (errors.UpstreamTimeout(), "timeout_error"),
    ],
)
def test_anthropics_form(err, kind):
    status, body, headers = error_bodies.to_client(err, "r", error_bodies.ErrorForm.ANTHROPIC)
    assert status == err.status
    assert (body["type"], body["request_id"]) == ("error", "r")
    assert (body["error"]["type"], body["error"]["message"]) == (kind, err.default_message)
    assert headers == {**err.headers, "request-id": "r"}
    event = error_bodies.to_stream_event(err, "r", error_bodies.ErrorForm.ANTHROPIC)
    assert event == {**body, "error": {**body["error"], "status": err.status}}


def test_openais_form_is_what_it_was():
    err = errors.NoBackend(retry_after=3)
    status, body, headers = error_bodies.to_client(err, "r", error_bodies.ErrorForm.OPENAI)
    assert (status, body) == error_bodies.to_openai(err, "r")
    assert headers == {"Retry-After": "3", "x-request-id": "r"}
