"""Identity of a request: what is taken from the client and what never is."""

import pytest
from aiohttp.test_utils import make_mocked_request

from continuum_router.api.scope import Scope, read_scope
from continuum_router.backends.holding import Tier
from continuum_router.routing.selector import Choice
from continuum_router.routing.strategies import Rule
from support.dispatch import backend

TRACE = "0af7651916cd43dd8448eb211c80319c"


def _read(**headers: str) -> Scope:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = make_mocked_request("POST", "/", headers=sent)
    return read_scope(request, request_id="ours", now=1.0)


def test_the_id_is_always_ours() -> None:
    scope = _read(x_request_id="theirs", x_client_ref="shop")
    assert (scope.request_id, scope.client_id, scope.client_ref) == ("ours", "theirs", "shop")


@pytest.mark.parametrize("bad", ["", "x" * 129, "한", "a\tb", "a\x7fb"])
def test_odd_labels_of_clients_are_dropped(bad: str) -> None:
    scope = _read(x_request_id=bad, x_client_ref=bad)
    assert (scope.client_id, scope.client_ref) == (None, None)


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE),
        (f"01-{TRACE}-b7ad6b7169203331-01-more", TRACE),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None),
        (f"00-{TRACE}-01", None),
        ("", None),
    ],
)
def test_trace_id(header: str, trace: str | None) -> None:
    assert _read(traceparent=header).trace_id == trace


def test_headers_grow_with_what_is_known() -> None:
    scope = Scope(request_id="r", started=0.0, method="POST")
    assert dict(scope.headers()) == {"x-continuum-request-id": "r"}
    scope.cacheable = scope.routing_headers = True
    assert dict(scope.headers()) == {"x-continuum-request-id": "r", "X-Cache": "BYPASS"}
    scope.outcome.choice = Choice(
        backend=backend("b1"), rule=Rule.KV_AWARE, tier=Tier.GPU_HOT, score=0.9123, held=128
    )
    assert dict(scope.headers_map()) == {
        "x-continuum-request-id": "r",
        "X-Cache": "BYPASS",
        "x-continuum-backend": "b1",
        "x-continuum-route": "kv_aware; tier=gpu_hot; score=0.912; held=128",
    }
    scope.routing_headers = False
    assert "x-continuum-route" not in dict(scope.headers())
