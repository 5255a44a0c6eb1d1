"""Two simulated engines and the listener as real processes, a router in the test's own loop.

Processes are killed with SIGKILL and started again on the same ports, as a supervisor on a host
would. The oracle reads what the engines' caches truly hold and says what the router's index must
therefore say.
"""

import asyncio
import contextlib
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from continuum_router.config.root import parse_config
from continuum_router.demo.child_process import Child, free_ports, running
from continuum_router.demo.fleet_config import EngineAddress, listener_config, router_config
from continuum_router.demo.sim_tokenizer import decode
from continuum_router.main import Router
from continuum_shared.cache_salt import SaltVerifier
from continuum_shared.prefix_key import KeyTag, KeyText, PrefixKey, cut_utf8, derive

MODEL = "demo"
LIMIT = 1024
NAMES = ("e1", "e2")
MORE_ENGINE = ("--blocks", "320", "--prefill-us-per-token", "20", "--decode-ms", "0.5")


def system_text(number: int) -> str:
    """One of the workload's system prompts: several blocks long, some of them alike at first."""
    shared = "You answer questions about the harbour of Busan. 부산항 안내입니다. " * 3
    rule = f"Rule {number}: be brief.\n\n- one fact {number}\n" * 4
    return f"{shared if number % 2 else ''}{rule}" * (3 if number == 9 else 1)


def anchored(system: str) -> str:
    """How a rendered prompt begins as soon as its key is complete (decisions C21)."""
    cut = cut_utf8(system, LIMIT).decode()
    end = "" if len(cut) < len(system) else "<|im_end|>\n<|im_start|>"
    return f"<|im_start|>system\n{cut}{end}"


SYSTEMS = [system_text(number) for number in range(10)]
BEGINNINGS = {
    derive(MODEL, KeyText(tag=KeyTag.SYSTEM, text=text), LIMIT): anchored(text) for text in SYSTEMS
}


