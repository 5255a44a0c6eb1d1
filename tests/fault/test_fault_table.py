"""The table of upstream faults, row by row: status, tries, calls; nothing is left behind."""

import pytest

from support.edge import BODY, Answer, Edge, edge_config, running
from support.fault_table import GOOD_JSON, GOOD_STREAM, RELAYED, ROWS, Row, page
from support.faults import dead_port, deaf_port
from support.scripted_backend import (
    LAST_CHUNK,
    Script,
    answers,
    chunk,
    chunked_head,
    closes_idle,
    in_turn,
    reply,
    scripted,
)
from support.source_tree import ROOT
from support.upstream_calls import until

QUICK = "retry: {initial_delay: 1ms, max_delay: 5ms}\ntimeouts: {connection: 100ms}"
ATTEMPTS = "continuum_upstream_attempts_total"
IDS = [f"{row.name}, {'stream' if row.stream else 'plain'}" for row in ROWS]


def _well(row: Row) -> Script:
    if row.stream:
        return answers(chunked_head(), chunk(GOOD_STREAM), LAST_CHUNK)
    return answers(reply(GOOD_JSON))


async def _ask(edge: Edge, row: Row) -> Answer:
    # After an error event the router closes: a client must not reuse the connection meanwhile.
    answer = await edge.post({**BODY, "stream": row.stream}, headers={"Connection": "close"})
    assert edge.in_flight() == 0
    return answer


def _check(answer: Answer, expected: int | str, row: Row) -> None:
    if expected == RELAYED:
        assert (answer.status, answer.cut) == (200, False)
        assert answer.body.startswith(b'data: {"a":1}\n\n')
        assert answer.body.count(b"upstream_error") == 1
        assert b"[DONE]" not in answer.body
        return
    assert answer.status == expected
    if expected == 502 and row.tries == 1 and not row.name.startswith("status"):
        assert answer.error["code"] == "upstream_error"


def _attempts(edge: Edge) -> float:
    results = ("ok", "failed", "busy", "client_error", "client_gone", "router_error")
    return sum(edge.sample(ATTEMPTS, result=result) for result in results)


def _connections(edge: Edge) -> dict[str, float]:
    name = "continuum_upstream_connections"
    states = ("active", "waiting")
    return {state: edge.sample(name, backend="b1", state=state) for state in states}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
async def test_always(row: Row) -> None:
    async with scripted(row.script) as backend, running(edge_config([backend.url], QUICK)) as edge:
        _check(await _ask(edge, row), row.status, row)
        assert _attempts(edge) == row.tries
        assert max(len(backend.requests), backend.connections) == row.tries
        assert _connections(edge) == {"active": 0, "waiting": 0}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
async def test_once(row: Row) -> None:
    async with scripted(in_turn(row.once or row.script, _well(row))) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            answer = await _ask(edge, row)
            _check(answer, row.status_once, row)
            if row.calls_once == 2:
                assert answer.body == (GOOD_STREAM if row.stream else GOOD_JSON)
            assert backend.connections == row.calls_once
            assert _attempts(edge) == row.calls_once
            after = await _ask(edge, row)
            assert after.body == (GOOD_STREAM if row.stream else GOOD_JSON)


@pytest.mark.parametrize("stream", [False, True])
async def test_refused(stream: bool) -> None:
    with dead_port() as port:
        async with running(edge_config([f"http://127.0.0.1:{port}"], QUICK)) as edge:
            answer = await (edge.stream() if stream else edge.post())
            assert (answer.status, _attempts(edge)) == (502, 3)


async def test_connecting_hangs() -> None:
    with deaf_port() as port:
        async with running(edge_config([f"http://127.0.0.1:{port}"], QUICK)) as edge:
            assert ((await edge.post()).status, _attempts(edge)) == (504, 3)


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
async def test_closed_while_idle(reset: bool) -> None:
    async with scripted(closes_idle(0.03, reply(GOOD_JSON), reset=reset)) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            for calls in (1, 2):
                assert (await edge.post()).status == 200
                assert (len(backend.requests), _attempts(edge)) == (calls, calls)
                await until(lambda: backend.open == 0)


def test_the_page_is_this_table() -> None:
    assert (ROOT / "docs" / "upstream-faults.md").read_text(encoding="utf-8") == page()
