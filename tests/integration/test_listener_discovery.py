"""A source that knows nothing but the engine's list of its event endpoints (decisions C40)."""

import asyncio

from aiohttp import web

from continuum_shared.prefix_key import chat_key_text, derive
from support.kv_publisher import Encoding, KvPublisher, stored
from support.listener_rig import running_listener, source_row, subscribed, until
from support.tiny_engine import TinyEngine, serving

CHAT = [
    {"role": "system", "content": "You name the tide of each harbour, and nothing else at all."},
    {"role": "user", "content": "When is it high?"},
]


async def test_a_source_configures_itself_when_its_engine_comes_up():
    publisher = KvPublisher()
    listed = {"0": {"endpoint": f"tcp://*:{publisher.port}", "topic": "kv-events"}}
    listed["0"]["replay_endpoint"] = publisher.replay_endpoint
    up = False

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(listed) if up else web.Response(status=503)

    app = web.Application()
    app.router.add_get("/kv_event_sources", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/kv_event_sources"
    engine = TinyEngine()
    tokens = engine.encode_chat(CHAT)
    blocks = len(tokens) // 16
    event = stored(Encoding.MAP, list(range(1, blocks + 1)), None, tokens[: blocks * 16])
    publisher.publish([event])
    text = chat_key_text({"messages": CHAT})
    assert text is not None
    try:
        async with serving(engine):
            row = {
                "backend_name": "b",
                "model": "tiny-chat",
                "discover": url,
                "engine_url": engine.url,
            }
            async with running_listener([row]) as base:
                said = await source_row(base, "b")
                assert not said["connected"]
                assert said["warnings"] == [
                    f"{url} does not tell where events are published: it does not answer"
                ]
                up = True
                async with asyncio.timeout(10):
                    while not (await source_row(base, "b"))["connected"]:
                        await asyncio.sleep(0.05)
                async with subscribed(base, "b") as sub:
                    await until(lambda: derive("tiny-chat", text, 1024) in sub.index())
                assert (await source_row(base, "b"))["warnings"] == []
    finally:
        publisher.close()
        await runner.cleanup()
