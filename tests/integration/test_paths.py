"""Every path that is passed on: what the backend sees, what is counted, what never gets there."""

import asyncio
import contextlib
import json
import socket
import struct

import aiohttp
import pytest

from continuum_router.backends.kinds import KINDS
from support.edge import edge_config, raw_exchange, running
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    answers,
    chunk,
    chunked_head,
    hangs,
    in_turn,
    reply,
    scripted,
    streams,
)
from support.uploads import TYPE, part

PROXIED = {
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
    "/v1/rerank": "rerank",
    "/v1/score": "score",
    "/tokenize": "tokenize",
    "/detokenize": "detokenize",
    "/v1/audio/speech": "audio",
    "/v1/audio/voices/one": "audio",
    "/v1/images/generations": "images",
}
PASSED = "server: {listen: '127.0.0.1:0', passthrough_paths: [/v1/messages, '/x/*']}"
MANAGEMENT = sorted(frozenset[str]().union(*(kind.management for kind in KINDS.values())))


@pytest.mark.parametrize("path", PROXIED)
async def test_a_proxied_path(path: str) -> None:
    raw = b'{ "model" : "m",\n "input": "x", "odd": 1e2}'
    async with scripted(answers(reply(b'{"done":1}', headers=["X-A: b"]))) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(raw=raw, path=path + "?a=b%26c")
            assert (answer.status, answer.body) == (200, b'{"done":1}')
            assert (answer.headers["X-A"], answer.headers["x-continuum-backend"]) == ("b", "b1")
            assert "X-Cache" not in answer.headers
            await edge.settled()
            label = PROXIED[path]
            assert edge.sample("continuum_requests_total", endpoint=label, status_class="2xx") == 1
            assert edge.sample("continuum_upstream_attempts_total", result="ok") == 1
            assert edge.in_flight() == 0
    (seen,) = backend.requests
    assert seen.line == f"POST {path}?a=b%26c HTTP/1.1"
    assert seen.body == raw


async def test_calls_in_flight_are_counted() -> None:
    """Decisions J18: the gauge counts every generating call, embeddings included."""
    async with scripted(hangs()) as backend:
        async with running(edge_config([backend.url])) as edge:
            sent = edge.router.state.supervisor.spawn(
                "call", edge.post({"model": "m"}, path="/v1/embeddings")
            )
            while not backend.requests:
                await asyncio.sleep(0.005)
            assert edge.sample("continuum_backend_in_flight", backend="b1") == 1
            sent.cancel()
            await edge.settled()
            assert edge.sample("continuum_backend_in_flight", backend="b1") == 0


async def test_the_model_leads_to_its_backend() -> None:
    text = "backends: [{{name: e, url: '{}', models: [emb]}}, {{name: c, url: '{}', models: [m]}}]"
    async with scripted(answers(reply())) as one, scripted(answers(reply())) as two:
        async with running(edge_config(text.format(one.url, two.url))) as edge:
            for _ in range(3):
                answer = await edge.post({"model": "emb"}, path="/v1/embeddings")
                assert answer.headers["x-continuum-backend"] == "e"
            unknown = await edge.post({"model": "other"}, path="/v1/rerank")
            assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
            silent = await edge.post({"input": "x"}, path="/tokenize")
            assert (silent.status, silent.error["param"]) == (400, "model")
    assert (len(one.requests), len(two.requests)) == (3, 0)


async def test_where_one_model_is_served_it_need_not_be_named() -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            assert (await edge.post({"prompt": "x"}, path="/tokenize")).status == 200


async def test_failed_calls_are_tried_again() -> None:
    script = in_turn(answers(reply(status="503 Busy"), times=1), answers(reply()))
    more = "retry: {initial_delay: 1ms}"
    async with scripted(script) as backend:
        async with running(edge_config([backend.url], more)) as edge:
            answer = await edge.post({"model": "m"}, path="/v1/embeddings")
            assert answer.status == 200
    assert len(backend.requests) == 2


# -- server.passthrough_paths -----------------------------------------------------------------


