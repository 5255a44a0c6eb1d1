"""Starting and stopping: what fails says why, nothing is left open."""

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest

from continuum_router.main import Router, StartFailed, run
from continuum_shared.config.report import Report
from support.edge import edge_config, raw_exchange, running


async def test_an_address_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = edge_config(["http://127.0.0.1:1"], f"server: {{listen: '127.0.0.1:{port}'}}")
        router = Router(config)
        with pytest.raises(StartFailed, match=f"cannot listen on 127.0.0.1:{port}: .*in use"):
            await router.start()
        assert router.state.supervisor.names() == []


def test_the_process_says_so_and_ends_with_1(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = edge_config(["http://127.0.0.1:1"], f"server: {{listen: '127.0.0.1:{port}'}}")
        assert run(config, Report("x"), env={}) == 1
    captured = capfd.readouterr()
    assert captured.err.startswith(f"continuum-router: cannot listen on 127.0.0.1:{port}: ")
    assert "Traceback" not in captured.out + captured.err


async def test_ipv6() -> None:
    async with running(edge_config(["http://[::1]:1"], "server: {listen: '[::1]:0'}")) as edge:
        assert str(edge.router.address).startswith("[::1]:")
        async with edge.session.get(f"http://[::1]:{edge.port}/health") as response:
            assert response.status == 200


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    config = edge_config(["http://h:1"], f"server: {{listen: 'unix:{path}'}}")
    async with running(config) as edge:
        assert str(edge.router.address) == f"unix:{path}"
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.get("http://x/health") as response:
                assert response.status == 200


async def test_stop_closes_idle_clients() -> None:
    router = Router(edge_config(["http://127.0.0.1:1"]))
    await router.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", router.address.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"}")
    await router.stop()
    assert await reader.read() == b""
    writer.close()


async def test_the_server_does_not_name_itself() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        got = await raw_exchange(edge.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"\nServer:" not in got
    assert b"\nx-continuum-request-id: " in got
