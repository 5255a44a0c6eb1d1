#!/usr/bin/env python3
"""The main job against real engines: two vLLM processes on the CPU, the listener and the router.

    e2e_real_engine.py [--work DIR]

Installs the engine and makes a tiny model and an adapter in DIR (default: a temporary folder; about
3 GB; a DIR is used again the next time), starts two engines, the listener and the router, and shows

1. the second request with one system prompt is routed `kv_aware` to the engine of the first;
2. after that engine's /reset_prefix_cache and one more request to it, it no longer is;
3. the same prompt to an adapter is not the base model's, and has a home of its own;
4. prompts that a small cache pushed out are no longer announced;
5. an engine that was killed comes back empty, and is followed again;
6. with salt echo the second request finds its engine, and no engine was asked for any text.

Extra package folders are taken from PIP_FIND_LINKS. Exit code 0 when all was seen, else 1.
Takes some minutes; the first engine binds its event socket, the second one connects.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from real_engines import ADAPTER, ENGINE_START, MODEL, Fleet, engines, prepare, say

from continuum_router.demo.child_process import ChildFailed
from continuum_router.demo.readiness import Probe, total

EVENT_WAIT = 20.0
SECRET = "the secret of this run, which is no secret"
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


@dataclass(frozen=True, slots=True)
class Client:
    """Asks the router and the engines, and reads the router's own counters."""

    http: aiohttp.ClientSession
    probe: Probe
    fleet: Fleet

    async def ask(
        self, system: str, user: str, *, model: str = MODEL, at: str | None = None
    ) -> tuple[str, str]:
        """One chat; gives the backend and the rule that the router names. `at`: an engine."""
        body = {
            "model": model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "max_tokens": 8,
            "temperature": 0,
        }
        base = self.fleet.router_url if at is None else self.fleet.addresses[at].url
        async with self.http.post(f"{base}/v1/chat/completions", json=body) as reply:
            told = await reply.json()
            if reply.status != 200:
                raise E2eFailed(f"status {reply.status}: {told}")
            backend = reply.headers.get("x-continuum-backend", "-")
            route = reply.headers.get("x-continuum-route", "-")
            return backend, route

    async def heard(self, backend: str, action: str) -> int:
        """How many events of this kind the router has from this backend."""
        found = await self.probe.metric(self.fleet.router_url, "continuum_kv_event_received_total")
        mine = {labels: n for labels, n in found.items() if ("backend", backend) in labels}
        return total(mine, "action", action)

    async def hears(
        self, backend: str, action: str, before: int, limit: float = EVENT_WAIT
    ) -> None:
        """Wait until the router has heard more of them than `before`."""
        for _ in range(int(limit / 0.1)):
            if await self.heard(backend, action) > before:
                return
            await asyncio.sleep(0.1)
        raise E2eFailed(f"no {action} from {backend} reached the router in {limit:.0f} s")

    async def source(self, name: str) -> dict[str, object]:
        """The listener's row of one engine."""
        async with self.http.get(f"{self.fleet.listener_url}/sources") as reply:
            rows = (await reply.json())["sources"]
        return next(row for row in rows if row["backend_name"] == name)

    async def becomes(self, name: str, true: Callable[[dict[str, object]], bool]) -> None:
        """Wait until the listener's row of an engine is as wanted."""
        row: dict[str, object] = {}
        for _ in range(int(EVENT_WAIT / 0.1)):
            row = await self.source(name)
            if true(row):
                return
            await asyncio.sleep(0.1)
        raise E2eFailed(f"the listener's row of {name} stays {row}")


async def finds_its_engine(
    client: Client, what: str, *, model: str = MODEL, system: str = SYSTEM
) -> str:
    """The second request of a prompt goes to the engine of the first; gives its name."""
    counts = {name: await client.heard(name, "cache_created") for name in client.fleet.addresses}
    holder, route = await client.ask(system, "When is low water on Friday?", model=model)
    say(f"{what}, first request:  backend {holder}, route {route}")
    if route.startswith("kv_aware"):
        raise E2eFailed("the first request was routed kv_aware: to whose prefix?")
    await client.hears(holder, "cache_created", counts[holder])
    for _ in range(int(EVENT_WAIT / 0.5)):
        backend, route = await client.ask(system, "And on Sunday, how high?", model=model)
        if route.startswith("kv_aware"):
            break
        await asyncio.sleep(0.5)
    say(f"{what}, next request:   backend {backend}, route {route}")
    if backend != holder or not route.startswith("kv_aware"):
        raise E2eFailed("the second request was not routed kv_aware to the engine of the first")
    return holder