async def test_a_path_that_is_not_listed_is_404() -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post({"model": "m"}, path="/v1/messages")
            assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert backend.requests == []


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_listed_paths_take_any_method(method: str) -> None:
    async with scripted(answers(reply(b"[]"))) as backend:
        async with running(edge_config([backend.url], PASSED)) as edge:
            for path in ("/v1/messages", "/x/y/z"):
                async with edge.session.request(method, edge.url + path) as answer:
                    assert (answer.status, await answer.read()) == (200, b"[]")
    assert [seen.line for seen in backend.requests] == [
        f"{method} /v1/messages HTTP/1.1",
        f"{method} /x/y/z HTTP/1.1",
    ]
    bodiless = method in ("GET", "DELETE")
    assert all((seen.header("content-length") is None) is bodiless for seen in backend.requests)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'["no", "object"]'),
        ("application/octet-stream", b"\x00" * 300_000),
        ("text/plain", b"hello"),
    ],
)
async def test_passed_bodies_are_not_touched(kind: str, body: bytes) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url], PASSED)) as edge:
            answer = await edge.post(raw=body, path="/x/y", headers={"Content-Type": kind})
            assert answer.status == 200
    (seen,) = backend.requests
    assert (seen.body, seen.header("content-type")) == (body, kind)


async def test_audio_is_heard_while_it_is_made() -> None:
    """An answer that is played is not collected first."""
    go_on = asyncio.Event()

    async def speaks(peer: Peer) -> None:
        assert await peer.request() is not None
        await peer.send(chunked_head(headers=["Content-Type: audio/mpeg"]), chunk(b"first"))
        await go_on.wait()
        await peer.send(chunk(b"second"), LAST_CHUNK)

    async with scripted(speaks) as backend:
        async with running(edge_config([backend.url])) as edge:
            async with edge.session.post(
                edge.url + "/v1/audio/speech", json={"model": "m", "input": "x"}
            ) as answer:
                async with asyncio.timeout(5):
                    assert await answer.content.readany() == b"first"
                go_on.set()
                assert await answer.content.read() == b"second"


async def test_ipv6_on_both_sides() -> None:
    """User report S12."""
    more = "server: {listen: '[::1]:0'}"
    async with scripted(answers(reply()), host="::1") as backend:
        async with running(edge_config([backend.url], more)) as edge:
            url = f"http://[::1]:{edge.port}/v1/embeddings"
            async with edge.session.post(url, json={"model": "m"}) as answer:
                assert answer.status == 200
    assert (backend.requests[0].header("host") or "").startswith("[::1]:")


# -- what never gets there ----------------------------------------------------------------------


@pytest.mark.parametrize("path", MANAGEMENT)
async def test_management_paths_do_not_exist(path: str) -> None:
    """Decisions J20. One test for each row of the tables in backends/kinds.py."""
    wide = "server: {listen: '127.0.0.1:0', passthrough_paths: ['/hicache/*', '/v1/free/*']}"
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url], wide)) as edge:
            for method in ("GET", "POST"):
                for spelled in (path, path + "/", path.upper()):
                    async with edge.session.request(method, edge.url + spelled) as answer:
                        assert answer.status == 404
    assert backend.requests == []


@pytest.mark.parametrize(
    "target",
    [
        "/v1/audio/../../sleep",
        "/v1/audio/%2e%2e/%2e%2e/sleep",
        "/v1/audio/..%2f..%2fsleep",
        "/v1/audio/..%5c..%5csleep",
        "/v1/audio/..\\sleep",
        "/v1/audio//speech",
        "//v1/audio/speech",
        "/x/./y",
        "/x/..",
    ],
)
async def test_ambiguous_paths_are_400_before_matching(target: str) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url], PASSED)) as edge:
            got = await raw_exchange(
                edge.port,
                f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode(),
            )
            assert got.startswith(b"HTTP/1.1 400 ")
            assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "ambiguous_path"
            labels = {"stage": "admission", "key_id": "unattributed"}
            assert edge.sample("request_rejected_total", **labels) == 1
    assert backend.requests == []


# -- HTTP/1.0 and unix sockets --------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_client_of_http_1_0(path: str, stream: bool) -> None:
    script = streams('{"a":1}') if stream else answers(reply(b'{"a":1}'))
    body = json.dumps({"model": "m", "messages": [{}], "stream": stream}).encode()
    head = f"POST {path} HTTP/1.0\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    async with scripted(script) as backend:
        async with running(edge_config([backend.url])) as edge:
            got = await raw_exchange(edge.port, head.encode() + body)
    head_got, _, body_got = got.partition(b"\r\n\r\n")
    assert head_got.startswith(b"HTTP/1.0 200 ")
    assert b"chunked" not in head_got.lower()
    assert body_got == (b'data: {"a":1}\n\ndata: [DONE]\n\n' if stream else b'{"a":1}')


