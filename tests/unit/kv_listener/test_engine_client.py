"""Calls to an engine's text endpoints, over real sockets."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from continuum_kv_listener.engine_client import (
    EngineClient,
    EngineEndpoints,
    EngineError,
    EngineFault,
)
from support.tiny_engine import TinyEngine, serving

CHAT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"})
RECORDED = [1, 1106, 1322, 36, 71, 301, 406, 71, 72, 16, 2, 1, 1571, 42, 533, 338, 1443, 2, 1, 67]
RECORDED += [322, 624, 802]


def endpoints(url: str) -> EngineEndpoints:
    return EngineEndpoints(
        detokenize=f"{url}/detokenize", tokenize=f"{url}/tokenize", health=f"{url}/health"
    )


@asynccontextmanager
async def scripted(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """A server that answers every request with ``answer``; gives its base URL."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_both_dialects_give_tokens_and_text(dialect: str) -> None:
    engine = TinyEngine(dialect=dialect)
    async with serving(engine) as url, aiohttp.ClientSession() as session:
        client = EngineClient(session, endpoints(url), model="tiny-chat")
        tokens = await client.tokenize_chat(CHAT)
        assert tokens == RECORDED
        assert await client.detokenize(array("I", tokens)) == (
            "<|im_start|>systemBe brief.<|im_end|><|im_start|>userHello there<|im_end|>"
            "<|im_start|>assistant"
        )
        assert await client.tokenize_prompt("def main(argv):\n    return 0\n") == [
            321, 530, 264, 10, 704, 88, 309, 273, 326, 403, 201,
        ]  # fmt: skip
        assert await client.health()


async def test_every_call_names_the_model_and_keeps_specials() -> None:
    bodies: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"text": ["ab"], "tokens": [[1, 2]]})

    async with scripted(answer) as url, aiohttp.ClientSession() as session:
        client = EngineClient(session, endpoints(url), model="m")
        assert await client.detokenize([3]) == "ab"
        assert await client.tokenize_prompt("x") == [1, 2]
        assert await client.tokenize_chat(CHAT[1:], [{"type": "function"}]) == [1, 2]
        nameless = EngineClient(session, endpoints(url), model=None)
        assert await nameless.detokenize([]) == "ab"
    assert bodies == [
        {"tokens": [3], "skip_special_tokens": False, "model": "m"},
        {"prompt": "x", "model": "m"},
        {
            "messages": [CHAT[1]],
            "add_generation_prompt": True,
            "tools": [{"type": "function"}],
            "model": "m",
        },
        {"tokens": [], "skip_special_tokens": False},
    ]


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (400, b"", EngineFault.UNSUPPORTED),
        (404, b"", EngineFault.UNSUPPORTED),
        (405, b"", EngineFault.UNSUPPORTED),
        (422, b"", EngineFault.UNSUPPORTED),
        (501, b"", EngineFault.UNSUPPORTED),
        (401, b"", EngineFault.REFUSED),
        (500, b"", EngineFault.REFUSED),
        (307, b"", EngineFault.REFUSED),
        (200, b"not json", EngineFault.BAD_ANSWER),
        (200, b"[]", EngineFault.BAD_ANSWER),
        (200, b"{}", EngineFault.BAD_ANSWER),
        (200, b'{"prompt": 1}', EngineFault.BAD_ANSWER),
        (200, b'{"text": ["a", "b"]}', EngineFault.BAD_ANSWER),
        (200, b'{"prompt": "' + b"x" * 2000 + b'"}', EngineFault.TOO_LARGE),
    ],
)
async def test_faults_of_detokenize(status: int, body: bytes, fault: EngineFault) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Location": "/elsewhere"})

    async with scripted(answer) as url, aiohttp.ClientSession() as session:
        client = EngineClient(session, endpoints(url), model="m", max_bytes=1000)
        with pytest.raises(EngineError) as caught:
            await client.detokenize([1])
    assert caught.value.fault is fault
    assert caught.value.status == (status if status != 200 else None)


@pytest.mark.parametrize("body", [b"{}", b'{"tokens": "1"}', b'{"tokens": [1, true]}'])
async def test_odd_token_lists_are_bad_answers(body: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body)

    async with scripted(answer) as url, aiohttp.ClientSession() as session:
        with pytest.raises(EngineError) as caught:
            await EngineClient(session, endpoints(url), model="m").tokenize_prompt("canary-prompt")
    assert caught.value.fault is EngineFault.BAD_ANSWER
    assert "canary" not in str(caught.value)


async def test_an_engine_that_is_not_there_or_never_answers() -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        asked.set()
        await release.wait()
        return web.Response()

    async with aiohttp.ClientSession() as session:
        async with scripted(answer) as url:
            client = EngineClient(session, endpoints(url), model="m", timeout=0.05)
            with pytest.raises(EngineError) as slow:
                await client.detokenize([1])
            assert asked.is_set()
            assert not await client.health()
            release.set()
        with pytest.raises(EngineError) as gone:
            await client.detokenize([1])
        assert not await client.health()
    assert slow.value.fault is EngineFault.TIMEOUT
    assert gone.value.fault is EngineFault.UNREACHABLE


async def test_unknown_endpoints() -> None:
    async with aiohttp.ClientSession() as session:
        client = EngineClient(
            session, EngineEndpoints(detokenize="http://127.0.0.1:1/d"), model="m"
        )
        assert await client.health()
        with pytest.raises(EngineError) as caught:
            await client.tokenize_prompt("x")
    assert caught.value.fault is EngineFault.UNSUPPORTED


async def test_an_unhealthy_engine() -> None:
    engine = TinyEngine()
    async with serving(engine) as url, aiohttp.ClientSession() as session:
        client = EngineClient(session, endpoints(url), model="tiny-chat")
        engine.down = True
        assert not await client.health()
        with pytest.raises(EngineError) as caught:
            await client.detokenize([1])
    assert caught.value.fault is EngineFault.REFUSED
    assert caught.value.status == 503
