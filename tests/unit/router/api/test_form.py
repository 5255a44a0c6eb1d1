"""Forms and uploads: routed by a field, streamed, bounded, sent once."""

import asyncio
import gzip
import hashlib
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from continuum_router.api.form import MAX_HELD
from support.edge import Edge, edge_config, raw_exchange, running
from support.scripted_backend import Peer, answers, in_turn, reply, scripted, streams
from support.uploads import TYPE, Intake, form, part, swallows

PATH = "/v1/audio/transcriptions"
HEADERS = {"Content-Type": TYPE}
MODEL = part("model", b"m")
WAV = part("file", b"RIFF" * 1000, file=True)


def _aliased(url: str) -> str:
    return f"backends: [{{name: b1, url: '{url}', models: [real-name], aliases: {{m: real-name}}}}]"


@pytest.mark.parametrize("order", ["model first", "file first"])
async def test_a_form_arrives_as_it_was_sent(order: str) -> None:
    body = form(MODEL, WAV) if order == "model first" else form(WAV, MODEL)
    async with scripted(answers(reply(b'{"text":"hi"}'))) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(raw=body, path=PATH, headers=HEADERS)
            assert (answer.status, answer.body) == (200, b'{"text":"hi"}')
    (seen,) = backend.requests
    assert seen.body == body
    assert seen.header("content-type") == TYPE


async def test_the_model_of_a_form_leads_to_its_backend() -> None:
    text = "backends: [{{name: a, url: '{}', models: [m]}}, {{name: b, url: '{}', models: [w]}}]"
    async with scripted(answers(reply())) as one, scripted(answers(reply())) as two:
        async with running(edge_config(text.format(one.url, two.url))) as edge:
            body = form(WAV, part("model", b"w"))
            assert (await edge.post(raw=body, path=PATH, headers=HEADERS)).status == 200
            unknown = form(part("model", b"x"))
            answer = await edge.post(raw=unknown, path=PATH, headers=HEADERS)
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            answer = await edge.post(raw=form(WAV), path=PATH, headers=HEADERS)
            assert (answer.status, answer.error["param"]) == (400, "model")
    assert (len(one.requests), len(two.requests)) == (0, 1)


@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_an_alias_in_a_form(size: int) -> None:
    """User report S14: multipart form too; the length follows the longer name."""
    body = form(MODEL, part("file", b"x" * size, file=True))
    intake = Intake()
    async with scripted(swallows(intake)) as backend:
        async with running(edge_config(_aliased(backend.url))) as edge:
            answer = await edge.post(raw=body, path=PATH, headers=HEADERS)
            assert answer.json == {"model": "m", "text": "x"}
    expected = body.replace(b"\r\n\r\nm\r\n", b"\r\n\r\nreal-name\r\n")
    assert intake.sizes == [len(expected)]
    assert intake.digests == [hashlib.sha256(expected).hexdigest()]
    assert backend.requests[0].header("content-length") == str(len(expected))


@pytest.mark.parametrize("coding", ["chunked", "gzip"])
async def test_a_form_of_unknown_length(coding: str) -> None:
    body = form(MODEL, part("file", bytes(range(256)) * 8000, file=True))
    sent = gzip.compress(body) if coding == "gzip" else body

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(sent), 50_000):
            yield sent[start : start + 50_000]

    intake = Intake()
    headers = {**HEADERS, **({"Content-Encoding": "gzip"} if coding == "gzip" else {})}
    async with scripted(swallows(intake)) as backend:
        async with running(edge_config(_aliased(backend.url))) as edge:
            async with edge.session.post(edge.url + PATH, data=pieces(), headers=headers) as got:
                assert got.status == 200
    expected = body.replace(b"\r\n\r\nm\r\n", b"\r\n\r\nreal-name\r\n")
    assert intake.digests == [hashlib.sha256(expected).hexdigest()]
    assert backend.requests[0].header("transfer-encoding") == "chunked"
    assert backend.requests[0].header("content-encoding") is None


async def test_an_upload_is_streamed_in_bounded_memory() -> None:
    """48 MB pass while the router keeps a small part of it."""
    block, count = b"y" * 65536, 768
    head = part("model", b"m") + part("file", b"", file=True)[:-2]

    async def pieces() -> AsyncIterator[bytes]:
        yield head
        for _ in range(count):
            yield block
        yield b"\r\n" + form()

    intake = Intake()
    async with scripted(swallows(intake)) as backend:
        async with running(edge_config([backend.url])) as edge:
            tracemalloc.start()
            async with edge.session.post(edge.url + PATH, data=pieces(), headers=HEADERS) as answer:
                assert answer.status == 200
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert edge.in_flight() == 0
    assert intake.sizes == [len(head) + len(block) * count + 2 + len(form())]
    assert peak < 6 * 1024 * 1024


