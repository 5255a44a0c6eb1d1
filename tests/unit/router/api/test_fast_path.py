"""Which requests are taken from the client's connection before aiohttp sees them."""

import pytest

from continuum_router.api.arriving import Arriving
from continuum_router.api.fast_call import FastCall
from continuum_router.api.fast_context import SnapshotMemos
from continuum_router.api.fast_path import PATIENCE, FastPath, Visitor
from continuum_router.config.root import parse_config
from continuum_router.main import Router
from support.fast_rig import FastRig, chat, fast_rig

OFF = """
backends: [{name: b1, url: "http://127.0.0.1:1"}]
server: {listen: "127.0.0.1:0", fast_path: false}
"""


def path_of(rig: FastRig) -> tuple[FastPath, Visitor]:
    assert rig.client._fast is not None
    assert rig.client._visitor is not None
    return rig.client._fast, rig.client._visitor


async def test_a_whole_ordinary_request_is_taken() -> None:
    async with fast_rig() as rig:
        fast, visitor = path_of(rig)
        call = fast.take(chat(), visitor)
        assert isinstance(call, FastCall)
        assert rig.sent().startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")
        assert (rig.active, rig.in_flight) == (1, 1)
        call.gone()
        assert (rig.active, rig.in_flight) == (0, 0)


async def test_a_body_that_is_on_its_way_is_waited_for() -> None:
    async with fast_rig() as rig:
        fast, visitor = path_of(rig)
        call = fast.take(chat()[:-5], visitor)
        assert isinstance(call, Arriving)
        assert rig.sent() == b""
        assert (rig.active, rig.in_flight) == (1, 0)
        call.gone()
        assert rig.active == 0


NOT_TAKEN = {
    "half a head": chat()[:60],
    "two requests": chat() * 2,
    "too much": chat() + b"x",
    "an odd head": chat(headers=("Expect: 100-continue",)),
    "an unknown model": chat(model="nobody"),
    "too large a body": chat()[: chat().index(b"Content-Length")]
    + b"Content-Length: 99999999\r\n\r\n",
}


@pytest.mark.parametrize("name", NOT_TAKEN)
async def test_not_taken_and_nothing_has_happened(name: str) -> None:
    async with fast_rig() as rig:
        fast, visitor = path_of(rig)
        assert fast.take(NOT_TAKEN[name], visitor) is None
        assert (rig.active, rig.in_flight, rig.sent()) == (0, 0, b"")


async def test_nothing_is_taken_while_draining() -> None:
    async with fast_rig() as rig:
        fast, visitor = path_of(rig)
        rig.router.runtime.draining = True
        assert fast.take(chat(), visitor) is None


async def test_a_client_with_ever_new_heads_fills_no_memo() -> None:
    async with fast_rig() as rig:
        fast, visitor = path_of(rig)
        for number in range(PATIENCE + 20):
            data = chat(model="nobody", headers=(f"X-Request-Id: {number}",))
            assert fast.take(data, visitor) is None
        assert len(fast.context.memos.heads) == PATIENCE


SAME = {
    "the same": (chat(), True),
    "another length": (b"123", True),
    "no body": (b"0", True),
    "a padded length": (b"07", False),
    "no digits": (b"", False),
    "a sign": (b"+7", False),
    "a space": (b" 7", False),
    "digits of another script": ("\u0663".encode(), False),
    "too long": (b"9" * 13, False),
    "a list": (b"7, 7", False),
}


@pytest.mark.parametrize("name", SAME)
async def test_the_last_head_is_known_again_whatever_its_length(name: str) -> None:
    async with fast_rig() as rig:
        fast, visitor = path_of(rig)
        call = fast.take(chat(), visitor)
        assert call is not None
        call.gone()
        memos, head = fast.context.current(), visitor.head
        assert head is not None
        data, same = SAME[name]
        if len(data) < 20:
            data = head.start + data + head.rest
        end = visitor.same_head(data, memos)
        assert end == (data.index(b"\r\n\r\n") + 4 if same else 0)


async def test_a_head_that_differs_or_an_older_snapshot_is_not_the_same() -> None:
    async with fast_rig() as rig:
        fast, visitor = path_of(rig)
        call = fast.take(chat(), visitor)
        assert call is not None
        call.gone()
        memos = fast.context.current()
        for data in (
            chat(headers=("X-A: 1",)),
            chat().replace(b"sk-1", b"sk-2"),
            chat()[:40],
            chat().replace(b"\r\n\r\n", b"\r\nX-A: 1\r\n\r\n"),
        ):
            assert visitor.same_head(data, memos) == 0
        other = SnapshotMemos.of(rig.router.runtime.current)
        assert visitor.same_head(chat(), other) == 0


async def test_switched_off_there_is_none() -> None:
    config, _ = parse_config(OFF, path="x.yaml", env={})
    assert config is not None
    router = Router(config)
    await router._runner.setup()
    assert router._server()._fast is None
    await router.stop()
