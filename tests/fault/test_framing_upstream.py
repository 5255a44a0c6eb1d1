"""The table of answers: what the client gets, and which connections serve another call."""

import gzip
import json

import pytest

from support.edge import BODY, Edge, edge_config, running
from support.framing_upstream import EVIL, GOOD, PARTS, AnswerRow, head
from support.scripted_backend import Peer, chunk, chunked_head, reply, scripted, sse
from support.upstream_calls import until

SECOND = b'{"second":1}'
FLAGS = pytest.mark.parametrize("fast", [True, False], ids=["fast", "general"])
STREAM = chunked_head() + chunk(sse('{"a":1}')) + chunk(sse("[DONE]")) + b"0\r\n\r\n"


def config(url: str, *, fast: bool, more: str = "retry: {max_attempts: 1}"):
    server = f"server: {{listen: '127.0.0.1:0', fast_path: {str(fast).lower()}}}"
    return edge_config([url], f"{server}\n{more}")


class OneThenGood:
    """Answers the first request with a row's bytes, every later one well."""

    def __init__(self, row: AnswerRow) -> None:
        self.row = row
        self.served: list[int] = []
        self._peers: list[Peer] = []

    async def __call__(self, peer: Peer) -> None:
        self._peers.append(peer)
        while await peer.request() is not None:
            self.served.append(self._peers.index(peer))
            if len(self.served) > 1:
                await peer.send(reply(SECOND))
                continue
            await peer.send(self.row.wire)
            if self.row.closes:
                return


async def _differences(edge: Edge, backend: OneThenGood) -> list[str]:
    row = backend.row
    found: list[str] = []
    answer = await edge.post()
    if (answer.status, answer.cut) != (row.status, False):
        found.append(f"status {answer.status}, cut {answer.cut}")
    if row.body is None and answer.error["code"] != "upstream_error":
        found.append(f"error {answer.error}")
    if row.body is not None and answer.body != row.body:
        found.append(f"body {answer.body!r}")
    found += [f"{name} was passed on" for name in row.lacks if name in answer.headers]
    again = await edge.post()
    if (again.status, again.body) != (200, SECOND):
        found.append(f"the next answer is {again.status} {again.body!r}")
    if (backend.served == [0, 0]) is not row.kept:
        found.append(f"served by connections {backend.served}")
    return found


@FLAGS
@pytest.mark.parametrize("part", PARTS)
async def test_answers(part: str, fast: bool) -> None:
    found: dict[str, list[str]] = {}
    for row in PARTS[part]:
        script = OneThenGood(row)
        async with scripted(script) as backend, running(config(backend.url, fast=fast)) as edge:
            found[row.name] = await _differences(edge, script)
    assert {name: rows for name, rows in found.items() if rows} == {}
    assert len(found) == len(PARTS[part])


SPLIT = {
    "by length": (reply(GOOD), GOOD),
    "by chunks": (
        chunked_head(headers=("Content-Type: application/json",))
        + b'3;a=b\r\n{"o\r\n5\r\nk":1}\r\n0\r\nX: y\r\n\r\n',
        GOOD,
    ),
    "stream": (STREAM, sse('{"a":1}') + sse("[DONE]")),
    "1xx first": (head(status="HTTP/1.1 100 Continue") + reply(GOOD), GOOD),
    "bare LF": (reply(GOOD).replace(b"\r\n", b"\n"), GOOD),
    "folded": (reply(GOOD, headers=("Content-Type: application/json", "X-A: b", "\tc")), GOOD),
}


@FLAGS
@pytest.mark.parametrize("form", SPLIT)
async def test_every_split(form: str, fast: bool) -> None:
    """Two writes, the second after the router has read the first."""
    wire, body = SPLIT[form]
    at = iter(range(1, len(wire)))

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            place = next(at)
            await peer.send(wire[:place], wire[place:], gap=0.0005)

    async with scripted(script) as backend, running(config(backend.url, fast=fast)) as edge:
        got = set()
        for _ in range(1, len(wire)):
            answer = await edge.post({**BODY, "stream": form == "stream"})
            got.add((answer.status, answer.body, answer.cut))
        assert len(backend.requests) == len(wire) - 1
    assert got == {(200, body, False)}


@FLAGS
@pytest.mark.parametrize("form", ["plain", "stream"])
async def test_byte_by_byte(form: str, fast: bool) -> None:
    wire, body = SPLIT["by chunks" if form == "plain" else "stream"]

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(*(wire[i : i + 1] for i in range(len(wire))), gap=0)

    async with scripted(script) as backend, running(config(backend.url, fast=fast)) as edge:
        answer = await edge.post({**BODY, "stream": form == "stream"})
        assert (answer.status, answer.body) == (200, body)


@FLAGS
async def test_bytes_that_come_while_nobody_asked(fast: bool) -> None:
    """An answer that a backend sends ahead of any request is nobody's answer."""

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(reply(GOOD), reply(EVIL), gap=0.02)

    async with scripted(script) as backend, running(config(backend.url, fast=fast)) as edge:
        for calls in (1, 2, 3):
            assert (await edge.post()).body == GOOD
            await until(lambda: backend.open == 0)
            assert backend.connections == calls


@FLAGS
@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZip"])
async def test_compressed_although_not_asked(coding: str, fast: bool) -> None:
    packed = gzip.compress(GOOD)
    wire = reply(packed, headers=("Content-Type: application/json", f"Content-Encoding: {coding}"))
    row = AnswerRow(name=coding, wire=wire)
    script = OneThenGood(row)
    async with scripted(script) as backend, running(config(backend.url, fast=fast)) as edge:
        answer = await edge.post()
        assert (answer.status, json.loads(answer.body)) == (200, {"ok": 1})
        assert "content-encoding" not in answer.headers
        assert backend.requests[0].header("accept-encoding") == "identity"
        assert (await edge.post()).body == SECOND
        assert script.served == [0, 0]
