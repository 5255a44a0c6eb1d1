"""`/admin/*` over a real socket."""

import asyncio
import contextlib
import json
import logging
import socket
import struct

import aiohttp
import pytest
import uvloop

from continuum_router.config.root import Config, parse_config
from continuum_router.main import ConfigFile, Router
from continuum_shared.config.report import Report
from support.edge import BODY, Edge, edge_config, running
from support.scripted_backend import Peer, scripted

TOKEN = "0123456789abcdef-admin"
JSON = {"Content-Type": "application/json"}
SECRETS = """
backends:
- name: b1
  url: 'http://127.0.0.1:1'
  models: [m]
  api_key: canary-key
  headers: {X-A: canary-header}
"""


def tokened(text: str = SECRETS) -> Config:
    whole = text + "server: {listen: '127.0.0.1:0'}\nhealth_checks: {enabled: false}\n"
    whole += "admin: {token_env: ADMIN}\n"
    config, report = parse_config(whole, path="r.yaml", env={"ADMIN": TOKEN})
    assert config is not None, str(report)
    return config


async def asked(
    edge: Edge, method: str, path: str, **headers: str
) -> tuple[int, dict[str, object]]:
    async with edge.session.request(method, edge.url + path, headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


async def ok(peer: Peer) -> None:
    while await peer.request() is not None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


async def test_without_a_token_this_host_may_and_a_page_or_proxy_may_not() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        assert (await asked(edge, "GET", "/admin/backends"))[0] == 200
        status, body = await asked(edge, "POST", "/admin/reload", **{"Content-Type": "text/plain"})
        assert (status, body["error"]["code"]) == (403, "admin_not_allowed")
        status, body = await asked(edge, "GET", "/admin/backends", **{"X-Forwarded-For": "1.2.3.4"})
        assert status == 403
        status, body = await asked(edge, "GET", "/admin/backends", Host="evil.example")
        assert status == 403
        assert edge.sample("request_rejected_total", stage="auth", key_id="unattributed") == 3


def test_who_resets_the_connection_is_not_taken_for_a_unix_socket() -> None:
    """The request can still be read when the kernel does not know the peer's address any more."""

    async def drained() -> bool:
        async with running(edge_config(["http://127.0.0.1:1"])) as edge:
            with socket.create_connection(("127.0.0.1", edge.port)) as client:
                client.sendall(
                    b"POST /admin/backends/b1/drain HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\nContent-Length: 0\r\n\r\n"
                )
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            found = edge.router.state.dispatch.fleet.conditions.get("b1")
            assert found is not None
            refused = {"stage": "auth", "key_id": "unattributed"}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    while not (found.draining or edge.sample("request_rejected_total", **refused)):
                        await asyncio.sleep(0.01)
            return found.draining

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert not runner.run(drained())


async def test_with_a_token_only_who_has_it(caplog: pytest.LogCaptureFixture) -> None:
    async with running(tokened()) as edge:
        async with edge.session.get(edge.url + "/admin/config") as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert json.loads(await answer.read())["error"]["code"] == "admin_token_needed"
        assert (await asked(edge, "GET", "/admin/config", Authorization="Bearer no"))[0] == 401
        status, body = await asked(edge, "GET", "/admin/config", Authorization=f"Bearer {TOKEN}")
        assert (status, body["generation"]) == (200, 1)
        shown = json.dumps(body)
        assert "canary" not in shown
        assert TOKEN not in shown
        assert body["config"]["backends"][0]["api_key"] == "***"
        assert TOKEN not in caplog.text


async def test_an_unknown_path_is_404_for_whoever_may_and_401_for_others() -> None:
    async with running(tokened()) as edge:
        good = {"Authorization": f"Bearer {TOKEN}"}
        assert (await asked(edge, "GET", "/admin/nothing", **good))[0] == 404
        assert (await asked(edge, "GET", "/admin/nothing"))[0] == 401
        assert (await asked(edge, "POST", "/admin/backends/none/drain", **good, **JSON))[0] == 404
        assert (await asked(edge, "GET", "/admin/reload", **good))[0] == 404


async def test_a_drained_backend_gets_nothing_new_until_it_is_taken_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "admin_audit")
    async with scripted(ok) as one, scripted(ok) as two:
        async with running(edge_config([one.url, two.url])) as edge:
            status, body = await asked(edge, "POST", "/admin/backends/b1/drain", **JSON)
            assert (status, body) == (200, {"backend": "b1", "draining": True, "in_flight": 0})
            for _ in range(4):
                assert (await edge.post(BODY)).headers["x-continuum-backend"] == "b2"
            _, body = await asked(edge, "GET", "/admin/backends")
            shown = {row["name"]: row for row in body["backends"]}
            assert (shown["b1"]["state"], shown["b2"]["state"]) == ("draining", "unknown")
            assert shown["b2"]["served_seconds_ago"] is not None
            assert shown["b2"]["breaker"] == {"state": "closed", "failures": 0, "opened": 0}
            await asked(edge, "POST", "/admin/backends/b1/undrain", **JSON)
            got = {(await edge.post(BODY)).headers["x-continuum-backend"] for _ in range(4)}
            assert got == {"b1", "b2"}
    written = [record for record in caplog.records if record.name == "admin_audit"]
    assert len(written) == 2


async def test_reload_answers_with_its_report(tmp_path) -> None:  # type: ignore[no-untyped-def]
    now = [edge_config(["http://127.0.0.1:1"])]

    def read() -> tuple[Config, Report]:
        return now[0], Report("r.yaml")

    router = Router(now[0], ConfigFile(path=tmp_path / "r.yaml", digest=None, read=read))
    await router.start()
    try:
        async with aiohttp.ClientSession() as session:
            edge = Edge(router, session)
            now[0] = edge_config(["http://127.0.0.1:1"], "retry: {max_attempts: 9}")
            status, body = await asked(edge, "POST", "/admin/reload", **JSON)
            assert (status, body["result"], body["applied"]) == (
                200,
                "applied",
                ["retry.max_attempts"],
            )
            now[0] = edge_config(
                ["http://127.0.0.1:1"], "timeouts: {limits: {max_standard_timeout: 900s}}"
            )
            status, body = await asked(edge, "POST", "/admin/reload", **JSON)
            assert (status, body["result"]) == (409, "refused")
            assert body["refused"] == ["timeouts.limits.max_standard_timeout"]
    finally:
        await router.stop()