@dataclass
class Fleet:
    """Everything that runs, and the ways to break it."""

    folder: Path
    stack: contextlib.AsyncExitStack
    session: aiohttp.ClientSession
    engines: list[EngineAddress]
    listen: str
    port: int
    salt_secret: str | None = None
    router: Router | None = None
    children: dict[str, tuple[Child, contextlib.AsyncExitStack]] = field(default_factory=dict)

    async def start_engine(self, name: str) -> None:
        engine = next(e for e in self.engines if e.name == name)
        argv = (
            *(sys.executable, "-m", "continuum_router.cli", "engine-sim"),
            *("--port", engine.url.rpartition(":")[2], "--model", MODEL),
            *("--zmq", engine.zmq, "--zmq-mode", "bind", "--replay", engine.replay),
            *("--topic", "kv-events", *MORE_ENGINE),
        )
        await self._start(name, argv, f"{engine.url}/health")

    async def start_listener(self) -> None:
        path = self.folder / "listener.yaml"
        text = listener_config(self.engines, model=MODEL, listen=self.listen)
        path.write_text(self._salted(text))
        start = "import sys; from continuum_kv_listener.cli import main; sys.exit(main())"
        argv = (sys.executable, "-c", start, "--config", str(path))
        await self._start("listener", argv, f"http://{self.listen}/health")

    async def start_router(self) -> None:
        text = router_config(
            self.engines,
            model=MODEL,
            listen=f"127.0.0.1:{self.port}",
            events=f"http://{self.listen}",
        )
        text = self._salted(text, "prefix_routing")
        config, report = parse_config(text, path="router.yaml", env=self._env())
        assert config is not None, str(report)
        self.router = Router(config)
        await self.router.start()

    async def stop_router(self) -> None:
        if self.router is not None:
            await self.router.stop()
            self.router = None

    async def kill(self, name: str) -> None:
        """SIGKILL, and wait until the process is gone."""
        child, stack = self.children.pop(name)
        child.signal(signal.SIGKILL)
        await child.ended(5)
        await stack.aclose()

    async def _start(self, name: str, argv: tuple[str, ...], health: str) -> None:
        stack = contextlib.AsyncExitStack()
        await self.stack.enter_async_context(stack)
        starting = running(name, argv, logs=self.folder, env=self._env())
        child = await stack.enter_async_context(starting)
        self.children[name] = (child, stack)

        async def up() -> bool | None:
            try:
                async with self.session.get(health) as response:
                    return response.status == 200 or None
            except aiohttp.ClientConnectionError:
                return None

        await child.wait_for(up, 20)

    def _env(self) -> dict[str, str]:
        return {} if self.salt_secret is None else {"SALT_SECRET": self.salt_secret}

    def _salted(self, text: str, *path: str) -> str:
        """The configuration with salt echo on in the section at ``path``, if the fleet has it."""
        if self.salt_secret is None:
            return text
        config = section = json.loads(text)
        for name in path:
            section = section[name]
        section["salt_echo"] = {"enabled": True, "secret_env": "SALT_SECRET"}
        return json.dumps(config)

    async def ask(self, rng: random.Random) -> tuple[int, str]:
        """One chat of the workload: its status and route header; 0 when nobody answered."""
        system = rng.choice(SYSTEMS)
        user = f"Question {rng.randrange(10_000)}? " * rng.randrange(1, 6)
        body = {
            "model": MODEL,
            "max_tokens": rng.choice((1, 20, 40)),
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ],
        }
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        try:
            async with self.session.post(url, json=body) as response:
                await response.read()
                return response.status, response.headers.get("x-continuum-route", "")
        except aiohttp.ClientError:
            return 0, ""

    async def true_cache(self, name: str) -> dict[PrefixKey, int]:
        """Key -> tokens of the longest resident chain that holds the whole keyed text, or of the
        longest one with the key's salt."""
        engine = next(e for e in self.engines if e.name == name)
        async with self.session.get(f"{engine.url}/sim/cache") as response:
            chains = (await response.json())["chains"]
        held: dict[PrefixKey, int] = {}
        if self.salt_secret is not None:
            verifier = SaltVerifier([self.salt_secret], backend=name)
            for chain in chains:
                key = verifier.verify(chain["salt"] or "", [MODEL])
                if key is not None:
                    held[key] = max(held.get(key, 0), len(chain["tokens"]))
            return held
        for chain in chains:
            text = decode(chain["tokens"])
            for key, beginning in BEGINNINGS.items():
                if text.startswith(beginning):
                    held[key] = max(held.get(key, 0), len(chain["tokens"]))
        return held

    def index(self, name: str) -> dict[PrefixKey, int]:
        """What the router believes about one engine."""
        assert self.router is not None
        now = time.monotonic()
        kv = self.router.state.kv
        found = {key: kv.holding(name, key, now) for key in BEGINNINGS}
        return {key: holding.tokens for key, holding in found.items() if holding is not None}

    async def agrees_within(self, seconds: float) -> None:
        """The index equals the true caches before ``seconds`` have passed."""
        end = time.monotonic() + seconds
        while True:
            truth = {name: await self.true_cache(name) for name in NAMES}
            belief = {name: self.index(name) for name in NAMES}
            if truth == belief:
                return
            assert time.monotonic() < end, {
                name: {
                    "true": {k.hex()[:6]: v for k, v in sorted(truth[name].items())},
                    "index": {k.hex()[:6]: v for k, v in sorted(belief[name].items())},
                }
                for name in NAMES
            }
            await asyncio.sleep(0.05)


class Load:
    """Clients that ask one after another until they are stopped."""

    def __init__(self, fleet: Fleet, clients: int = 6) -> None:
        self.fleet = fleet
        self.statuses: Counter[int] = Counter()
        self._clients = clients
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._run(n)) for n in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def served(self, count: int) -> None:
        """Wait until ``count`` more requests were answered with 200."""
        goal = self.statuses[200] + count
        async with asyncio.timeout(20):
            while self.statuses[200] < goal:
                await asyncio.sleep(0.01)

    async def _run(self, number: int) -> None:
        rng = random.Random(number)
        while not self._stop.is_set():
            status, _ = await self.fleet.ask(rng)
            self.statuses[status] += 1
            if status == 0:
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running_fleet(folder: Path, salt_secret: str | None = None) -> AsyncIterator[Fleet]:
    """Two engines, the listener and the router, ready; with a secret, salt echo is on."""
    ports = free_ports(8)
    engines = [
        EngineAddress(
            name=name,
            url=f"http://127.0.0.1:{ports[3 * n]}",
            zmq=f"tcp://127.0.0.1:{ports[3 * n + 1]}",
            replay=f"tcp://127.0.0.1:{ports[3 * n + 2]}",
        )
        for n, name in enumerate(NAMES)
    ]
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        contextlib.AsyncExitStack() as stack,
    ):
        fleet = Fleet(
            folder=folder,
            stack=stack,
            session=session,
            engines=engines,
            listen=f"127.0.0.1:{ports[6]}",
            port=ports[7],
            salt_secret=salt_secret,
        )
        for name in NAMES:
            await fleet.start_engine(name)
        await fleet.start_listener()
        await fleet.start_router()
        try:
            yield fleet
        finally:
            await fleet.stop_router()
