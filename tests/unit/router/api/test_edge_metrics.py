"""Series of the edge: all there from the start, counted where they belong."""

import pytest

from continuum_router.api.edge_metrics import (
    EdgeMetrics,
    EndpointLabel,
    StatusClass,
    status_class,
)
from continuum_router.errors import RejectStage
from continuum_shared.metrics import Metrics


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, StatusClass.SUCCESS),
        (204, StatusClass.SUCCESS),
        (302, StatusClass.REDIRECT),
        (400, StatusClass.CLIENT_ERROR),
        (499, StatusClass.CLIENT_GONE),
        (429, StatusClass.CLIENT_ERROR),
        (500, StatusClass.SERVER_ERROR),
        (999, StatusClass.SERVER_ERROR),
    ],
)
def test_classes(status: int, kind: StatusClass) -> None:
    assert status_class(status) is kind


def test_counting() -> None:
    metrics = Metrics()
    edge = EdgeMetrics(metrics, lambda: 3)
    edge.request_ended(EndpointLabel.CHAT, 200)
    edge.request_ended(EndpointLabel.OTHER, 404)
    edge.generation_ended(0.2, None)
    edge.generation_ended(0.2, 0.1)
    edge.rejected(RejectStage.ROUTING)
    lines = metrics.exposition().decode().splitlines()
    for line in (
        'continuum_requests_total{endpoint="chat_completions",status_class="2xx"} 1.0',
        'continuum_requests_total{endpoint="other",status_class="4xx"} 1.0',
        'continuum_requests_total{endpoint="completions",status_class="client_cancelled"} 0.0',
        'request_rejected_total{key_id="unattributed",stage="routing"} 1.0',
        'request_rejected_total{key_id="unattributed",stage="auth"} 0.0',
        "continuum_request_duration_seconds_count 2.0",
        "continuum_ttft_seconds_count 1.0",
        "continuum_requests_active 3.0",
    ):
        assert line in lines or line.replace("key_id", "stage") in lines or _swapped(line) in lines


def _swapped(line: str) -> str:
    """Label order is the library's matter."""
    name, _, rest = line.partition("{")
    labels, _, value = rest.partition("}")
    return name + "{" + ",".join(reversed(labels.split(","))) + "}" + value
