"""Reports of other routers' users about load and streams (R2, R3, S1 to S7, S13), both ways in."""

import asyncio
import collections
import contextlib
import json
import logging
import random
import time
from collections.abc import Coroutine

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.edge import BODY, CHAT, Answer, Edge, raw_exchange, running
from support.faults import deaf_port
from support.scripted_backend import (
    LAST_CHUNK,
    Peer,
    Script,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    hangs,
    reply,
    scripted,
    sse,
    streams,
)
from support.ways import WAYS, way_config

# -- R2, R3: what is counted while a request runs ------------------------------------------------


def _request(body: dict[str, object], path: str = CHAT) -> bytes:
    raw = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


async def _leave_after(edge: Edge, data: bytes, seconds: float, *, reset: bool) -> float:
    """Send bytes, read for so long, leave; the loop time at which that was."""
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    writer.write(data)
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    if reset:
        writer.transport.abort()
    else:
        writer.close()
    return asyncio.get_running_loop().time()


COUNTS_THAT_STAY = frozenset(
    {
        "continuum_prefix_routing_unique_prefixes",
        "continuum_upstream_connections",  # idle ones may be kept; see below
    }
)


def _standing(edge: Edge) -> dict[str, float]:
    """Every gauge that is not 0 and not of the kind that stays."""
    found = {}
    text = edge.router.state.metrics.exposition().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.type == "gauge" else ():
            if sample.value and sample.name not in COUNTS_THAT_STAY:
                found[f"{sample.name}{sample.labels}"] = sample.value
    return found


def _gives_slowly(rng: random.Random) -> Script:
    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await asyncio.sleep(rng.random() * 0.02)
            await peer.send(chunked_head())
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(rng.random() * 0.01)
                await peer.send(chunk(sse('{"a":1}')))
            await peer.send(LAST_CHUNK)

    return script


@WAYS
async def test_r2_a_thousand_aborts_leave_every_gauge_at_zero(fast: bool) -> None:
    """Before the headers, in the stream, while connecting, inside the own body."""
    rng = random.Random(20261)
    with deaf_port() as port:
        async with scripted(_gives_slowly(rng)) as one, scripted(_gives_slowly(rng)) as two:
            urls = [one.url, two.url, f"http://127.0.0.1:{port}"]
            more = "selection_strategy: PrefixAwareHash\nprefix_routing: {enabled: true}"
            async with running(way_config(urls, fast, more)) as edge:
                before = _standing(edge)
                room = asyncio.Semaphore(50)
                seen_connecting = 0

                async def client(number: int) -> None:
                    nonlocal seen_connecting
                    async with room:
                        turn = {"messages": [{"role": "user", "content": str(number)}]}
                        data = _request({**BODY, **turn, "stream": rng.random() < 0.7})
                        cut = rng.randrange(20, len(data)) if rng.random() < 0.1 else len(data)
                        wait, reset = rng.random() * 0.08, rng.random() < 0.5
                        await _leave_after(edge, data[:cut], wait, reset=reset)
                        seen_connecting += edge.router.state.dispatch.fleet.loads["b3"]

                await asyncio.gather(*map(client, range(1000)))
                await edge.settled()
                assert edge.sample("continuum_upstream_attempts_total", result="client_gone") > 200
                assert edge.sample("continuum_upstream_attempts_total", result="failed") == 0
                assert seen_connecting > 0
                assert _standing(edge) == before
                connections = edge.router.state.upstream.connections()
                idle = {name: count for (name, state), count in connections if state == "idle"}
                assert all(not count for (_, state), count in connections if state != "idle")
                async with asyncio.timeout(1):
                    while one.open + two.open > sum(idle.values()):
                        await asyncio.sleep(0.01)


