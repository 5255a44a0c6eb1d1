import pytest

from continuum_router.backends.fleet import AttemptResult, Fleet, result_of_status
from continuum_shared.metrics import Metrics


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def fleet(metrics):
    return Fleet(metrics, ["a", "b"])


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_every_backend_has_a_sample_from_the_start(metrics, fleet):
    # decisions J18
    assert sample(metrics, "continuum_backend_in_flight", backend="a") == 0
    assert sample(metrics, "continuum_backend_in_flight", backend="b") == 0
    assert sample(metrics, "continuum_prefix_routing_backend_distribution", backend="a") == 0


def test_a_lease_counts_while_it_is_held(metrics, fleet):
    loads = fleet.loads
    with fleet.lease("a"), fleet.lease("a", by_prefix=True), fleet.lease("b"):
        assert dict(loads) == {"a": 2, "b": 1}
        assert sample(metrics, "continuum_backend_in_flight", backend="a") == 2
        assert sample(metrics, "continuum_prefix_routing_backend_distribution", backend="a") == 1
    assert dict(loads) == {"a": 0, "b": 0}
    assert dict(fleet.by_prefix) == {"a": 0, "b": 0}


def test_a_lease_that_was_never_begun_counts_nothing(fleet):
    lease = fleet.lease("a")
    lease.end()
    assert fleet.loads["a"] == 0


def test_beginning_and_ending_twice_counts_once(fleet):
    lease = fleet.lease("a").begin()
    lease.begin()
    assert fleet.loads["a"] == 1
    lease.end()
    lease.end()
    assert fleet.loads["a"] == 0


def test_a_lease_ends_with_an_exception(fleet):
    with pytest.raises(RuntimeError), fleet.lease("a"):
        raise RuntimeError
    assert fleet.loads["a"] == 0


def test_a_removed_backend_is_forgotten_when_its_last_lease_ends(metrics, fleet):
    lease = fleet.lease("a").begin()
    fleet.reconcile(["b"])
    assert fleet.loads["a"] == 1
    lease.end()
    assert "a" not in fleet.loads
    assert sample(metrics, "continuum_backend_in_flight", backend="a") is None


def test_an_idle_removed_backend_is_forgotten_at_once(fleet):
    fleet.reconcile(["b", "c"])
    assert dict(fleet.loads) == {"b": 0, "c": 0}


def test_a_backend_that_returns_before_its_leases_end_keeps_counts_and_history(fleet):
    fleet.record("a", AttemptResult.FAILED)
    before = fleet.success_rate("a")
    lease = fleet.lease("a").begin()
    fleet.reconcile(["b"])
    fleet.reconcile(["a", "b"])
    assert fleet.loads["a"] == 1
    assert fleet.success_rate("a") == before
    lease.end()
    assert fleet.loads["a"] == 0


def test_a_request_of_an_older_snapshot_may_lease_what_has_left(fleet):
    # user reports K16, R10: an unmapped name must not raise
    with fleet.lease("gone"):
        assert fleet.loads["gone"] == 1
    assert "gone" not in fleet.loads


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, AttemptResult.OK),
        (204, AttemptResult.OK),
        (400, AttemptResult.CLIENT_ERROR),
        (404, AttemptResult.CLIENT_ERROR),
        (408, AttemptResult.FAILED),
        (429, AttemptResult.BUSY),
        (500, AttemptResult.FAILED),
        (503, AttemptResult.BUSY),
        (504, AttemptResult.FAILED),
    ],
)
def test_what_a_status_says_about_the_backend(status, result):
    assert result_of_status(status) is result


def test_success_rate_is_one_without_samples_and_for_strangers(fleet):
    assert fleet.success_rate("a") == 1.0
    assert fleet.success_rate("nobody") == 1.0


def test_success_rate_moves_with_failures_and_recovers(fleet):
    fleet.record("a", AttemptResult.FAILED)
    assert fleet.success_rate("a") == pytest.approx(1 - 2 / 101)
    for _ in range(100):
        fleet.record("a", AttemptResult.FAILED)
    assert fleet.success_rate("a") < 0.14
    for _ in range(300):
        fleet.record("a", AttemptResult.OK)
    assert fleet.success_rate("a") > 0.99
    assert fleet.success_rate("b") == 1.0


@pytest.mark.parametrize(
    "result",
    [
        AttemptResult.CLIENT_ERROR,
        AttemptResult.BUSY,
        AttemptResult.CLIENT_GONE,
        AttemptResult.ROUTER_ERROR,
    ],
)
def test_what_is_not_the_backends_doing_leaves_its_rate_alone(fleet, result):
    # user reports R7, R8
    fleet.record("a", AttemptResult.FAILED)
    before = fleet.success_rate("a")
    for _ in range(50):
        fleet.record("a", result)
    assert fleet.success_rate("a") == before


def test_recording_for_a_stranger_is_ignored(fleet):
    fleet.record("nobody", AttemptResult.FAILED)
    fleet.observe_latency("nobody", 1.0)
    assert fleet.latency("nobody") is None


def test_latency_is_a_moving_average(fleet):
    assert fleet.latency("a") is None
    fleet.observe_latency("a", 1.0)
    assert fleet.latency("a") == 1.0
    fleet.observe_latency("a", 2.01)
    assert fleet.latency("a") == pytest.approx(1.02)


def test_a_ticket_hears_of_the_attempt_once() -> None:
    heard: list[str] = []

    class Notes:
        def begun(self) -> None:
            heard.append("begun")

        def first_token(self) -> None:
            heard.append("first")

        def usage(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
            heard.append(f"{prompt_tokens}/{cached_tokens}")

        def ended(self) -> None:
            heard.append("ended")

    lease = Fleet(Metrics(), ("a",)).lease("a", ticket=Notes())
    lease.end()
    with lease:
        lease.begin()
    lease.end()
    assert heard == ["begun", "ended"]
