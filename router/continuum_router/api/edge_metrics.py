"""What is counted at the edge: requests, their time, refusals. Made once, with the state."""

from collections.abc import Callable
from enum import StrEnum

from continuum_router.errors import RejectStage
from continuum_shared.metrics import Metrics

DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

UNATTRIBUTED = "unattributed"
"""Label `key_id` of a refusal without an identified key (S2 "rejection counter per API key")."""


class EndpointLabel(StrEnum):
    """Label `endpoint`. A path that does not exist is `other`: strangers make no series."""

    CHAT = "chat_completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    AUDIO = "audio"
    IMAGES = "images"
    PASSTHROUGH = "passthrough"
    MODELS = "models"
    HEALTH = "health"
    METRICS = "metrics"
    OTHER = "other"


class StatusClass(StrEnum):
    """Label `status_class`. A request whose client left is counted apart (decisions G3)."""

    SUCCESS = "2xx"
    REDIRECT = "3xx"
    CLIENT_ERROR = "4xx"
    SERVER_ERROR = "5xx"
    CLIENT_GONE = "client_cancelled"


_CLASSES = {
    2: StatusClass.SUCCESS,
    3: StatusClass.REDIRECT,
    4: StatusClass.CLIENT_ERROR,
    5: StatusClass.SERVER_ERROR,
}


def status_class(status: int) -> StatusClass:
    """Class of a status; 499 is a client that left."""
    if status == 499:
        return StatusClass.CLIENT_GONE
    return _CLASSES.get(status // 100, StatusClass.SERVER_ERROR)


class EdgeMetrics:
    """The families of the edge; children are bound once."""

    def __init__(self, metrics: Metrics, active: Callable[[], int]) -> None:
        requests = metrics.counter(
            "continuum_requests_total",
            "Client requests, by endpoint and class of their status.",
            {"endpoint": EndpointLabel, "status_class": StatusClass},
        )
        rejected = metrics.counter(
            "request_rejected_total",
            "Requests refused before a backend was chosen.",
            {"stage": RejectStage, "key_id": None},
        )
        self._requests = {
            (endpoint, kind): requests.child(endpoint, kind)
            for endpoint in EndpointLabel
            for kind in StatusClass
        }
        self._rejected = {stage: rejected.child(stage, UNATTRIBUTED) for stage in RejectStage}
        self._duration = metrics.histogram(
            "continuum_request_duration_seconds",
            "Time from a generating request's arrival to the end of its answer.",
            DURATION_BUCKETS,
        ).child()
        self._ttft = metrics.histogram(
            "continuum_ttft_seconds",
            "Time from dispatch to the first data event of a stream or the head of an answer.",
            TTFT_BUCKETS,
        ).child()
        metrics.gauge_fn(
            "continuum_requests_active",
            "Client requests being worked on.",
            (),
            lambda: [((), active())],
        )

    def request_ended(self, endpoint: EndpointLabel, status: int) -> None:
        """Count one finished request."""
        self._requests[endpoint, status_class(status)].value += 1

    def completed(self, endpoint: EndpointLabel, seconds: float, ttft: float | None) -> None:
        """Count and note a generating request that was answered 200; both of the others in one."""
        self._requests[endpoint, StatusClass.SUCCESS].value += 1
        self._duration.observe(seconds)
        if ttft is not None:
            self._ttft.observe(ttft)

    def generation_ended(self, seconds: float, ttft: float | None) -> None:
        """Note the times of one generating request, in seconds."""
        self._duration.observe(seconds)
        if ttft is not None:
            self._ttft.observe(ttft)

    def rejected(self, stage: RejectStage) -> None:
        """Count one refusal."""
        self._rejected[stage].value += 1
