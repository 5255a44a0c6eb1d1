"""Nothing that a prompt, a salt or a credential is made of leaves a daemon (user report O9).

Both daemons run as processes with their log at TRACE, work, and are made to fail in every way that
carries such values. Then everything that they said is searched.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web

from continuum_router.demo.child_process import free_ports, running
from continuum_shared.cache_salt import SaltIssuer
from continuum_shared.prefix_key import chat_key_text, derive
from support.chat_templates import CHATML
from support.fake_cache import FakeCache
from support.kv_publisher import Encoding, KvPublisher, batch, stored
from support.listener_rig import Subscriber, _read
from support.tiny_engine import TinyEngine, serving

SECRET = "canary-salt-secret-0123456789"
TOKEN = "canary-bearer-token-0123456789"
WORD = "canaryword"
PROMPT = f"You keep the {WORD} of the harbour and say nothing of it to anybody. "
OWN_SALT = "canary-tenant-salt"
TOKEN_IDS = (982_451_653, 982_451_707, 4_093_082_899)
"""Ids that no count or time is likely to look like."""
API_KEY = "canary-api-key-0123456789"
CREDENTIAL = "canary-client-credential-0123456789"


@dataclass
class Said:
    """Everything that was heard from a daemon, by where."""

    texts: dict[str, str] = field(default_factory=dict)

    def add(self, where: str, text: str | bytes) -> None:
        whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        self.texts[where] = self.texts.get(where, "") + whole

    def holds_none_of(self, canaries: Iterable[str]) -> None:
        for where, text in self.texts.items():
            for canary in canaries:
                assert canary.lower() not in text.lower(), (where, canary)


def chat(text: str) -> list[dict[str, object]]:
    return [{"role": "system", "content": text}, {"role": "user", "content": PROMPT}]


async def until(condition: object, seconds: float = 10.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


class Listener:
    """The listener's process and a client that shows the right token."""

    def __init__(self, base: str, session: aiohttp.ClientSession, said: Said) -> None:
        self.base = base
        self.session = session
        self.said = said

    async def get(self, path: str, token: str = TOKEN) -> str:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.get(self.base + path, headers=headers) as response:
            text = await response.text()
            self.said.add(f"{path.partition('?')[0]} {response.status}", text)
            return text

    async def row(self) -> dict[str, object]:
        row: dict[str, object] = json.loads(await self.get("/sources"))["sources"][0]
        return row

    async def counts(self, line: str, value: float) -> bool:
        return f"{line} {value}" in await self.get("/metrics")


@asynccontextmanager
async def listener_process(
    folder: Path, engine: TinyEngine, publisher: KvPublisher, said: Said
) -> AsyncIterator[Listener]:
    (port,) = free_ports(1)
    source = {
        "backend_name": "vllm-1",
        "zmq_endpoint": publisher.endpoint,
        "zmq_replay_endpoint": publisher.replay_endpoint,
        "engine_url": engine.url,
        "model": "tiny-chat",
        "max_frame_bytes": 65536,
    }
    text = yaml.safe_dump(
        {
            "listen": f"127.0.0.1:{port}",
            "auth_token_env": "TOKEN",
            "salt_echo": {"enabled": True, "secret_env": "SECRET"},
            "sources": [source],
            "logging": {"level": "trace"},
        }
    )
    (folder / "listener.yaml").write_text(text)
    start = "import sys; from continuum_kv_listener.cli import main; sys.exit(main())"
    argv = (sys.executable, "-X", "dev", "-c", start, "--config", str(folder / "listener.yaml"))
    env = {"TOKEN": TOKEN, "SECRET": SECRET}
    async with (
        aiohttp.ClientSession() as session,
        running("listener", argv, logs=folder, env=env) as child,
    ):
        listener = Listener(f"http://127.0.0.1:{port}", session, said)

        async def up() -> bool | None:
            try:
                return "source" in await listener.get("/sources") or None
            except aiohttp.ClientConnectionError:
                return None

        await child.wait_for(up, 20)
        yield listener
        child.check()


async def _misuse(listener: Listener) -> None:
    """Requests that carry credentials, wrong ones too, where they do not belong."""
    for token in (CREDENTIAL, ""):
        for path in ("/sources", "/metrics", "/events/vllm-1"):
            await listener.get(path, token)
    await listener.get(f"/events/{CREDENTIAL}")
    await listener.get(f"/sources?token={CREDENTIAL}")


