"""What can go wrong with a request, as types: whose fault, how far it got, what the client reads.

Two families. `AttemptFailure` is one failed call to one backend: it never reaches a client, the
retry rule reads its stage and cause. `RouterError` is what a client is told in the end. Its message
is written by us: for a 5xx it is one fixed text, so that no cause, address or body leaks out.
"""

from collections.abc import Mapping
from enum import StrEnum


class Stage(StrEnum):
    """How far an attempt got (design/architecture.md section 4, "How far did it get?")."""

    SELECTING = "selecting"
    CONNECTING = "connecting"
    SENDING = "sending"
    AWAITING_HEAD = "awaiting_head"
    STREAMING = "streaming"


class Fault(StrEnum):
    """Which side is to blame."""

    CLIENT = "client"
    BACKEND = "backend"
    ROUTER = "router"


class Cause(StrEnum):
    """Why an attempt failed. Closed set: the values are used as labels and in log lines."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    DNS = "dns"
    TLS = "tls"
    CONNECT_TIMEOUT = "connect_timeout"
    POOL_FULL = "pool_full"
    POOL_CLOSED = "pool_closed"
    CLOSED = "closed"
    RESET = "reset"
    BAD_HEAD = "bad_head"
    HEAD_TOO_LARGE = "head_too_large"
    BAD_FRAMING = "bad_framing"
    BAD_CODING = "bad_coding"
    CUT = "cut"
    ABORTED = "aborted"
    STATUS = "status"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    CHUNK_INTERVAL_TIMEOUT = "chunk_interval_timeout"
    TOTAL_TIMEOUT = "total_timeout"


ROUTER_CAUSES = frozenset({Cause.POOL_FULL, Cause.POOL_CLOSED, Cause.ABORTED})
"""Causes that say nothing about the backend: they must not be counted against its health."""

LOST_CAUSES = frozenset({Cause.CLOSED, Cause.RESET})
"""What a kept connection dies of when the server had closed it while it was idle (E14)."""


class AttemptFailure(Exception):
    """One call to one backend failed.

    `stage` is how far it got, `cause` why it ended. `reused` says that the call went out on a kept
    connection, `began` that at least one byte of an answer (1xx included) had arrived.
    `status` is the backend's, where the status is the failure; `retry_after` is in seconds.
    `detail` is for the log: an errno's symbol or the like, never what a peer or a client sent.
    """

    def __init__(  # noqa: PLR0913  a record of one event; all but two fields have defaults
        self,
        stage: Stage,
        cause: Cause,
        *,
        reused: bool = False,
        began: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(f"{cause} while {stage}" + (f" ({detail})" if detail else ""))
        self.stage = stage
        self.cause = cause
        self.reused = reused
        self.began = began
        self.status = status
        self.retry_after = retry_after
        self.detail = detail

    @property
    def fault(self) -> Fault:
        """Whom to blame: `router` for causes that tell nothing about the backend."""
        return Fault.ROUTER if self.cause in ROUTER_CAUSES else Fault.BACKEND

    @property
    def lost_unused(self) -> bool:
        """True when a kept connection died before any byte of the answer came.

        Then one retry on a fresh connection is due, uncounted, if the backend allows replay
        (decisions E14, user report S2).
        """
        return self.reused and not self.began and self.cause in LOST_CAUSES


class RejectStage(StrEnum):
    """Where a request was refused; label `stage` of `request_rejected_total` (spec surface)."""

    AUTH = "auth"
    RATE_LIMIT = "rate_limit"
    POLICY = "policy"
    ADMISSION = "admission"
    GUARDRAIL_INPUT = "guardrail_input"
    ROUTING = "routing"


class ErrorType(StrEnum):
    """The `type` field of an OpenAI error object."""

    INVALID_REQUEST = "invalid_request_error"
    AUTHENTICATION = "authentication_error"
    RATE_LIMIT = "rate_limit_error"
    API = "api_error"
    UNAVAILABLE = "service_unavailable_error"
    TIMEOUT = "timeout_error"


class RouterError(Exception):
    """A request ends with an error that the router itself answers.

    Subclasses fix `status`, `type`, `fault`, `stage` (where it was refused, or None when the
    request had been given to a backend) and the default `code` and `message`.
    """

    status: int = 500
    type: ErrorType = ErrorType.API
    fault: Fault = Fault.ROUTER
    stage: RejectStage | None = None
    default_code: str = "internal_error"
    default_message: str = "The router met an unexpected condition."

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = self.default_message if message is None else message
        self.code = self.default_code if code is None else code
        self.param = param
        self.retry_after = retry_after
        self.headers: dict[str, str] = dict(headers or {})
        if retry_after is not None:
            self.headers.setdefault("Retry-After", str(max(1, round(retry_after))))
        super().__init__(self.message)


class BadRequest(RouterError):
    """The request cannot be understood; `message` says what is wrong and what would be right."""

    status = 400
    type = ErrorType.INVALID_REQUEST
    fault = Fault.CLIENT
    stage = RejectStage.ADMISSION
    default_code = "invalid_request"
    default_message = "The request is not valid."


class AdminRefused(RouterError):
    """The caller may not use the administration (decisions P4)."""

    status = 403
    type = ErrorType.AUTHENTICATION
    fault = Fault.CLIENT
    stage = RejectStage.AUTH
    default_code = "admin_not_allowed"
    default_message = "This caller may not use the administration."


class AdminUnauthorized(AdminRefused):
    """A token is needed."""

    status = 401
    default_code = "admin_token_needed"


class NotFound(RouterError):
    """No such path."""

    status = 404
    type = ErrorType.INVALID_REQUEST
    fault = Fault.CLIENT
    stage = RejectStage.ROUTING
    default_code = "not_found"
    default_message = "There is nothing at this path."


class ModelNotFound(RouterError):
    """No backend serves the model (decisions E20). The message does not repeat the name."""

    status = 404
    type = ErrorType.INVALID_REQUEST
    fault = Fault.CLIENT
    stage = RejectStage.ROUTING
    default_code = "model_not_found"
    default_message = "The model does not exist or no backend serves it. See GET /v1/models."


class RefreshNotAllowed(RouterError):
    """`model_aggregation.allow_force_refresh` is false (S2)."""

    status = 403
    type = ErrorType.AUTHENTICATION
    fault = Fault.CLIENT
    stage = RejectStage.POLICY
    default_code = "refresh_not_allowed"
    default_message = "This router does not let callers refresh the model list."


class TooManyRefreshes(RouterError):
    """More forced refreshes than decisions E21 allows; give `Retry-After`."""

    status = 429
    type = ErrorType.RATE_LIMIT
    fault = Fault.CLIENT
    stage = RejectStage.RATE_LIMIT
    default_code = "rate_limit_exceeded"
    default_message = "The model list was refreshed too often; wait and try again."


class MethodNotAllowed(RouterError):
    """The path exists, the method does not; give `headers={"Allow": ...}`."""

    status = 405
    type = ErrorType.INVALID_REQUEST
    fault = Fault.CLIENT
    stage = RejectStage.ROUTING
    default_code = "method_not_allowed"
    default_message = "This path does not take this method."


class BodyTooLarge(RouterError):
    """The body exceeds `server.max_body_bytes` (decisions H3); raised before it is parsed."""

    status = 413
    type = ErrorType.INVALID_REQUEST
    fault = Fault.CLIENT
    stage = RejectStage.ADMISSION
    default_code = "request_too_large"
    default_message = "The request body is larger than this server accepts."


class UnsupportedBody(RouterError):
    """A content coding or media type that cannot be read."""

    status = 415
    type = ErrorType.INVALID_REQUEST
    fault = Fault.CLIENT
    stage = RejectStage.ADMISSION
    default_code = "unsupported_media_type"
    default_message = "The request body has a content type or coding this server does not read."


class ClientGone(RouterError):
    """The client left before the answer was complete: nobody's failure, never sent (status 499)."""

    status = 499
    type = ErrorType.INVALID_REQUEST
    fault = Fault.CLIENT
    default_code = "client_closed_request"
    default_message = "The client closed the request."


