"""The listener as a process: SIGTERM ends its streams cleanly and the process with 0."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import sys

import aiohttp
import pytest
import yaml

from support.kv_publisher import KvPublisher
from support.listener_rig import source_row, subscribed, until
from support.source_tree import ROOT
from support.tiny_engine import TinyEngine, serving

PROGRAM = "import sys; from continuum_kv_listener.cli import main; sys.exit(main())"
COMMAND = (sys.executable, "-c", PROGRAM)


async def test_sigterm(tmp_path):
    publisher = KvPublisher()
    engine = TinyEngine()
    try:
        async with serving(engine) as url:
            path = tmp_path / "listener.yaml"
            port = free_tcp_port()
            path.write_text(
                yaml.safe_dump(
                    {
                        "listen": f"127.0.0.1:{port}",
                        "sources": [
                            {
                                "backend_name": "vllm-1",
                                "zmq_endpoint": publisher.endpoint,
                                "zmq_replay_endpoint": publisher.replay_endpoint,
                                "engine_url": url,
                                "model": "tiny-chat",
                            }
                        ],
                    }
                )
            )
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                "--config",
                str(path),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                base = f"http://127.0.0.1:{port}"
                await serves(base)
                async with subscribed(base, "vllm-1") as sub:
                    async with asyncio.timeout(10):
                        while not (await source_row(base, "vllm-1"))["connected"]:
                            await asyncio.sleep(0.05)
                    async with (
                        aiohttp.ClientSession() as session,
                        session.get(base + "/metrics") as response,
                    ):
                        assert "process_log_writer_failed 0.0\n" in await response.text()
                    process.send_signal(signal.SIGTERM)
                    await until(lambda: sub.ended, seconds=10)
                    assert not sub.broken
                async with asyncio.timeout(10):
                    out, err = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.communicate()
    finally:
        publisher.close()
    assert process.returncode == 0
    assert err == b""
    messages = [line for line in out.decode().splitlines() if "Listener st" in line]
    assert len(messages) == 2


async def test_sighup_renews_the_certificate_and_ends_nothing(tmp_path):
    tls = ROOT / "tests/fixtures/tls"
    cert, key, port = tmp_path / "c.pem", tmp_path / "k.pem", free_tcp_port()
    shutil.copy(tls / "listener.pem", cert)
    shutil.copy(tls / "listener-key.pem", key)
    path = tmp_path / "listener.yaml"
    source = {
        "backend_name": "a",
        "zmq_endpoint": "tcp://127.0.0.1:9",
        "engine_url": "http://127.0.0.1:9",
        "model": "m",
    }
    path.write_text(
        yaml.safe_dump(
            {
                "listen": f"127.0.0.1:{port}",
                "tls": {"cert": str(cert), "key": str(key)},
                "auth_token_env": "KV_TOKEN",
                "sources": [source],
            }
        )
    )
    token = "canary-0123456789abcdef"
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--config",
        str(path),
        env={**os.environ, "KV_TOKEN": token, "CONTINUUM_LOG_LEVEL": "trace"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    base, client = f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=tls / "ca.pem")
    headers = {"Authorization": f"Bearer {token}"}
    try:
        await serves(base, client)
        shutil.copy(tls / "renewed.pem", cert)
        shutil.copy(tls / "renewed-key.pem", key)
        process.send_signal(signal.SIGHUP)

        async def renewals() -> str:
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.get(base + "/metrics", ssl=client) as response,
            ):
                return await response.text()

        async with asyncio.timeout(10):
            while 'renewals_total{result="renewed"} 1.0' not in await renewals():
                await asyncio.sleep(0.05)
        process.terminate()
        out, _ = await asyncio.wait_for(process.communicate(), 10)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 0
    assert b"Certificate renewed" in out
    assert b"canary" not in out


@pytest.mark.parametrize("text", ["sources: [", "sources: []", "{}"])
async def test_a_bad_file_ends_with_one_and_no_traceback(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--config",
        str(path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20):
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith(f"{path}:1")
    assert b"Traceback" not in err


def free_tcp_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def serves(base: str, tls: ssl.SSLContext | bool = True) -> None:
    """Wait until the process answers."""
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(base + "/health", ssl=tls) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