async def test_a_client_of_http_1_0_may_keep_its_connection() -> None:
    body = json.dumps({"model": "m"}).encode()
    one = (
        "POST /v1/embeddings HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    async with scripted(answers(reply(b'{"a":1}'))) as backend:
        async with running(edge_config([backend.url])) as edge:
            got = await raw_exchange(edge.port, one + one)
    assert got.count(b"HTTP/1.0 200 OK\r\n") == 2
    assert got.lower().count(b"connection: keep-alive") == 2
    assert len(backend.requests) == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/transcriptions"])
@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=b"])
async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(path: str, kind: str) -> None:
    """Decisions H9: the interim answer comes once the announced size is known to be good."""
    more = "server: {listen: '127.0.0.1:0', max_body_bytes: 2KiB}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        f"Content-Type: {kind}\r\nContent-Length: 2049\r\n\r\n"
    )
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url], more)) as edge:
            got = await raw_exchange(edge.port, head.encode())
    assert got.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in got.lower()
    assert backend.requests == []


async def test_expect_100_continue_with_a_body_in_chunks() -> None:
    raw = b'{"model":"m","input":"x"}'
    head = (
        "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    async with scripted(answers(reply(b'{"a":1}'))) as backend:
        async with running(edge_config([backend.url])) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            writer.write(head.encode())
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(chunk(raw[:9]) + chunk(raw[9:]) + LAST_CHUNK)
            assert (await reader.readuntil(b'{"a":1}')).startswith(b"HTTP/1.1 200 ")
            writer.close()
    (seen,) = backend.requests
    assert (seen.body, seen.header("expect")) == (raw, None)
    assert seen.header("content-length") == str(len(raw))


async def test_an_adapter_that_a_backend_lists_leads_to_it() -> None:
    """LoRA adapters are models by name, also where the engine's own list tells of them."""
    listed = reply(b'{"data":[{"id":"m"},{"id":"m-sql","root":"/lora/sql","parent":"m"}]}')

    async def engine(peer: Peer) -> None:
        while (seen := await peer.request()) is not None:
            await peer.send(listed if seen.line.startswith("GET ") else reply())

    async with scripted(answers(reply())) as plain, scripted(engine) as lora:
        entries = (
            f"backends: [{{name: b1, url: '{plain.url}', models: [m]}},"
            f" {{name: b2, url: '{lora.url}'}}]"
        )
        async with running(edge_config(entries)) as edge:
            async with asyncio.timeout(3):
                while b"m-sql" not in (await edge.get("/v1/models")).body:
                    await asyncio.sleep(0.01)
            for path in ("/v1/embeddings", "/v1/chat/completions"):
                body = {"model": "m-sql", "messages": [{}]}
                for _ in range(2):
                    answer = await edge.post(body, path=path)
                    assert answer.headers["x-continuum-backend"] == "b2"
    assert plain.requests == []


async def test_a_client_that_breaks_while_its_upload_stands_still() -> None:
    """The backend does not read, so neither does the router: it notices all the same.

    A FIN that waits in the client's kernel, behind megabytes for which the receive buffer has no
    room, nobody can know of; a reset overtakes what waits.
    """

    async def sleeps(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    head = (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\n"
        "Content-Length: 60000000\r\n\r\n"
    ).encode()
    begin = head + part("model", b"m") + part("file", b"", file=True)[:-2]
    loop = asyncio.get_running_loop()
    async with scripted(sleeps) as backend, running(edge_config([backend.url])) as edge:
        with socket.create_connection(("127.0.0.1", edge.port)) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, begin)
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(0.3):
                        await loop.sock_sendall(client, bytes(1_000_000))
            assert (edge.in_flight(), backend.connections) == (1, 1)
            linger = struct.pack("ii", 1, 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await edge.settled(1.0)
        assert edge.in_flight() == 0
        labels = {"endpoint": "audio", "status_class": "client_cancelled"}
        assert edge.sample("continuum_requests_total", **labels) == 1


async def test_unix_sockets_on_both_sides(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("s")
    front, back = str(folder / "f"), str(folder / "b")
    more = f"server: {{listen: 'unix:{front}'}}"
    async with scripted(answers(reply(b'{"data":[]}')), unix_path=back) as backend:
        async with running(edge_config([f"unix://{back}"], more)):
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(front)) as session:
                async with session.post(
                    "http://x/v1/embeddings", json={"model": "m", "input": "x"}
                ) as answer:
                    assert (answer.status, await answer.json()) == (200, {"data": []})
    assert backend.requests[0].header("host") == "localhost"
