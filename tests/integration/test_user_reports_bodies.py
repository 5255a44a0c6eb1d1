"""Reports of other routers' users about bodies, addresses and names (S8 to S12, S14), both ways."""

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from continuum_shared.prefix_key import chat_key_text, derive
from support.edge import BODY, CHAT, edge_config, raw_exchange, running
from support.kv_publisher import Encoding, KvPublisher, free_port, stored
from support.listener_rig import running_listener, subscribed, until
from support.router_process import RouterProcess, router_process
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    answers,
    chunk,
    chunked_head,
    reply,
    scripted,
    sse,
)
from support.tiny_engine import TinyEngine, serving
from support.uploads import TYPE, Intake, form, part, swallows
from support.ways import WAYS, server_section, way_config

MIB = 1024 * 1024

# -- S8: a backend that compresses although it was asked not to ----------------------------------

TEXT = json.dumps({"text": "안녕 " * 200}).encode()
EVENTS = sse('{"a":"안"}') * 50 + sse("[DONE]")
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "x-gzip": gzip.compress,
}


@WAYS
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("status", [200, 400, 500])
async def test_s8_a_compressed_answer_is_undone(fast: bool, coding: str, status: int) -> None:
    """The body is decoded and its Content-Encoding is gone; so it is for errors."""
    headers = ("Content-Type: application/json", f"Content-Encoding: {coding}")
    wire = reply(CODINGS[coding](TEXT), status=f"{status} X", headers=headers)
    async with scripted(answers(wire)) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            answer = await edge.post(headers={"Accept-Encoding": "gzip"})
    assert (answer.status, answer.body) == (status, TEXT)
    assert "Content-Encoding" not in answer.headers
    assert answer.headers["Content-Length"] == str(len(TEXT))
    assert backend.requests[0].header("accept-encoding") == "identity"


@WAYS
@pytest.mark.parametrize("coding", CODINGS)
async def test_s8_a_compressed_stream_is_undone(fast: bool, coding: str) -> None:
    wire = CODINGS[coding](EVENTS)
    headers = ("Content-Type: text/event-stream", f"Content-Encoding: {coding}")
    pieces = [chunk(wire[at : at + 7]) for at in range(0, len(wire), 7)]
    async with scripted(answers(chunked_head(headers=headers), *pieces, LAST_CHUNK)) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            answer = await edge.stream()
    assert (answer.status, answer.body) == (200, EVENTS)
    assert "Content-Encoding" not in answer.headers


# -- S9, S10: request bodies that are compressed, large, too large -------------------------------


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@WAYS
@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", _raw_deflate)],
    ids=["gzip", "deflate", "raw deflate"],
)
async def test_s9_a_compressed_request_is_read(
    fast: bool, coding: str, pack: Callable[[bytes], bytes]
) -> None:
    raw = json.dumps(BODY).encode()
    async with scripted(answers(reply())) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            answer = await edge.post(raw=pack(raw), headers={"Content-Encoding": coding})
    assert answer.status == 200
    (seen,) = backend.requests
    assert (seen.body, seen.header("content-encoding")) == (raw, None)


@WAYS
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_s9_a_badly_compressed_request_is_400(fast: bool, coding: str) -> None:
    async with scripted(answers(reply())) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            whole = CODINGS[coding](json.dumps(BODY).encode())
            for raw in (b"not compressed", whole[:-3], whole[:10] + b"\xff" * 9):
                answer = await edge.post(raw=raw, headers={"Content-Encoding": coding})
                assert (answer.status, answer.error["code"]) == (400, "invalid_body")
    assert backend.requests == []