@WAYS
@pytest.mark.parametrize("strategy", ["RoundRobin", "PrefixAwareHash"])
async def test_r3_load_counts_while_the_first_byte_is_awaited(fast: bool, strategy: str) -> None:
    """20 requests at once, long prefills: no backend gets more than two more than another."""
    tight = "prefix_routing: {enabled: true, load_factor_epsilon: 0.01}"
    more = f"selection_strategy: {strategy}\n{tight}"
    slow = answers(reply(), delay=0.4)
    async with scripted(slow) as one, scripted(slow) as two, scripted(slow) as three:
        fleet = (one, two, three)
        async with running(way_config([backend.url for backend in fleet], fast, more)) as edge:
            found = await asyncio.gather(*[edge.post() for _ in range(20)])
            assert {answer.status for answer in found} == {200}
        shares = [len(backend.requests) for backend in fleet]
        assert sum(shares) == 20
        assert max(shares) - min(shares) <= 2


# -- S1: the client hangs up ---------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("answered", ["nothing", "head", "event"])
async def test_s1_the_engine_is_left_within_a_second(
    fast: bool, path: str, stream: bool, answered: str
) -> None:
    kind = "text/event-stream" if stream else "application/json"
    head = chunked_head(headers=(f"Content-Type: {kind}",))
    pieces = {"nothing": (), "head": (head,), "event": (head, chunk(sse('{"a":1}')))}[answered]
    async with scripted(hangs(*pieces)) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            data = _request({**BODY, "stream": stream}, path)
            left = await asyncio.gather(
                *[_leave_after(edge, data, 0.1, reset=reset) for reset in (False, True)]
            )
            await edge.settled(1.0)
            async with asyncio.timeout(1):
                while len(backend.left) < 2:
                    await asyncio.sleep(0.005)
            assert max(backend.left) - min(left) < 1.0
            assert edge.in_flight() == 0
            assert edge.sample("continuum_upstream_attempts_total", result="client_gone") == 2