async def test_the_backend_has_the_beginning_before_the_client_has_sent_the_end() -> None:
    go_on = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield MODEL
        yield part("file", b"z" * 100, file=True)
        await go_on.wait()
        yield form()

    intake = Intake()
    async with scripted(swallows(intake)) as backend:
        async with running(edge_config([backend.url])) as edge:
            call = edge.router.state.supervisor.spawn("call", _post(edge, pieces()))
            async with asyncio.timeout(5):
                while not intake.begun:
                    await asyncio.sleep(0.005)
            assert edge.sample("continuum_backend_in_flight", backend="b1") == 1
            go_on.set()
            assert await call == 200


async def _post(edge: Edge, data: AsyncIterator[bytes]) -> int:
    async with edge.session.post(edge.url + PATH, data=data, headers=HEADERS) as answer:
        await answer.read()
        return answer.status


REFUSED = {
    "json": (b"{}", "invalid_form"),
    "no model, too long": (part("file", b"x" * (MAX_HELD + 70_000), file=True), "model_too_late"),
    "empty model": (form(part("model", b"")), "invalid_value"),
    "not utf-8": (form(part("model", b"\xff")), "invalid_value"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(name: str) -> None:
    body, code = REFUSED[name]
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(raw=body, path=PATH, headers=HEADERS)
            assert (answer.status, answer.error["code"]) == (400, code)
    assert backend.requests == []


async def test_a_form_without_a_boundary() -> None:
    async with running(edge_config(["http://127.0.0.1:1"])) as edge:
        answer = await edge.post(
            raw=form(MODEL), path=PATH, headers={"Content-Type": "multipart/form-data"}
        )
    assert (answer.status, answer.error["code"]) == (400, "invalid_form")


async def test_an_upload_that_grows_over_the_limit_ends_at_the_backend_too() -> None:
    limit = "server: {listen: '127.0.0.1:0', max_body_bytes: 100000}"

    async def pieces() -> AsyncIterator[bytes]:
        yield MODEL + part("file", b"", file=True)[:-2]
        for _ in range(20):
            yield b"x" * 10_000

    intake = Intake()
    async with scripted(swallows(intake)) as backend:
        async with running(edge_config([backend.url], limit)) as edge:
            assert await _post(edge, pieces()) == 413
            await edge.settled()
            assert edge.in_flight() == 0
            assert edge.sample("continuum_upstream_attempts_total", result="failed") == 0
    assert intake.sizes == []


def _begun(body: bytes) -> bytes:
    """A request that announces more than it sends."""
    lines = [
        f"POST {PATH} HTTP/1.1",
        "Host: x",
        f"Content-Type: {TYPE}",
        f"Content-Length: {len(body) + 1000}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def test_a_client_that_leaves_in_the_middle() -> None:
    intake = Intake()
    async with scripted(swallows(intake)) as backend:
        async with running(edge_config([backend.url])) as edge:
            _, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            writer.write(_begun(MODEL + WAV))
            async with asyncio.timeout(5):
                while not intake.begun:
                    await asyncio.sleep(0.005)
            writer.transport.abort()
            await edge.settled()
            assert edge.in_flight() == 0
            async with asyncio.timeout(2):
                while intake.cut == 0:
                    await asyncio.sleep(0.005)
            results = {"failed": 0, "client_gone": 1}
            for name, count in results.items():
                assert edge.sample("continuum_upstream_attempts_total", result=name) == count
    assert intake.sizes == []


async def test_a_large_upload_is_not_sent_twice() -> None:
    """What was passed on is gone: a busy answer is the client's answer, a refused dial is not."""
    body = form(MODEL, part("file", b"x" * 3_000_000, file=True))
    intake = Intake()
    busy = swallows(intake, reply(b"{}", status="503 Busy"))
    more = "retry: {initial_delay: 1ms}"
    async with scripted(busy) as backend:
        async with running(edge_config(["http://127.0.0.1:1", backend.url], more)) as edge:
            answer = await edge.post(raw=body, path=PATH, headers=HEADERS)
            assert answer.status == 503
            assert answer.headers["x-continuum-backend"] == "b2"
    assert intake.sizes == [len(body)]


async def test_a_small_form_is_tried_again() -> None:
    script = in_turn(answers(reply(status="503 Busy"), times=1), answers(reply()))
    async with scripted(script) as backend:
        async with running(edge_config([backend.url], "retry: {initial_delay: 1ms}")) as edge:
            answer = await edge.post(raw=form(MODEL, WAV), path=PATH, headers=HEADERS)
            assert answer.status == 200
    assert [seen.body for seen in backend.requests] == [form(MODEL, WAV)] * 2


async def test_an_answer_before_the_end_of_the_upload_is_final() -> None:
    """The backend refuses at the head; the client gets that and its connection ends."""

    async def refuses(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(reply(b'{"no":1}', status="401 No"))
        await peer.until_client_leaves()

    async with scripted(refuses) as backend:
        async with running(edge_config([backend.url])) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            writer.write(_begun(MODEL + WAV))
            await writer.drain()
            async with asyncio.timeout(5):
                while not backend.connections:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.05)
                writer.write(b"x")
                got = await reader.readuntil(b'{"no":1}')
            assert got.startswith(b"HTTP/1.1 401 ")
            assert b"connection: close" in got.lower()
            writer.close()
            await edge.settled()
            assert edge.in_flight() == 0
            pool = edge.router.state.upstream
            idle = [count for (_, state), count in pool.connections() if state == "idle"]
            assert idle == [0]


async def test_a_transcription_that_streams() -> None:
    body = form(part("stream", b"true"), MODEL, WAV)
    async with scripted(streams('{"delta":"a"}')) as backend:
        async with running(edge_config([backend.url])) as edge:
            answer = await edge.post(raw=body, path=PATH, headers=HEADERS)
            assert answer.body == b'data: {"delta":"a"}\n\ndata: [DONE]\n\n'


async def test_a_backend_that_breaks_in_the_middle_of_an_upload() -> None:
    async def breaks(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.reader.readexactly(100_000)
        peer.reset()

    body = form(MODEL, part("file", b"x" * 4_000_000, file=True))
    more = "retry: {max_attempts: 3, initial_delay: 1ms}"
    async with scripted(breaks) as backend:
        async with running(edge_config([backend.url], more)) as edge:
            answer = await edge.post(raw=body, path=PATH, headers=HEADERS)
            assert (answer.status, answer.error["code"]) == (502, "upstream_error")
            await edge.settled()
            assert edge.in_flight() == 0
            assert edge.sample("continuum_upstream_attempts_total", result="failed") == 1
    assert backend.connections == 1


async def test_a_backend_that_does_not_read_stops_the_client() -> None:
    """Back pressure: 64 MB are offered, the router keeps a small part; the deadline ends it."""
    total = 64 << 20
    offered = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal offered
        yield MODEL + part("file", b"", file=True)[:-2]
        block = b"x" * 65536
        while offered < total:
            offered += len(block)
            yield block

    asleep = asyncio.Event()

    async def sleeps(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asleep.wait()

    limit = (
        "server: {listen: '127.0.0.1:0', max_body_bytes: 128MiB}\n"
        "timeouts: {request: {standard: {total: 2s}}}"
    )
    async with scripted(sleeps) as backend:
        async with running(edge_config([backend.url], limit)) as edge:
            tracemalloc.start()
            call = edge.router.state.supervisor.spawn("call", _post(edge, pieces()))
            before = -1
            while offered != before:
                before = offered
                await asyncio.sleep(0.3)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert offered < total
            assert peak < 6 * 1024 * 1024
            await edge.settled(5)
            assert edge.in_flight() == 0
            labels = {"endpoint": "audio", "status_class": "5xx"}
            assert edge.sample("continuum_requests_total", **labels) == 1
            call.cancel()
            asleep.set()


async def test_expect_100_continue_is_answered_here() -> None:
    """User report S11: no pause, and the backend sees no Expect."""
    body = form(MODEL, part("file", b"x" * 2_000_000, file=True))
    intake = Intake()
    async with scripted(swallows(intake)) as backend:
        async with running(edge_config([backend.url])) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            lines = [
                f"POST {PATH} HTTP/1.1",
                "Host: x",
                "Expect: 100-continue",
                f"Content-Type: {TYPE}",
                f"Content-Length: {len(body)}",
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            async with asyncio.timeout(1):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            async with asyncio.timeout(5):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            writer.close()
    assert intake.sizes == [len(body)]
    assert backend.requests[0].header("expect") is None


async def test_the_clients_connection_is_kept_after_a_form() -> None:
    body = form(MODEL, WAV)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\n"
    one = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    async with scripted(answers(reply(b'{"n":1}'))) as backend:
        async with running(edge_config([backend.url])) as edge:
            got = await raw_exchange(edge.port, one + one)
    assert got.count(b"HTTP/1.1 200 OK") == 2
    assert b"connection: close" not in got.lower()
    assert backend.connections == 1