async def reset(client: Client, holder: str) -> None:
    """2. A reset cache is believed to be empty."""
    before = await client.heard(holder, "cache_purged")
    url = client.fleet.addresses[holder].url
    async with client.http.post(f"{url}/reset_prefix_cache") as reply:
        say(f"reset of {holder}: {(await reply.text()).strip()}")
    await client.ask(UNRELATED, "How many beans are left?", at=holder)
    await client.hears(holder, "cache_purged", before)
    backend, route = await client.ask(SYSTEM, "Thank you. And on Monday?")
    say(f"after reset and one more request: backend {backend}, route {route}")
    if route.startswith("kv_aware"):
        raise E2eFailed("the request after the reset was still routed kv_aware")


async def evictions(client: Client) -> None:
    """4. The small cache of engine-2: what it pushes out is told, and its row agrees."""
    name = "engine-2"
    created = await client.heard(name, "cache_created")
    evicted = await client.heard(name, "cache_evicted")
    for number in range(12):
        system = f"Rule {number} of the seed library. {UNRELATED}"
        await client.ask(system, "What is missing?", at=name)
    await client.hears(name, "cache_created", created + 8)
    await client.hears(name, "cache_evicted", evicted + 4)
    before = int(str((await client.source(name))["blocks"]))
    prefixes = int(str((await client.source(name))["prefixes"]))
    seen = await client.heard(name, "cache_evicted") - evicted
    say(f"12 prompts in {name}: {seen} evicted, {prefixes} prefixes in {before} blocks are left")
    if before > 40 or prefixes > 11:
        raise E2eFailed("the listener believes in more than the engine can hold")


async def restart(client: Client) -> None:
    """5. An engine is killed and comes back; what it held is forgotten, what it gets is told."""
    name = "engine-1"
    await client.ask(SYSTEM, "Is the ferry late?", at=name)
    await client.becomes(name, lambda row: int(str(row["prefixes"])) > 0)
    purged, created = (
        await client.heard(name, "cache_purged"),
        await client.heard(name, "cache_created"),
    )
    await client.fleet.kill_engine(name)
    say(f"killed {name}; it starts again")
    await client.fleet.start_engine(name, run=2)
    await client.fleet.engine_up(name)
    await client.ask(SYSTEM, "Is the ferry late?", at=name)
    await client.hears(name, "cache_purged", purged, ENGINE_START)
    await client.hears(name, "cache_created", created)
    await client.becomes(name, lambda row: row["restarts"] == 1 and row["prefixes"] == 1)
    say(f"{name} is followed again: one restart, one prefix")


async def salts(client: Client) -> None:
    """6. The same with signed salts, by daemons that start anew: no engine is asked for text."""
    fleet = client.fleet
    await fleet.stop_daemons()
    for address in fleet.addresses.values():
        async with client.http.post(f"{address.url}/reset_prefix_cache"):
            pass
        # Too short for a block, so that the replay ends with an empty cache and nothing to read.
        short = {"model": MODEL, "prompt": "x", "max_tokens": 1}
        async with client.http.post(f"{address.url}/v1/completions", json=short):
            pass
    asked = {name: fleet.lines(name, "tokenize HTTP") for name in fleet.addresses}
    await fleet.start_daemons(SECRET)
    say(f"daemons with salt echo are ready; /tokenize and /detokenize calls so far: {asked}")
    await finds_its_engine(client, "salted", system=f"Salted. {SYSTEM}")
    await finds_its_engine(client, "salted adapter", model=ADAPTER, system=f"Salted. {SYSTEM}")
    if not all(asked.values()):
        raise E2eFailed("the engines' logs do not show the calls of the first listener")
    now = {name: fleet.lines(name, "tokenize HTTP") for name in fleet.addresses}
    say(f"after salted requests: {now}")
    rows = {name: await client.source(name) for name in fleet.addresses}
    if now != asked or any(row["attribution"] != "salt" for row in rows.values()):
        raise E2eFailed(f"an engine was asked for text, or salts attribute nothing: {rows}")


async def run(work: Path) -> None:
    """Everything, in order. Raises E2eFailed, ChildFailed."""
    python = await asyncio.to_thread(prepare, work)
    timeout = aiohttp.ClientTimeout(total=60.0)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        probe = Probe(http)
        async with engines(python, work, probe) as fleet:
            client = Client(http, probe, fleet)
            await fleet.start_daemons()
            say("the listener has learnt both chat templates; the router is ready")
            holder = await finds_its_engine(client, "base model")
            await reset(client, holder)
            await finds_its_engine(client, "adapter", model=ADAPTER)
            await evictions(client)
            await restart(client)
            await salts(client)
    say("seen: holders found, reset, adapter, evictions, a restarted engine, salts without text")


def main(argv: Sequence[str]) -> int:
    """Exit code 0: all was seen."""
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