def _bomb() -> bytes:
    """A megabyte of gzip that unpacks to a gigabyte, made without compressing a gigabyte."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    head = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    return head + block * 1024


def _peak(router: RouterProcess) -> int:
    """The most memory that the process has had, in bytes."""
    text = Path(f"/proc/{router.pid}/status").read_text(encoding="ascii")
    (row,) = [row for row in text.splitlines() if row.startswith("VmHWM:")]
    return int(row.split()[1]) * 1024


@WAYS
async def test_s9_a_bomb_is_413_in_bounded_memory(fast: bool, tmp_path: Path) -> None:
    bomb = _bomb()
    assert MIB * 0.9 < len(bomb) < MIB * 1.3
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    ).encode()
    config = "backends: [{name: b1, url: 'http://127.0.0.1:1', models: [m]}]\n"
    config += server_section(fast)
    async with router_process(tmp_path, config) as router:
        before = _peak(router)
        got = await raw_exchange(router.port, head + bomb, patience=20)
        assert got.startswith(b"HTTP/1.1 413 ")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_too_large"
        # 64 MiB are within the bound and were held; the gigabyte never was.
        assert _peak(router) - before < 100 * MIB


def _chat_of(size: int) -> bytes:
    head = b'{"model":"m","messages":[{"role":"user","content":"'
    return head + b"x" * (size - len(head) - 4) + b'"}]}'


def _framed(raw: bytes, framing: str) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n".encode()
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(raw) + raw
    pieces = [chunk(raw[at : at + 256 * 1024]) for at in range(0, len(raw), 256 * 1024)]
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(pieces) + LAST_CHUNK


@WAYS
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_s10_twenty_megabytes_pass_by_default(fast: bool, framing: str) -> None:
    intake = Intake()
    raw = _chat_of(20_000_000)
    async with scripted(swallows(intake)) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            got = await raw_exchange(edge.port, _framed(raw, framing), patience=20)
    assert got.startswith(b"HTTP/1.1 200 ")
    assert intake.sizes == [len(raw)]


@WAYS
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_s10_a_body_over_a_written_limit_is_413(fast: bool, framing: str) -> None:
    intake = Intake()
    async with scripted(swallows(intake)) as backend:
        config = way_config([backend.url], fast, max_body_bytes="3MiB")
        async with running(config) as edge:
            for size, status in ((3 * MIB, b"200"), (3 * MIB + 1, b"413")):
                got = await raw_exchange(edge.port, _framed(_chat_of(size), framing))
                assert got[9:12] == status
            error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
    assert intake.sizes == [3 * MIB]


@WAYS
async def test_s10_the_default_limit_is_64_mib(fast: bool) -> None:
    """Refused by its announced length, before a byte of it was sent."""
    async with scripted(answers(reply())) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            for size, begins in ((64 * MIB, b""), (64 * MIB + 1, b"HTTP/1.1 413 ")):
                head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
                got = await raw_exchange(edge.port, head.encode())
                assert got[:13] == begins
    assert backend.requests == []


# -- S11: Expect ---------------------------------------------------------------------------------


@WAYS
async def test_s11_expect_100_continue_costs_no_pause(fast: bool) -> None:
    """As curl does with 2 MB: the body is sent after the interim answer, or a second later."""
    raw = _chat_of(2_000_000)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    async with scripted(answers(reply(b'{"ok":1}'))) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            for _ in range(2):  # the connection is good for a second one
                begun = time.monotonic()
                writer.write(head.encode())
                interim = await reader.readuntil(b"\r\n\r\n")
                assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
                assert time.monotonic() - begun < 0.5
                writer.write(raw)
                answer = await reader.readuntil(b'{"ok":1}')
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            writer.close()
    assert [seen.header("expect") for seen in backend.requests] == [None, None]
    assert [len(seen.body) for seen in backend.requests] == [2_000_000] * 2


# -- S12: IPv6 -----------------------------------------------------------------------------------


@WAYS
async def test_s12_ipv6_from_the_engines_events_to_the_answer(fast: bool) -> None:
    """Everything on [::1]: the engine's ZMQ and HTTP, the listener, both backends, the router."""
    engine = TinyEngine()
    messages = [
        {"role": "system", "content": "You are the harbour master of a small port. " * 4},
        {"role": "user", "content": "When may the ferry leave?"},
    ]
    bound = f"tcp://[::1]:{free_port()}"
    async with (
        serving(engine, host="::1") as engine_url,
        scripted(answers(reply()), host="::1") as one,
        scripted(answers(reply()), host="::1") as two,
    ):
        source = {
            "backend_name": "b2",
            "zmq_endpoint": bound,
            "zmq_mode": "bind",
            "allowed_publishers": ["::1"],
            "engine_url": engine_url,
            "model": "tiny-chat",
        }
        async with running_listener([source], listen="[::1]:0") as base:
            assert base.startswith("http://[::1]:")
            entries = "backends:\n" + "".join(
                f"- {{name: b{n}, url: '{backend.url}', models: [tiny-chat]}}\n"
                for n, backend in enumerate((one, two), 1)
            )
            more = (
                "prefix_routing: {enabled: true}\nkv_cache_index: {enabled: true, event_sources: "
                f"[{{backend_name: b2, endpoint: '{base}/events/b2'}}]}}\n"
            )
            config = edge_config(entries, server_section(fast, listen="[::1]:0") + more)
            publisher = KvPublisher(connect_to=bound, replay=False)
            try:
                async with running(config) as edge, subscribed(base, "b2") as sub:
                    tokens = engine.encode_chat(messages)
                    blocks = len(tokens) // 16
                    event = stored(Encoding.MAP, list(range(blocks)), None, tokens[: blocks * 16])

                    def told() -> bool:
                        publisher.publish([event])  # again and again: nobody is subscribed at first
                        return bool(sub.events)

                    await until(told, seconds=15)
                    text = chat_key_text({"messages": messages})
                    assert text is not None
                    assert sub.events[0].prefix == derive("tiny-chat", text, 1024)
                    url = f"http://[::1]:{edge.port}{CHAT}"
                    body = {"model": "tiny-chat", "messages": messages}

                    async def route() -> str:
                        async with edge.session.post(url, json=body) as answer:
                            assert answer.status == 200
                            return answer.headers["x-continuum-route"]

                    async with asyncio.timeout(5):
                        while not (await route()).startswith("kv_aware"):
                            await asyncio.sleep(0.02)
            finally:
                publisher.close()
    assert (two.requests[-1].header("host") or "").startswith("[::1]:")


