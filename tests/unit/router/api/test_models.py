"""GET /v1/models: configured and discovered, whatever state the backends are in."""

import asyncio

import openai

from support.edge import Edge, edge_config, running
from support.faults import deaf_port
from support.scripted_backend import answers, reply, scripted

LIST = b'{"object":"list","data":[{"id":"found","object":"model","created":3,"owned_by":"vllm"}]}'


async def _until_known(edge: Edge, name: str) -> list[dict[str, object]]:
    async with asyncio.timeout(3):
        while True:
            data = (await edge.get("/v1/models")).json["data"]
            assert isinstance(data, list)
            if name in [entry["id"] for entry in data]:
                return data
            await asyncio.sleep(0.01)


async def test_configured_and_discovered() -> None:
    async with scripted(answers(reply(LIST))) as backend:
        entry = (
            f"backends: [{{name: b1, url: 'http://127.0.0.1:1', models: [listed]}}, "
            f"{{name: b2, url: '{backend.url}'}}]"
        )
        async with running(edge_config(entry)) as edge:
            data = await _until_known(edge, "found")
            assert [entry["id"] for entry in data] == ["listed", "found"]
            assert data[1] == {"id": "found", "object": "model", "created": 3, "owned_by": "vllm"}
            refused = await edge.post({"model": "neither", "messages": [{}]})
            assert refused.error["code"] == "model_not_found"
            async with openai.AsyncOpenAI(base_url=edge.url + "/v1", api_key="k") as client:
                assert [model.id async for model in client.models.list()] == ["listed", "found"]
    assert [seen.line for seen in backend.requests] == ["GET /v1/models HTTP/1.1"]


async def test_a_backend_that_hangs_delays_no_list() -> None:
    with deaf_port() as port:
        entry = (
            f"backends: [{{name: b1, url: 'http://127.0.0.1:{port}'}}, "
            f"{{name: b2, url: 'http://127.0.0.1:{port}', models: [listed]}}]"
        )
        async with running(edge_config(entry)) as edge:
            async with asyncio.timeout(1):
                answer = await edge.get("/v1/models")
            data = answer.json["data"]
            assert isinstance(data, list)
            assert [entry["id"] for entry in data] == ["listed"]


async def test_one_of_them() -> None:
    names = "models: ['org/m'], aliases: {gpt: org/m}"
    entry = f"backends: [{{name: b1, url: 'http://127.0.0.1:1', {names}}}]"
    async with running(edge_config(entry)) as edge:
        listed = (await edge.get("/v1/models")).json["data"]
        assert isinstance(listed, list)
        assert [entry["id"] for entry in listed] == ["gpt", "org/m"]
        for each in listed:
            assert (await edge.get(f"/v1/models/{each['id']}")).json == each
        for name in ("org", "org/m/x", "other", "gpt?x=1#"):
            answer = await edge.get(f"/v1/models/{name}")
            assert answer.status == (200 if name.startswith("gpt") else 404)
        assert (await edge.get("/v1/models/other")).error["code"] == "model_not_found"
        assert (await edge.post({}, path="/v1/models/gpt")).status == 405
        done = edge.sample("continuum_requests_total", endpoint="models", status_class="4xx")
        assert done == 5


async def test_a_refresh_waits_for_a_new_list_six_times_a_minute() -> None:
    async with scripted(answers(reply(LIST))) as backend:
        entry = f"backends: [{{name: b1, url: '{backend.url}'}}]"
        async with running(edge_config(entry)) as edge:
            for _ in range(6):
                answer = await edge.post({}, path="/v1/models/refresh")
                assert answer.status == 200
                assert answer.json == (await edge.get("/v1/models")).json
            before = len(backend.requests)
            refused = await edge.post({}, path="/v1/models/refresh")
            assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
            assert 50 < int(refused.headers["Retry-After"]) <= 60
            assert len(backend.requests) == before
            shown = await edge.post({}, path="/admin/models/refresh")
            assert shown.status == 200
            assert [(e["id"], e["backends"]) for e in shown.json["data"]] == [("found", ["b1"])]
            assert len(backend.requests) == before + 1


async def test_a_refresh_may_be_forbidden() -> None:
    entry = "backends: [{name: b1, url: 'http://127.0.0.1:1', models: [listed]}]"
    off = "model_aggregation: {allow_force_refresh: false}"
    async with running(edge_config(entry, off)) as edge:
        for path in ("/v1/models/refresh", "/admin/models/refresh"):
            answer = await edge.post({}, path=path)
            assert (answer.status, answer.error["code"]) == (403, "refresh_not_allowed")
