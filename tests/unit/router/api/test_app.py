"""The table of paths."""

import pytest

from support.edge import edge_config, raw_exchange, running

PATHS = {
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/models": "GET, HEAD",
    "/health": "GET, HEAD",
    "/healthz": "GET, HEAD",
    "/health/ready": "GET, HEAD",
    "/metrics": "GET, HEAD",
}


async def test_every_path_and_no_other_method() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        for path, methods in PATHS.items():
            async with edge.session.delete(edge.url + path) as response:
                assert (response.status, response.headers["Allow"]) == (405, methods)
                # X-Cache goes on every answer of a cacheable endpoint (B9, B10).
                generates = methods == "POST"
                assert response.headers.get("X-Cache") == ("BYPASS" if generates else None)


@pytest.mark.parametrize("target", ["/health?x=1", "http://other.example/health"])
async def test_queries_and_absolute_form(target: str) -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        got = await raw_exchange(edge.port, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert got.startswith(b"HTTP/1.1 200 OK")


async def test_head_has_no_body() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        got = await raw_exchange(edge.port, b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 OK")
    assert got.endswith(b"\r\n\r\n")


async def test_headers_have_a_limit() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        got = await raw_exchange(
            edge.port, b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 20_000 + b"\r\n\r\n"
        )
    assert got.startswith(b"HTTP/1.1 431 ")
    assert b"xxxx" not in got