class InternalError(RouterError):
    """A defect of ours; the cause is in the log under the request id."""


class UpstreamFailed(RouterError):
    """All attempts failed. `stage` stays None: the request had been given to a backend."""

    status = 502
    fault = Fault.BACKEND
    default_code = "upstream_error"
    default_message = "The backend did not give a usable answer."


class NoBackend(RouterError):
    """No backend is available for the model at this moment."""

    status = 503
    type = ErrorType.UNAVAILABLE
    fault = Fault.BACKEND
    stage = RejectStage.ROUTING
    default_code = "no_backend_available"
    default_message = "No backend is available for this model at the moment."


class Overloaded(RouterError):
    """Every backend of the model is at its connection limit."""

    status = 503
    type = ErrorType.UNAVAILABLE
    fault = Fault.ROUTER
    default_code = "overloaded"
    default_message = "All backends of this model are busy."


class Draining(RouterError):
    """The router is shutting down (decisions H8)."""

    status = 503
    type = ErrorType.UNAVAILABLE
    stage = RejectStage.ADMISSION
    default_code = "shutting_down"
    default_message = "The router is shutting down; try another one."


class UpstreamTimeout(RouterError):
    """A deadline of the request passed before anything was relayed (decisions E10, E12)."""

    status = 504
    type = ErrorType.TIMEOUT
    fault = Fault.BACKEND
    default_code = "upstream_timeout"
    default_message = "The backend did not answer in time."


def forget_frames(err: BaseException | None) -> None:
    """Drop the tracebacks of a handled error and of its causes.

    A traceback refers to frames, frames to the error and to the whole request: a cycle that would
    keep bodies in memory until the cycle collector comes. To be called once nobody raises it again.
    """
    while err is not None:
        err.__traceback__ = None
        err = err.__cause__ or err.__context__
