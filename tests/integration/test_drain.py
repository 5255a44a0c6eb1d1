"""The end of the process: what runs is finished, what comes is told, nothing hangs (H8)."""

import asyncio
import json
import signal
import sys

import pytest

from support.edge import BODY, edge_config, raw_exchange, running
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    Script,
    answers,
    chunk,
    chunked_head,
    hangs,
    reply,
    scripted,
    sse,
)


async def test_readiness() -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            for path in ("/health", "/healthz", "/health/ready"):
                assert (await edge.get(path)).status == 200
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            edge.router.runtime.draining = True
            answer = await edge.get("/health/ready")
            assert (answer.status, answer.json) == (503, {"status": "draining"})
            assert answer.headers["Connection"] == "close"
            writer.close()


async def test_not_ready_without_a_backend_for_clients() -> None:
    entry = "backends: [{name: b1, url: 'http://127.0.0.1:1', models: [m], internal: true}]"
    async with running(edge_config(entry)) as edge:
        answer = await edge.get("/health/ready")
        assert (answer.status, answer.json) == (503, {"status": "no_backend"})
        assert (await edge.get("/health")).status == 200
        refused = await edge.post()
        assert (refused.status, refused.error["code"]) == (503, "no_backend_available")


async def test_a_drain_lets_a_stream_finish_and_refuses_new_connections() -> None:
    release = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(chunked_head(), chunk(sse('{"a":1}')))
        await release.wait()
        await peer.send(chunk(sse("[DONE]")), LAST_CHUNK)

    async with scripted(script) as backend, running(edge_config([backend.url])) as edge:
        url = edge.url + "/v1/chat/completions"
        async with edge.session.post(url, json={**BODY, "stream": True}) as response:
            await response.content.readany()
            port = edge.port
            draining = asyncio.create_task(edge.router.drain())
            await asyncio.sleep(0.05)
            assert not draining.done()
            with pytest.raises(ConnectionError):
                await raw_exchange(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            release.set()
            assert (await response.content.read()).endswith(b"[DONE]\n\n")
        assert await draining


async def test_requests_on_open_connections_are_served_and_closed_while_draining() -> None:
    async with scripted(answers(reply(b'{"ok":1}'))) as backend:
        async with running(edge_config([backend.url])) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"}")
            edge.router.runtime.draining = True
            body = json.dumps(BODY).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                % len(body)
                + body
            )
            got = await reader.read()
            assert got.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nConnection: close\r\n" in got
            writer.close()


async def test_a_drain_that_takes_too_long_ends_anyway() -> None:
    more = "server: {listen: '127.0.0.1:0', drain_timeout: 100ms}"
    async with scripted(hangs(chunked_head(), chunk(sse('{"a":1}')))) as backend:
        async with running(edge_config([backend.url], more)) as edge:
            url = edge.url + "/v1/chat/completions"
            async with edge.session.post(url, json={**BODY, "stream": True}) as response:
                await response.content.readany()
                assert not await edge.router.drain()
                async with asyncio.timeout(5):
                    await edge.router.stop()
            assert edge.in_flight() == 0
    assert len(backend.left) == 1


def _begins_and(goes_on: Script) -> Script:
    """Answers probes; a chat gets the beginning of a stream, and then what `goes_on` does."""

    async def script(peer: Peer) -> None:
        while (seen := await peer.request()) is not None:
            if seen.line.startswith("GET "):
                await peer.send(reply())
                continue
            await peer.send(chunked_head(), chunk(sse('{"a":1}')))
            await goes_on(peer)

    return script


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_process_ends_cleanly_on_a_signal(number: signal.Signals) -> None:
    release = asyncio.Event()

    async def stays(peer: Peer) -> None:
        await release.wait()
        await peer.send(chunk(sse("[DONE]")), LAST_CHUNK)

    async with scripted(_begins_and(stays)) as backend:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "continuum_router.cli",
            "serve",
            "--backend",
            backend.url,
            "--listen",
            "127.0.0.1:0",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            listen = ""
            while not listen:
                line = json.loads(await process.stdout.readline())
                listen = line["fields"].get("listen", "")
            port = int(listen.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = json.dumps({**BODY, "stream": True}).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            await reader.readuntil(b'{"a":1}')
            got = await raw_exchange(port, b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n")
            assert b"\nprocess_log_writer_failed 0.0\n" in got
            process.send_signal(number)
            await asyncio.sleep(0.1)
            release.set()
            assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")
            out, err = await process.communicate()
            assert process.returncode == 0
            assert err == b""
            lines = [json.loads(row)["fields"] for row in out.splitlines()]
            completed = [row for row in lines if row.get("event") == "request_completed"]
            assert [(row["status"], row["outcome"]) for row in completed] == [(200, "complete")]
            assert lines[-1] == {"message": "Router stopped", "clean": True}
            writer.close()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_second_signal_ends_the_drain() -> None:
    async def stays(peer: Peer) -> None:
        await peer.until_client_leaves()

    async with scripted(_begins_and(stays)) as backend:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "continuum_router.cli", "serve"),
            *("--backend", backend.url, "--listen", "127.0.0.1:0"),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            listen = ""
            while not listen:
                line = json.loads(await process.stdout.readline())
                listen = line["fields"].get("listen", "")
            port = int(listen.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = json.dumps({**BODY, "stream": True}).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            await reader.readuntil(b'{"a":1}')
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            assert process.returncode is None
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                out, _ = await process.communicate()
            assert process.returncode == 0
            lines = [json.loads(row)["fields"] for row in out.splitlines()]
            completed = [row for row in lines if row.get("event") == "request_completed"]
            assert [(row["status"], row["outcome"]) for row in completed] == [(503, "shutdown")]
            assert lines[-1] == {"message": "Router stopped", "clean": False}
            writer.close()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
