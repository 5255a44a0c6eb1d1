"""Answers for operators."""

from prometheus_client.parser import text_string_to_metric_families

from support.edge import edge_config, running


async def test_health_is_about_the_process_only() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        for path in ("/health", "/healthz"):
            answer = await edge.get(path)
            assert (answer.status, answer.json) == (200, {"status": "ok"})
            assert "X-Cache" not in answer.headers


async def test_ready_does_not_look_at_backends() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        answer = await edge.get("/health/ready")
        assert (answer.status, answer.json) == (200, {"status": "ready"})


async def test_metrics_can_be_parsed_and_are_there_from_the_start() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        answer = await edge.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert names >= {
        "continuum_requests",
        "continuum_request_duration_seconds",
        "continuum_ttft_seconds",
        "continuum_upstream_attempts",
        "continuum_backend_in_flight",
        "continuum_prefix_routing_requests",
        "continuum_prefix_routing_backend_distribution",
        "continuum_kv_index_routing_decisions",
        "continuum_requests_active",
        "continuum_build_info",
        "request_rejected",
    }