@WAYS
async def test_s1_http_2_is_refused_at_once(fast: bool) -> None:
    """The edge speaks HTTP/1.1 (decisions H3): a client that does not is told, not left waiting."""
    async with scripted(hangs()) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            begun = time.monotonic()
            got = await raw_exchange(edge.port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            assert time.monotonic() - begun < 0.4
    assert got.startswith(b"HTTP/1.1 505 ")
    assert backend.connections == 0


# -- S2: a kept connection closes as it is used --------------------------------------------------

IDLE = 0.1
POSTS = 5000


def _closes_when_idle(*, reset: bool) -> Script:
    """Answers; a connection that has answered and then is idle for `IDLE` seconds is closed."""

    async def script(peer: Peer) -> None:
        idle: float | None = None
        while True:
            try:
                async with asyncio.timeout(idle):
                    if await peer.request() is None:
                        return
            except TimeoutError:
                if reset:
                    peer.reset()
                return
            idle = IDLE
            await peer.send(reply(b'{"ok":1}'))

    return script


def _closes_after_the_request_line(*, reset: bool) -> Script:
    """Answers once on each connection; of the next request it takes the first line, then closes."""

    async def script(peer: Peer) -> None:
        if await peer.request() is None:
            return
        await peer.send(reply(b'{"ok":1}'))
        await peer.reader.readline()
        if reset:
            peer.reset()

    return script


class _Poster:
    """A client's kept connection, as lean as can be: the test is about thousands of requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: dict[str, object]) -> int:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(_request(body))
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        return int(head[9:12])

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


@WAYS
async def test_s2_five_thousand_posts_around_the_idle_limit_of_a_backend(fast: bool) -> None:
    """FIN and RST, idle or right after the request line: no client error, nothing done twice."""
    rng = random.Random(2)
    scripts = [
        make(reset=reset)
        for make in (_closes_when_idle, _closes_after_the_request_line)
        for reset in (False, True)
    ]
    async with contextlib.AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(scripted(script)) for script in scripts]
        entries = "backends:\n" + "".join(
            f"- {{name: b{n}, url: '{b.url}', models: [m{n}]}}\n" for n, b in enumerate(backends)
        )
        config = way_config(entries, fast, "retry: {max_attempts: 1}")
        edge = await stack.enter_async_context(running(config))
        statuses: collections.Counter[int] = collections.Counter()

        async def posts(number: int) -> None:
            kind = number % len(backends)
            poster = _Poster(edge.port)
            for turn in range(POSTS // 100):
                body = {**BODY, "model": f"m{kind}", "n": number * 1000 + turn}
                statuses[await poster.post(body)] += 1
                if kind < 2:
                    await asyncio.sleep(rng.uniform(IDLE * 0.8, IDLE * 1.2))
            poster.close()

        await asyncio.gather(*map(posts, range(100)))
        assert statuses == {200: POSTS}
        for backend in backends:
            numbers = [json.loads(seen.body)["n"] for seen in backend.requests]
            assert len(numbers) == len(set(numbers)) == POSTS // 4
            # It did happen: many connections were needed, not one for each client.
            assert backend.connections > 100 // len(backends)


# -- S3, S4: failures of a stream ----------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
async def test_s3_partial_output_is_never_tried_again(fast: bool, reset: bool) -> None:
    pieces = [chunk(sse(json.dumps({"n": number}))) for number in range(3)]
    script = breaks_after(chunked_head(), *pieces, gap=0.03, reset=reset)
    async with scripted(script) as one, scripted(streams("{}")) as two:
        async with running(way_config([one.url, two.url], fast)) as edge:
            answer = await edge.stream()
    assert answer.status == 200
    assert answer.body.startswith(b"".join(sse(json.dumps({"n": n})) for n in range(3)))
    assert answer.body.count(b'"code":"upstream_error"') == 1
    assert b"[DONE]" not in answer.body
    assert (len(one.requests), len(two.requests)) == (1, 0)


@WAYS
@pytest.mark.parametrize(
    ("status", "header"),
    [(400, "X-A: b"), (401, "X-A: b"), (429, "Retry-After: 60"), (500, "X-A: b")],
)
async def test_s4_an_error_on_a_stream_request_keeps_its_status(
    fast: bool, status: int, header: str
) -> None:
    body = b'{"error":{"message":"as it is","code":"x"}}'
    wire = reply(body, status=f"{status} X", headers=("Content-Type: application/json", header))
    async with scripted(answers(wire)) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            answer = await edge.stream()
    name, _, value = header.partition(": ")
    assert (answer.status, answer.body, answer.headers[name]) == (status, body, value)
    assert len(backend.requests) == 1


# -- S5 to S7: the bytes of a stream -------------------------------------------------------------


def _bytewise(wire: bytes, kind: str) -> Script:
    pieces = [chunk(wire[at : at + 1]) for at in range(len(wire))]
    head = chunked_head(headers=(f"Content-Type: {kind}",))
    return answers(head, *pieces, LAST_CHUNK, gap=0)


@WAYS
@pytest.mark.parametrize("alias", [False, True], ids=["as it is", "renamed"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_s5_text_is_not_decoded_piece_by_piece(fast: bool, stream: bool, alias: bool) -> None:
    """One byte a write: what is relayed is the same, whatever character is cut.

    Under an alias the text goes through the reader that puts the name back.
    """
    text = '{"model":"real","t":"안녕 中文 🚢","usage":{"prompt_tokens":3}}'
    wire = sse(text) + sse("[DONE]") if stream else text.encode()
    kind = "text/event-stream" if stream else "application/json"
    async with scripted(_bytewise(wire, kind)) as backend:
        entry = f"{{name: b1, url: '{backend.url}', models: [real], aliases: {{gpt: real}}}}"
        async with running(way_config(f"backends: [{entry}]\n", fast)) as edge:
            model = "gpt" if alias else "real"
            answer = await edge.post({**BODY, "model": model, "stream": stream})
    assert answer.body == wire.replace(b'"real"', f'"{model}"'.encode())


CHUNK = (
    '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    '"choices":[{"index":0,"delta":{"content":"안"}}]}'
)


@WAYS
async def test_s6_a_silent_stream_is_kept_alive_for_old_clients(fast: bool) -> None:
    """`: ping` and one line feed, between events only, never before the first; openai reads it."""
    event = b"id: 7\n" + sse(CHUNK)

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(chunked_head())
            await asyncio.sleep(0.12)
            await peer.send(chunk(event))
            await asyncio.sleep(0.12)
            await peer.send(chunk(event[:20]))
            await asyncio.sleep(0.12)
            await peer.send(chunk(event[20:]), chunk(sse("[DONE]")), LAST_CHUNK)

    async with scripted(script) as backend:
        async with running(way_config([backend.url], fast, sse_keepalive="50ms")) as edge:
            body = (await edge.stream()).body
            assert body.startswith(event + b": ping\n")
            assert b": ping\n\n" not in body
            assert body.replace(b": ping\n", b"") == event * 2 + sse("[DONE]")
            assert b"ping" not in body[body.rindex(b"id: 7") :]
            client = openai.AsyncOpenAI(base_url=edge.url + "/v1", api_key="k", max_retries=0)
            async with client:
                found = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x"}], stream=True
                )
                assert [part.choices[0].delta.content async for part in found] == ["안", "안"]


COUNTS = '"prompt_tokens":9,"completion_tokens":2,"total_tokens":11'
ZERO = f'{{{COUNTS},"prompt_tokens_details":{{"cached_tokens":0}}}}'
LOGGED = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
USAGES: dict[str, tuple[list[str], dict[str, int]]] = {
    "in its own chunk": ([CHUNK, f'{{"choices":[],"usage":{{{COUNTS}}}}}'], LOGGED),
    "on the last content chunk": ([CHUNK, f'{CHUNK[:-1]},"usage":{{{COUNTS}}}}}'], LOGGED),
    "cached_tokens 0": ([f'{CHUNK[:-1]},"usage":{ZERO}}}'], {**LOGGED, "cached_tokens": 0}),
    "null until the end": (
        [f'{CHUNK[:-1]},"usage":null}}', f'{{"choices":[],"usage":{ZERO}}}'],
        {**LOGGED, "cached_tokens": 0},
    ),
    "absent": ([CHUNK, CHUNK], {}),
}


@WAYS
@pytest.mark.parametrize("name", USAGES)
async def test_s7_usage_is_relayed_untouched_and_logged(
    fast: bool, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    events, logged = USAGES[name]
    caplog.set_level(logging.INFO)
    async with scripted(streams(*events)) as backend:
        async with running(way_config([backend.url], fast)) as edge:
            answer = await edge.stream()
            await edge.settled()
    assert answer.body == b"".join(map(sse, (*events, "[DONE]")))
    rows = [getattr(record, "fields", {}) for record in caplog.records]
    (line,) = [row for row in rows if row.get("event") == "request_completed"]
    assert {key: line[key] for key in line if key.endswith("_tokens")} == logged


# -- S13: a wedged backend -----------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_s13_a_wedged_backend_blocks_nobody_else(fast: bool, stream: bool) -> None:
    """Accepts and never answers: 504 at the configured time, the others and probes at once."""
    more = (
        "timeouts: {request: {standard: {total: 800ms}, streaming: {first_byte: 800ms}}}\n"
        "health_checks: {interval: 100ms, timeout: 100ms, unhealthy_threshold: 9, "
        "block_startup: false}\n"
    )
    async with scripted(hangs()) as wedged, scripted(answers(reply(b'{"ok":1}'))) as other:
        config = way_config([wedged.url, other.url], fast, more)
        async with running(config) as edge:

            async def timed(call: Coroutine[None, None, Answer]) -> tuple[int, float]:
                begun = time.monotonic()
                status = (await call).status
                return status, time.monotonic() - begun

            posts = [edge.post({**BODY, "stream": stream}) for _ in range(40)]
            probe, *found = await asyncio.gather(
                timed(edge.get("/health")),
                *map(timed, posts),
            )
            assert probe[0] == 200
            assert probe[1] < 0.7
            assert collections.Counter(status for status, _ in found) == {200: 20, 504: 20}
            assert all(took < 0.7 for status, took in found if status == 200)
            assert all(0.8 <= took < 2.0 for status, took in found if status == 504)
            assert edge.in_flight() == 0
    asked = collections.Counter(seen.line.split()[0] for seen in wedged.requests)
    assert asked["POST"] == 20
    assert asked["GET"] >= 3
    assert len(wedged.left) >= 20
    # Probes went on meanwhile, each as quick as ever, on connections of their own.
    assert sum(seen.line.startswith("GET /health ") for seen in other.requests) >= 3
