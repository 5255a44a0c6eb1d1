"""Bodies that arrive in odd ways. The table of refusals is in integration/test_refusals.py."""

import asyncio
import re

import pytest

from continuum_router.api.client_body import BodyStalled, ExpectationFailed
from support.edge import edge_config, running
from support.scripted_backend import answers, reply, scripted

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize("form", ["length", "chunked"])
async def test_byte_by_byte(form: str) -> None:
    wire = HEAD
    if form == "length":
        wire += b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    else:
        pieces = b"".join(b"1\r\n" + BODY[i : i + 1] + b"\r\n" for i in range(len(BODY)))
        wire += b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            for at in range(len(wire)):
                writer.write(wire[at : at + 1])
                await asyncio.sleep(0)
            assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
            await reader.read()
            writer.close()
    assert backend.requests[0].body == BODY
    assert backend.requests[0].header("transfer-encoding") is None


@pytest.mark.parametrize("before", ["", "pipelined"])
async def test_a_damaged_chunk_is_one_400(before: str) -> None:
    """The damage comes while the body is being read; nobody waits for what cannot come."""
    first = HEAD.replace(b"Connection: close\r\n", b"") + b"Content-Length: 1\r\n\r\n["
    async with scripted(answers(reply())) as backend:
        async with running(edge_config([backend.url])) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            head = HEAD.replace(b"Connection: close\r\n", b"")
            writer.write((first if before else b"") + head)
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n5\r\n{")
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(b'"a":zz\r\n')
            async with asyncio.timeout(5):
                got = await reader.read()
            writer.close()
            name, labels = "request_rejected_total", {"stage": "admission"}
            count = edge.sample(name, **labels, key_id="unattributed")
    expected = ["invalid_json", "invalid_body"] if before else ["invalid_body"]
    assert re.findall(rb'"code":"(\w+)"', got) == [code.encode() for code in expected]
    assert got.count(b"HTTP/1.1 400 ") == count == len(expected)
    assert got.count(b"\r\nConnection: close\r\n") == 1
    assert backend.requests == []


async def test_two_requests_on_one_connection() -> None:
    wire = HEAD.replace(b"Connection: close\r\n", b"") + b"Content-Length: %d\r\n\r\n" % len(BODY)
    async with scripted(answers(reply(b'{"ok":1}'))) as backend:
        async with running(edge_config([backend.url])) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            writer.write((wire + BODY) * 2)
            for _ in range(2):
                assert b" 200 OK" in await reader.readuntil(b'{"ok":1}')
            writer.close()
    assert [seen.body for seen in backend.requests] == [BODY, BODY]


def test_statuses() -> None:
    assert (BodyStalled().status, BodyStalled().code) == (408, "request_timeout")
    assert (ExpectationFailed().status, ExpectationFailed().code) == (417, "expectation_failed")