# -- S14: aliases --------------------------------------------------------------------------------

REAL = "org/Real-7B"


def _renamed(url: str) -> str:
    return (
        f"backends: [{{name: b1, url: '{url}', models: ['{REAL}'], aliases: {{gpt: '{REAL}'}}}}]\n"
    )


@WAYS
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses"])
async def test_s14_an_alias_in_json(fast: bool, path: str) -> None:
    body = f'{{"id":"1", "model" : "{REAL}","choices":[{{"text":"\\"model\\":\\"{REAL}\\""}}]}}'
    raw = b'{"messages":[{"role":"user","content":"gpt"}],"prompt":"gpt", "model" : "gpt" }'
    async with scripted(answers(reply(body.encode()))) as backend:
        async with running(way_config(_renamed(backend.url), fast)) as edge:
            answer = await edge.post(raw=raw, path=path)
    expected = body.replace(f'"model" : "{REAL}"', '"model" : "gpt"').encode()
    assert (answer.body, answer.headers["Content-Length"]) == (expected, str(len(expected)))
    (seen,) = backend.requests
    assert seen.body == raw.replace(b'"model" : "gpt"', f'"model" : "{REAL}"'.encode())


@WAYS
@pytest.mark.parametrize("size", [1, 5, 9000])
async def test_s14_an_alias_in_each_chunk_of_a_stream(fast: bool, size: int) -> None:
    event = f'{{"id":"c","model":"{REAL}","choices":[{{"delta":{{"content":"한 {REAL}"}}}}]}}'
    wire = sse(event) * 4 + sse("[DONE]")
    pieces = [chunk(wire[at : at + size]) for at in range(0, len(wire), size)]
    async with scripted(answers(chunked_head(), *pieces, LAST_CHUNK, gap=0)) as backend:
        async with running(way_config(_renamed(backend.url), fast)) as edge:
            answer = await edge.stream(model="gpt")
    assert answer.body == wire.replace(f'"model":"{REAL}"'.encode(), b'"model":"gpt"')
    assert json.loads(backend.requests[0].body)["model"] == REAL


@WAYS
async def test_s14_an_alias_in_a_form(fast: bool) -> None:
    voice = part("file", b"RIFF gpt " * 1000, file=True)
    async with scripted(answers(reply(f'{{"model":"{REAL}","text":"x"}}'.encode()))) as backend:
        async with running(way_config(_renamed(backend.url), fast)) as edge:
            answer = await edge.post(
                raw=form(part("model", b"gpt"), voice),
                path="/v1/audio/transcriptions",
                headers={"Content-Type": TYPE},
            )
    assert answer.body == b'{"model":"gpt","text":"x"}'
    assert backend.requests[0].body == form(part("model", REAL.encode()), voice)


@WAYS
async def test_s14_an_error_of_the_backend_does_not_name_another_model(fast: bool) -> None:
    """The reported 404: the alias reached the backend, which had never heard of it."""

    async def knows_one(peer: Peer) -> None:
        while (seen := await peer.request()) is not None:
            known = json.loads(seen.body)["model"] == REAL
            await peer.send(reply(b'{"ok":1}') if known else reply(status="404 Not Found"))

    async with scripted(knows_one) as backend:
        async with running(way_config(_renamed(backend.url), fast)) as edge:
            for stream in (False, True):
                assert (await edge.post({**BODY, "model": "gpt", "stream": stream})).status == 200
            assert (await edge.post({**BODY, "model": "gpt4"})).status == 404
            assert len(backend.requests) == 2
