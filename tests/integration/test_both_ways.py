"""The fast path and the general way, side by side, byte by byte (design/data-plane.md rule 1).

The same client bytes go through a router of each kind. What the client gets, what the backends see,
what is counted and what is logged must be the same; only ids and times may differ.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support import edge as edges
from support.edge import Edge
from support.raw_client import RawAnswer, RawClient, raw_client
from support.reply_shapes import shaped
from support.scripted_backend import ScriptedBackend, scripted
from support.way_cases import (
    Case,
    every_shape,
    odd_bodies,
    odd_requests,
    random_cases,
    responses,
)

SEED = 20261201

CONFIG = """
server: {{listen: '127.0.0.1:0', fast_path: {fast}, max_body_bytes: 2MiB}}
selection_strategy: PrefixAwareHash
prefix_routing: {{enabled: true}}
kv_cache_index: {{enabled: true}}
retry: {{initial_delay: 1ms, jitter: false, budget: {{min_retries: 100000}}}}
fallbacks: {{spare: [m]}}
health_checks: {{enabled: false, breaker: {{enabled: false}}}}
"""
BACKENDS = """
backends:
- {{name: b1, url: '{}', models: [m]}}
- {{name: b2, url: '{}', models: [m], aliases: {{alias: m}}, api_key: own}}
"""
TIMES = re.compile(r"_(seconds|latency)(_sum|_bucket|)$|^continuum_upstream_connections")
TIMED_FIELDS = frozenset({"request_id", "duration_ms", "ttft_ms", "latency"})


@dataclass(slots=True)
class Way:
    """What came of a corpus, one way in."""

    clients: dict[str, list[object]] = field(default_factory=dict)
    backends: dict[str, list[tuple[str, bytes, bytes]]] = field(default_factory=dict)
    metrics: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    lines: dict[str, list[object]] = field(default_factory=dict)
    by_aiohttp: int = 0


async def _go(cases: Iterable[Case], *, fast: bool, caplog: pytest.LogCaptureFixture) -> Way:
    way = Way()
    async with scripted(shaped()) as one, scripted(shaped()) as two:
        backends = BACKENDS.format(one.url, two.url)
        config = edges.edge_config(backends, CONFIG.format(fast=str(fast).lower()))
        async with edges.running(config) as edge:
            for case in cases:
                assert case.name not in way.clients
                way.clients[case.name] = await _exchange(edge.port, case)
                await edge.settled()
                await asyncio.sleep(0)
                way.backends[case.name] = list(_drain(one, two))
            way.metrics = dict(_counts(edge))
            way.by_aiohttp = edge.router._server.requests_count
            assert edge.in_flight() == 0
    way.lines = _lines(caplog)
    return way


async def _exchange(port: int, case: Case) -> list[object]:
    found: list[object] = []
    closes = False
    async with raw_client(port) as client:
        sending = asyncio.ensure_future(client.send(*case.pieces))
        left = case.answers
        while left:
            answer = await client.answer()
            found.append(_masked(answer) if answer is not None else None)
            closes = answer is None or (answer.header("connection") or "").lower() == "close"
            if answer is None or answer.ended != "framing":
                break
            left -= answer.status >= 200
        await sending
        found.append("closes" if closes else await _goes_on(client))
    return found


async def _goes_on(client: RawClient) -> str | None:
    """What the connection says to one more request; None when it has been closed."""
    await client.send(b"GET /health HTTP/1.1\r\nHost: edge\r\n\r\n")
    answer = await client.answer()
    return None if answer is None else answer.line


def _masked(answer: RawAnswer) -> tuple[object, ...]:
    request_id = answer.header("x-continuum-request-id")
    headers = tuple(
        (name, "*" if name.lower() == "date" or value == request_id else value)
        for name, value in answer.headers
    )
    body = answer.body.replace(request_id.encode(), b"*") if request_id else answer.body
    return answer.line, headers, body, answer.ended


def _drain(*backends: ScriptedBackend) -> Iterator[tuple[str, bytes, bytes]]:
    for backend in backends:
        port = backend.url.rpartition(":")[2].encode()
        for seen in backend.requests:
            yield ("", seen.head.replace(port, b"PORT"), seen.body)
        backend.requests.clear()


def _lines(caplog: pytest.LogCaptureFixture) -> dict[str, list[object]]:
    """What was logged about requests, by message, in order."""
    found: dict[str, list[object]] = {}
    for record in caplog.records:
        if record.name in ("continuum_router.access", "continuum_router.attempt"):
            told = {k: v for k, v in record.__dict__["fields"].items() if k not in TIMED_FIELDS}
            found.setdefault(record.getMessage(), []).append((record.levelname, told))
    caplog.clear()
    return found


def _counts(edge: Edge) -> Iterator[tuple[tuple[str, frozenset[tuple[str, str]]], float]]:
    text = edge.router.state.metrics.exposition().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not TIMES.search(sample.name):
                yield (sample.name, frozenset(sample.labels.items())), sample.value


def corpus() -> list[Case]:
    return [
        *every_shape(),
        *responses(),
        *odd_bodies(),
        *odd_requests(),
        *random_cases(SEED, 150),
    ]


async def test_both_ways_give_the_same(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cases = corpus()
    general = await _go(cases, fast=False, caplog=caplog)
    fast = await _go(cases, fast=True, caplog=caplog)
    caplog.clear()
    answered = len(general.lines["Request completed"])
    assert general.by_aiohttp - fast.by_aiohttp > answered // 2, "ordinary ones are not aiohttp's"
    assert differences(general.clients, fast.clients) == {}
    assert differences(general.backends, fast.backends) == {}
    assert differences(general.metrics, fast.metrics) == {}
    assert general.lines.keys() == fast.lines.keys()
    for message, lines in general.lines.items():
        for one, other in zip(lines, fast.lines[message], strict=True):
            assert one == other


def differences(
    general: Mapping[object, object], fast: Mapping[object, object]
) -> dict[object, object]:
    """The first few entries that differ, with both values."""
    keys = [key for key in {**general, **fast} if general.get(key) != fast.get(key)]
    return {key: (general.get(key), fast.get(key)) for key in keys[:3]}