async def _fail(
    listener: Listener, engine: TinyEngine, publisher: KvPublisher, cache: FakeCache
) -> None:
    """Events that are wrong in every way, and an engine that fails while it is asked."""
    raw = [text.encode() for text in (WORD, OWN_SALT, SECRET)]
    publisher.publish_payload(b"\xc1" + b" ".join(raw))
    publisher.publish_payload(batch([["Unheard" + WORD, *TOKEN_IDS]]))
    publisher.publish_payload(batch([["BlockStored", WORD, OWN_SALT, list(TOKEN_IDS)]]))
    publisher.publish_payload(batch([{"type": "BlockStored", "block_hashes": [OWN_SALT]}]))
    publisher.publish_payload(WORD.encode() * 10_000)
    publisher.send_frames([b"kv-events", WORD.encode(), b"x"])
    publisher.publish([stored(Encoding.MAP, [7, 8], None, [*TOKEN_IDS] * 7, block_size=16)])
    for salt in (OWN_SALT, "cr1." + OWN_SALT):
        publisher.publish([cache.chat(chat(PROMPT), salt=salt)[0]])
    publisher.publish([cache.chat(chat(PROMPT), lora_name="adapter", extra=[WORD])[0]])
    engine.down = True
    known = engine.encode_chat(chat(PROMPT * 2))
    publisher.publish([cache.tokens([*known, *TOKEN_IDS, *known])[0]])
    publisher.lose([cache.chat(chat(PROMPT))[0]])
    publisher.publish([])

    async def failed() -> bool:
        return bool("failed last time" in str(await listener.row()))

    await until(failed)
    engine.down = False


async def test_o9_the_listener_says_nothing_of_what_it_reads(tmp_path: Path) -> None:
    engine = TinyEngine(template=CHATML)
    publisher = KvPublisher()
    cache = FakeCache(engine)
    said, subscriber = Said(), Subscriber()
    issuer = SaltIssuer([SECRET])
    key_text = chat_key_text({"messages": chat(PROMPT)})
    assert key_text is not None
    key = derive("tiny-chat", key_text, 1024)
    salt = issuer.issue(key, backend="vllm-1", model="tiny-chat")
    try:
        async with (
            serving(engine),
            listener_process(tmp_path, engine, publisher, said) as listener,
        ):

            async def connected() -> bool:
                return bool((await listener.row())["connected"])

            await until(connected)
            headers = {"Authorization": f"Bearer {TOKEN}"}
            stream = await listener.session.get(listener.base + "/events/vllm-1", headers=headers)
            reading = asyncio.get_running_loop().create_task(_read(stream, subscriber))
            await asyncio.sleep(0.2)
            plain = engine.encode_chat(chat(f"{PROMPT} twice"))
            publisher.publish([cache.tokens([*plain, *TOKEN_IDS, *plain])[0]])
            publisher.publish([cache.chat(chat(PROMPT), salt=salt)[0]])

            async def told() -> bool:
                return len(subscriber.index()) == 2

            await until(told)
            assert key in subscriber.index()
            await _misuse(listener)
            await _fail(listener, engine, publisher, cache)
            dropped = 'continuum_listener_dropped_total{reason="%s",source="vllm-1"}'
            for reason in ("undecodable_batch", "malformed_event", "unknown_tag", "oversized"):
                assert not await listener.counts(dropped % reason, 0.0), reason
            for reason in ("foreign_salt", "bad_salt"):
                assert not await listener.counts(dropped % reason, 0.0), reason
            said.add("records", bytes(subscriber.raw))
            reading.cancel()
            await asyncio.wait([reading])
            stream.close()
    finally:
        publisher.close()
    for name in ("listener.out", "listener.err"):
        said.add(name, (tmp_path / name).read_bytes())
    assert len(said.texts["listener.out"].splitlines()) > 10
    assert len(said.texts) > 8
    canaries = [SECRET, TOKEN, WORD, "harbour", OWN_SALT, CREDENTIAL, "cr1."]
    said.holds_none_of([*canaries, *map(str, TOKEN_IDS)])


# -- the router -----------------------------------------------------------------------------------


