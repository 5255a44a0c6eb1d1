"""What a client is told of an error: the body in its API's form, the status, the headers.

Never contains what a backend said: its texts may quote a prompt or a key.
"""

from collections.abc import Mapping
from enum import StrEnum

from continuum_router.errors import RouterError


class ErrorForm(StrEnum):
    """Whose error object a client reads. Clients of one API do not look for the other's."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


MESSAGES_PATH = "/v1/messages"

_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_REQUEST_ID: Mapping[ErrorForm, str] = {
    ErrorForm.OPENAI: "x-request-id",
    ErrorForm.ANTHROPIC: "request-id",
}


def error_form(path: str) -> ErrorForm:
    """The form for a request to this path: Anthropic's under `/v1/messages`, else OpenAI's."""
    anthropic = path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")
    return ErrorForm.ANTHROPIC if anthropic else ErrorForm.OPENAI


def to_openai(err: RouterError, request_id: str) -> tuple[int, dict[str, object]]:
    """Return status and JSON body of an OpenAI error object.

    A status of 500 and above always carries the class's own fixed text, whatever the instance says:
    causes belong in the log, found by `request_id`.
    """
    message = err.message if err.status < 500 else err.default_message
    error: dict[str, object] = {
        "message": message,
        "type": err.type.value,
        "param": err.param,
        "code": err.code,
        "request_id": request_id,
    }
    return err.status, {"error": error}


def to_client(
    err: RouterError, request_id: str, form: ErrorForm
) -> tuple[int, dict[str, object], dict[str, str]]:
    """Return status, JSON body and headers of an error in the form that the client reads.

    Both clients show the request id of an error, each from a header of its own. Anthropic's object
    has a `type` around the error; what OpenAI's has beside is kept.
    """
    status, body = to_openai(err, request_id)
    headers = {**err.headers, _REQUEST_ID[form]: request_id}
    if form is ErrorForm.ANTHROPIC:
        error = body["error"]
        assert isinstance(error, dict)
        other = "invalid_request_error" if status < 500 else "api_error"
        error["type"] = _ANTHROPIC_TYPES.get(status, other)
        body = {"type": "error", "error": error, "request_id": request_id}
    return status, body, headers


def to_stream_event(
    err: RouterError, request_id: str, form: ErrorForm = ErrorForm.OPENAI
) -> dict[str, object]:
    """Return the JSON of the last event of a stream that broke after bytes were relayed.

    The same object as `to_client` gives, with the status inside, because the status line is gone.
    """
    status, body, _ = to_client(err, request_id, form)
    error = body["error"]
    assert isinstance(error, dict)
    error["status"] = status
    return body
