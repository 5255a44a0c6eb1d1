"""Reading a backend's model list, and what goes wrong on the way to it."""

import json
from pathlib import Path

import pytest

from continuum_router.models.catalog import FetchFailed, ModelCard
from continuum_router.models.fetch import DEFAULT_BOUNDS, fetch_models, read_list
from continuum_shared.config.kinds import BackendUrl, Secret
from support.faults import dead_port
from support.scripted_backend import answers, breaks_after, reply, scripted

LIST = b'{"object":"list","data":[{"id":"m","created":3,"owned_by":"vllm"},{"id":"n"}]}'
CARDS = [ModelCard(id="m", created=3, owned_by="vllm"), ModelCard(id="n")]


def test_reading() -> None:
    assert read_list(LIST) == CARDS


@pytest.mark.parametrize("raw", [b"", b"nope", b"[]", b"{}", b'{"data":{}}', b'{"data":null}'])
def test_no_list(raw: bytes) -> None:
    assert read_list(raw) is None


def test_bad_entries_cost_themselves() -> None:
    odd = [None, 5, {}, {"id": 5}, {"id": ""}, {"id": "x" * 257}, {"id": "a\nb"}, {"id": "ok"}]
    assert read_list(json.dumps({"data": odd}).encode()) == [ModelCard(id="ok")]
    odd = [{"id": "m", "created": "now", "owned_by": 5}]
    assert read_list(json.dumps({"data": odd}).encode()) == [ModelCard(id="m")]


def test_a_list_is_bounded() -> None:
    many = [{"id": f"m{n}"} for n in range(DEFAULT_BOUNDS.max_models + 5)]
    found = read_list(json.dumps({"data": many}).encode())
    assert found is not None
    assert len(found) == DEFAULT_BOUNDS.max_models


async def test_the_request() -> None:
    async with scripted(answers(reply(LIST))) as there:
        asked = there.backend(api_key=Secret("s3"), headers=(("X-Team", "a"),))
        assert await fetch_models(asked) == CARDS
    seen = there.requests[0]
    assert seen.line == "GET /v1/models HTTP/1.1"
    assert (seen.header("authorization"), seen.header("x-team")) == ("Bearer s3", "a")


async def test_a_base_path_and_a_unix_socket(tmp_path: Path) -> None:
    async with scripted(answers(reply(LIST))) as there:
        await fetch_models(there.backend(url=BackendUrl.parse(there.url + "/base/v1")))
        assert there.requests[0].line == "GET /base/v1/models HTTP/1.1"
    async with scripted(answers(reply(LIST)), unix_path=str(tmp_path / "e.sock")) as there:
        assert await fetch_models(there.backend()) == CARDS


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (reply(b"{}", status="404 No"), "status_404"),
        (reply(b"", status="302 Found", headers=["Location: http://127.0.0.1:1/"]), "status_302"),
        (reply(b"<html>"), "no_model_list"),
    ],
)
async def test_answers_that_are_no_list(wire: bytes, why: str) -> None:
    async with scripted(answers(wire)) as there:
        with pytest.raises(FetchFailed, match=why):
            await fetch_models(there.backend())


async def test_connections_that_fail() -> None:
    async with scripted(breaks_after(reply(LIST)[:-5])) as there:
        with pytest.raises(FetchFailed):
            await fetch_models(there.backend())
        with dead_port() as port:
            dead = there.backend(url=BackendUrl.parse(f"http://127.0.0.1:{port}"))
            with pytest.raises(FetchFailed):
                await fetch_models(dead)
