"""The simulated engine over real HTTP: OpenAI's shapes, cached tokens, peepholes, disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest

from continuum_router.demo import sim_tokenizer
from continuum_router.demo.engine_sim import SimConfig, SimEngine
from continuum_router.demo.sim_scheduler import SimTiming

SYSTEM = {"role": "system", "content": "Answer like a lighthouse keeper. " * 10}


def chat(user: str, **more: object) -> dict[str, object]:
    messages = [SYSTEM, {"role": "user", "content": user}]
    return {"model": "demo", "messages": messages, "max_tokens": 20, **more}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def engine() -> AsyncIterator[SimEngine]:
    made = SimEngine(SimConfig(models=("demo", "second")))
    await made.start()
    yield made
    await made.stop()


async def test_the_openai_client_is_content_with_it(engine: SimEngine) -> None:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        listed = [model.id async for model in client.models.list()]
        assert listed == ["demo", "second"]
        body = chat("Is there fog?")
        whole = await client.chat.completions.create(**body)  # type: ignore[call-overload]
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            **body, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
        assert whole.usage.prompt_tokens_details.cached_tokens == 0
        usable = (whole.usage.prompt_tokens - 1) // 16 * 16
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == usable
        completion = await client.completions.create(model="second", prompt="Fog", max_tokens=3)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 3


async def test_a_stream_is_role_text_end_and_done(
    engine: SimEngine, http: aiohttp.ClientSession
) -> None:
    body = chat("Fog?", stream=True, max_tokens=2)
    async with http.post(f"{engine.url}/v1/chat/completions", json=body) as reply:
        assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = (await reply.read()).decode().split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["finish_reason"] for c in choices] == [None, None, "length"]


async def test_an_answer_is_in_the_cache_when_the_next_turn_comes(
    engine: SimEngine, http: aiohttp.ClientSession
) -> None:
    first = chat("Fog?", max_tokens=40)
    async with http.post(f"{engine.url}/v1/chat/completions", json=first) as reply:
        told = await reply.json()
    answered = told["usage"]["prompt_tokens"] + told["usage"]["completion_tokens"]
    messages = [
        SYSTEM,
        {"role": "user", "content": "Fog?"},
        {"role": "assistant", "content": told["choices"][0]["message"]["content"]},
        {"role": "user", "content": "And ice?"},
    ]
    async with http.post(
        f"{engine.url}/v1/chat/completions", json=chat("", messages=messages)
    ) as reply:
        cached = (await reply.json())["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (answered - 1) // 16 * 16


async def test_the_peephole_shows_the_resident_chains(
    engine: SimEngine, http: aiohttp.ClientSession
) -> None:
    for user in ("Is there any fog on the water?", "How many ships have passed today?"):
        async with http.post(
            f"{engine.url}/v1/chat/completions", json=chat(user, max_tokens=1)
        ) as reply:
            assert reply.status == 200
    async with http.get(f"{engine.url}/sim/cache") as reply:
        told = await reply.json()
    texts = sorted(sim_tokenizer.decode(chain["tokens"]) for chain in told["chains"])
    rendered = sim_tokenizer.render_chat([SYSTEM])
    assert len(texts) == 2
    assert [text.startswith(rendered[:-14]) for text in texts] == [True, True]
    assert "How many" in texts[0]
    assert "Is there" in texts[1]
    assert {tuple(chain["tokens"]) for chain in told["chains"]} == {
        chain.tokens for chain in engine.resident_chains()
    }
    async with http.post(f"{engine.url}/reset_prefix_cache") as reply:
        assert await reply.json() == {"success": True}
    assert engine.resident_chains() == []


async def test_tokenizer_endpoints(engine: SimEngine, http: aiohttp.ClientSession) -> None:
    messages = [{"role": "user", "content": "안녕"}]
    async with http.post(f"{engine.url}/tokenize", json={"messages": messages}) as reply:
        told = await reply.json()
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == 8192
    async with http.post(f"{engine.url}/detokenize", json={"tokens": told["tokens"]}) as reply:
        assert await reply.json() == {
            "prompt": "<|im_start|>user\n안녕<|im_end|>\n<|im_start|>assistant\n"
        }


async def test_metrics_and_event_sources(engine: SimEngine, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{engine.url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="demo"} 0.0' in lines
    assert 'vllm:num_requests_waiting{engine="0",model_name="demo"} 0.0' in lines
    assert 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="2048"} 1.0' in lines
    assert any(line.startswith("process_start_time_seconds 1") for line in lines)
    async with http.get(f"{engine.url}/kv_event_sources") as reply:
        assert await reply.json() == {}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("GET", "/health", None, 200, None),
        ("HEAD", "/health", None, 405, None),
        ("GET", "/v1/chat/completions", None, 405, {"detail": "Method Not Allowed"}),
        ("POST", "/v1/nothing", "{}", 404, {"detail": "Not Found"}),
        (
            "POST",
            "/v1/chat/completions",
            '{"model": "nope"}',
            404,
            {
                "error": {
                    "message": "The model `nope` does not exist.",
                    "type": "NotFoundError",
                    "param": None,
                    "code": 404,
                }
            },
        ),
        (
            "POST",
            "/v1/completions",
            json.dumps({"model": "demo", "prompt": [1] * 8000, "max_tokens": 100}),
            200,
            None,
        ),
        ("POST", "/detokenize", '{"tokens": [-1]}', 400, None),
    ],
)
async def test_statuses(
    engine: SimEngine,
    http: aiohttp.ClientSession,
    method: str,
    path: str,
    body: str | None,
    status: int,
    told: object,
) -> None:
    async with http.request(method, engine.url + path, data=body) as reply:
        assert reply.status == status
        if told is not None:
            assert await reply.json() == told


async def test_a_request_that_can_never_fit_is_refused(http: aiohttp.ClientSession) -> None:
    engine = SimEngine(SimConfig(blocks=4))
    await engine.start()
    body = {"model": "demo", "prompt": [1] * 60, "max_tokens": 10, "ignore_eos": True}
    async with http.post(f"{engine.url}/v1/completions", json=body) as reply:
        assert reply.status == 400
        told = await reply.json()
    assert told["error"]["message"] == "prompt and answer do not fit into this engine's cache"
    await engine.stop()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_noticed_at_once(
    http: aiohttp.ClientSession, stream: bool
) -> None:
    engine = SimEngine(SimConfig(timing=SimTiming(decode_seconds=0.05)))
    await engine.start()
    body = chat("Fog?", stream=stream, max_tokens=500, ignore_eos=True)
    headers = {"X-Request-Id": "leaver"}
    post = http.post(f"{engine.url}/v1/chat/completions", json=body, headers=headers)
    if stream:
        reply = await post
        await reply.content.readline()
        reply.close()
    else:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await post
    async with asyncio.timeout(1):
        while not engine.record.aborted:
            await asyncio.sleep(0.01)
    async with http.get(f"{engine.url}/sim/stats") as told:
        stats = await told.json()
    (abort,) = stats.pop("aborts")
    assert abort["id"] == "chatcmpl-leaver"
    assert stats == {
        **{"requests": 1, "finished": 0, "aborted": 1, "running": 0, "waiting": 0},
        **{"queried_tokens": stats["queried_tokens"], "cached_tokens": 0},
    }
    await engine.stop()