@asynccontextmanager
async def engines() -> AsyncIterator[tuple[str, list[dict[str, object]]]]:
    """An engine that answers 503, 400 with the prompt in it, a broken stream, then well."""
    seen: list[dict[str, object]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen.append(body)
        kind = str(body["messages"][-1]["content"]).partition(" ")[0]
        if kind == "busy":
            return web.json_response({"error": {"message": str(body)}}, status=503)
        if kind == "bad":
            return web.json_response({"error": {"message": str(body)}}, status=400)
        if kind == "cut":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b"data: " + json.dumps(body).encode() + b"\n\n")
            assert request.transport is not None
            request.transport.abort()
            return response
        return web.json_response({"choices": [], "echo": body})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("stream", [True, False])
async def test_o9_the_router_says_nothing_of_what_it_passes_on(
    tmp_path: Path, stream: bool
) -> None:
    said = Said()
    (port,) = free_ports(1)
    async with engines() as (url, seen):
        (tmp_path / "router.yaml").write_text(
            yaml.safe_dump(
                {
                    "server": {"listen": f"127.0.0.1:{port}"},
                    "backends": [
                        {
                            "name": name,
                            "type": "vllm",
                            "url": at,
                            "models": ["m"],
                            "api_key": "${API_KEY}",
                        }
                        for name, at in (("b1", url), ("b2", "http://127.0.0.1:9"))
                    ],
                    "selection_strategy": "PrefixAwareHash",
                    "prefix_routing": {
                        "enabled": True,
                        "salt_echo": {"enabled": True, "secret_env": "SECRET"},
                    },
                    "retry": {"initial_delay": "1ms"},
                    "logging": {"level": "trace"},
                }
            )
        )
        argv = (
            *(sys.executable, "-X", "dev", "-m", "continuum_router.cli", "serve"),
            *("--config", str(tmp_path / "router.yaml")),
        )
        env = {"SECRET": SECRET, "API_KEY": API_KEY}
        base = f"http://127.0.0.1:{port}"
        async with (
            aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {CREDENTIAL}"},
                connector=aiohttp.TCPConnector(force_close=True),
            ) as http,
            running("router", argv, logs=tmp_path, env=env) as child,
        ):

            async def up() -> bool | None:
                try:
                    async with http.get(f"{base}/health") as response:
                        return response.status == 200 or None
                except aiohttp.ClientConnectionError:
                    return None

            await child.wait_for(up, 20)
            for number, kind in enumerate(("fine", "busy", "bad", "cut", "fine") * 2):
                body: dict[str, object] = {
                    "model": "m",
                    "stream": stream,
                    "messages": [
                        {"role": "system", "content": f"{PROMPT} {number}"},
                        {"role": "user", "content": f"{kind} {WORD}"},
                    ],
                }
                for own in (None, OWN_SALT, "cr1." + OWN_SALT):
                    sent = body if own is None else {**body, "cache_salt": own}
                    try:
                        async with http.post(f"{base}/v1/chat/completions", json=sent) as answer:
                            text = await answer.read()
                            if own is not None and own.startswith("cr1."):
                                said.add("refusal", text)
                                assert answer.status == 400
                    except aiohttp.ClientPayloadError:
                        pass
            for path in ("/metrics", "/v1/models", f"/v1/{CREDENTIAL}", "/health/ready"):
                async with http.get(base + path) as answer:
                    said.add(f"{path} {answer.status}", await answer.read())
            child.check()
    stamped = [str(body["cache_salt"]) for body in seen if "cache_salt" in body]
    assert OWN_SALT in stamped
    assert sum(salt.startswith("cr1.") for salt in stamped) >= 10
    for name in ("router.out", "router.err"):
        said.add(name, (tmp_path / name).read_bytes())
    assert len(said.texts["router.out"].splitlines()) > 20
    log = said.texts.pop("router.out") + said.texts.pop("router.err")
    issued = [salt for salt in stamped if salt.startswith("cr1.")]
    said.holds_none_of([SECRET, API_KEY, CREDENTIAL, WORD, "harbour", OWN_SALT, *issued])
    Said({"log": log}).holds_none_of(
        [SECRET, API_KEY, CREDENTIAL, WORD, "harbour", OWN_SALT, "cr1."]
    )
