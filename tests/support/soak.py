"""A router under everything at once: streams, aborts, reloads, backends that are killed.

    python -m support.soak [--seconds 600] [--fast-path true|false]

Three simulated engines and the router are processes. Every ten seconds the file changes and SIGHUP
comes, every fifteen a backend is killed and started again, clients leave at random places. At the
end: no request was lost that could be tried again, every gauge is at zero, no descriptor is left,
and resident memory was flat in the last half. Prints what was seen; the exit code says whether it
was good.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from continuum_router.demo.child_process import Child, free_ports, running

STREAMS = 64
PLAIN = 6
ENGINES = 3
RELOAD_EVERY = 10.0
KILL_EVERY = 15.0
ABORT_SHARE = 0.2
THINK = 0.4
"""Seconds that a client waits at most between two requests: the load is well below the limit."""


@dataclass
class Seen:
    """What the clients met. `lost` are requests that had to succeed and did not."""

    whole: int = 0
    broken: int = 0
    aborted: int = 0
    lost: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    reloads: int = 0
    kills: int = 0


@dataclass
class Verdict:
    """What the soak ended in; good when `faults` is empty."""

    seen: Seen
    faults: list[str]

    def text(self) -> str:
        """The report."""
        seen = self.seen
        half = len(seen.memory) // 2
        growth = _late_growth(seen.memory)
        lines = [
            f"requests  {seen.whole} whole, {seen.broken} streams broken by a killed backend, "
            f"{seen.aborted} aborted by their clients, {len(seen.lost)} lost",
            f"statuses  {dict(seen.statuses)}",
            f"events    {seen.reloads} reloads, {seen.kills} kills",
            f"memory    {max(seen.memory[:half] or [0]):.1f} MiB at most in the first half, "
            f"{growth:+.1f} MiB over the last half",
            *(f"FAULT     {fault}" for fault in self.faults),
        ]
        return "\n".join(lines)


class Soak:
    """One run; `fast` is the way in."""

    def __init__(self, folder: Path, *, fast: bool, rng: random.Random) -> None:
        self._folder = folder
        self._fast = fast
        self._rng = rng
        self._ports = free_ports(ENGINES + 1)
        self._children: dict[str, tuple[Child, contextlib.AsyncExitStack]] = {}
        self._stop = asyncio.Event()
        self._turn = 0
        self.seen = Seen()

    async def run(self, seconds: float) -> Verdict:
        """Everything, from the first process to the verdict."""
        for number in range(ENGINES):
            await self._start_engine(number)
        self._write_config()
        await self._start("router", self._router_argv(), self._ports[-1])
        fresh = self._descriptors()
        try:
            await self._load(seconds)
            await asyncio.sleep(2)
            return Verdict(self.seen, await self._faults(fresh))
        finally:
            for name in list(self._children):
                await self._kill(name)

    # -- processes --------------------------------------------------------------------------

    async def _start_engine(self, number: int) -> None:
        argv = (
            *(sys.executable, "-m", "continuum_router.cli", "engine-sim", "--model", "m"),
            *("--port", str(self._ports[number]), "--decode-ms", "4"),
            *("--prefill-us-per-token", "10", "--max-num-seqs", "256"),
        )
        await self._start(f"e{number}", argv, self._ports[number])

    def _router_argv(self) -> tuple[str, ...]:
        path = str(self._folder / "router.yaml")
        return (sys.executable, "-m", "continuum_router.cli", "serve", "--config", path)

    async def _start(self, name: str, argv: tuple[str, ...], port: int) -> None:
        stack = contextlib.AsyncExitStack()
        env = {**os.environ, "CONTINUUM_LOG_LEVEL": "error"}
        child = await stack.enter_async_context(running(name, argv, logs=self._folder, env=env))
        self._children[name] = (child, stack)

        async def up() -> bool | None:
            try:
                async with aiohttp.ClientSession() as session:
                    async with session.get(f"http://127.0.0.1:{port}/health") as answer:
                        return answer.status == 200 or None
            except aiohttp.ClientConnectionError:
                return None

        await child.wait_for(up, 30)

    async def _kill(self, name: str) -> None:
        child, stack = self._children.pop(name)
        child.signal(signal.SIGKILL)
        await child.ended(10)
        await stack.aclose()

    def _write_config(self) -> None:
        """Another valid file each time: order, weights, strategy and retries change."""
        self._turn += 1
        order = list(range(ENGINES))
        self._rng.shuffle(order)
        strategy = ("PrefixAwareHash", "RoundRobin", "LeastLatency")[self._turn % 3]
        rows = "".join(
            f"- {{name: e{n}, type: vllm, url: 'http://127.0.0.1:{self._ports[n]}', models: [m], "
            f"weight: {1 + self._turn % 2}}}\n"
            for n in order
        )
        text = (
            f"server: {{listen: '127.0.0.1:{self._ports[-1]}', watch_config: false, "
            f"fast_path: {str(self._fast).lower()}}}\n"
            f"backends:\n{rows}selection_strategy: {strategy}\n"
            "prefix_routing: {enabled: true}\n"
            "health_checks: {interval: 1s, timeout: 1s}\n"
            f"retry: {{max_attempts: {3 + self._turn % 2}, initial_delay: 50ms}}\n"
        )
        (self._folder / "router.yaml").write_text(text)

    # -- load -------------------------------------------------------------------------------

    async def _load(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            tasks = [loop.create_task(self._streams(session)) for _ in range(STREAMS)]
            tasks += [loop.create_task(self._plain(session)) for _ in range(PLAIN)]
            tasks += [
                loop.create_task(self._every(RELOAD_EVERY, self._reload)),
                loop.create_task(self._every(KILL_EVERY, self._kill_one)),
                loop.create_task(self._every(0.5, self._weigh)),
            ]
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            self._stop.set()
            await asyncio.gather(*tasks)

    async def _every(self, seconds: float, act) -> None:  # type: ignore[no-untyped-def]
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)
                return
            await act()

    async def _reload(self) -> None:
        self._write_config()
        self._children["router"][0].signal(signal.SIGHUP)
        self.seen.reloads += 1

    async def _kill_one(self) -> None:
        number = self.seen.kills % ENGINES
        self.seen.kills += 1
        await self._kill(f"e{number}")
        await asyncio.sleep(1.5)
        await self._start_engine(number)

    async def _weigh(self) -> None:
        status = Path(f"/proc/{self._children['router'][0].pid}/status").read_text("ascii")
        (row,) = [row for row in status.splitlines() if row.startswith("VmRSS:")]
        self.seen.memory.append(int(row.split()[1]) / 1024)

    def _body(self, *, stream: bool) -> dict[str, object]:
        system = f"You are assistant number {self._rng.randrange(8)}. " * 20
        question = f"question {self._rng.random()}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return {"model": "m", "stream": stream, "max_tokens": 20, "messages": messages}

    async def _streams(self, session: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            await asyncio.sleep(self._rng.random() * THINK)
            leave_after = self._rng.randrange(6) if self._rng.random() < ABORT_SHARE else None
            try:
                async with session.post(self._url, json=self._body(stream=True)) as answer:
                    await self._read(answer, leave_after)
            except aiohttp.ClientError as err:
                self.seen.lost.append(f"stream: {type(err).__name__}")

    async def _read(self, answer: aiohttp.ClientResponse, leave_after: int | None) -> None:
        seen = self.seen
        seen.statuses[answer.status] += 1
        if answer.status != 200:
            seen.lost.append(f"stream: status {answer.status}")
            return
        got, pieces = bytearray(), 0
        async for piece in answer.content.iter_any():
            got += piece
            pieces += 1
            if leave_after is not None and pieces > leave_after:
                seen.aborted += 1
                answer.close()
                return
        if got.endswith(b"data: [DONE]\n\n"):
            seen.whole += 1
        elif b'"error"' in got:
            seen.broken += 1
        else:
            seen.lost.append("stream: ended without [DONE] or an error event")

    async def _plain(self, session: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            await asyncio.sleep(self._rng.random() * THINK)
            try:
                async with session.post(self._url, json=self._body(stream=False)) as answer:
                    self.seen.statuses[answer.status] += 1
                    json.loads(await answer.read())
                    if answer.status == 200:
                        self.seen.whole += 1
                    else:
                        self.seen.lost.append(f"plain: status {answer.status}")
            except aiohttp.ClientError as err:
                self.seen.lost.append(f"plain: {type(err).__name__}")

    # -- verdict ----------------------------------------------------------------------------

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._ports[-1]}/v1/chat/completions"

    def _descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._children['router'][0].pid}/fd"))

    async def _faults(self, fresh: int) -> list[str]:
        faults = [f"lost: {what} ({count})" for what, count in Counter(self.seen.lost).items()]
        url = f"http://127.0.0.1:{self._ports[-1]}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.text()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                idle = sample.name in {
                    "continuum_backend_in_flight",
                    "continuum_prefix_routing_backend_distribution",
                } or (
                    sample.name == "continuum_upstream_connections"
                    and sample.labels["state"] != "idle"
                )
                if idle and sample.value != 0:
                    faults.append(f"{sample.name}{sample.labels} is {sample.value}")
                if sample.name == "continuum_task_crashes_total" and sample.value:
                    faults.append(f"{sample.value} tasks crashed")
                if sample.name == "continuum_config_last_reload_success" and sample.value != 1:
                    faults.append("the last reload failed")
        await asyncio.sleep(6)  # kept connections to backends are closed after some idle seconds
        left = self._descriptors() - fresh
        if left > 4:
            faults.append(f"{left} descriptors are left")
        growth = _late_growth(self.seen.memory)
        if growth > 4:
            faults.append(f"memory grew by {growth:.1f} MiB in the last half")
        return faults


def _late_growth(memory: list[float]) -> float:
    """MiB by which the last quarter's median lies above that of the quarter before."""
    quarter = len(memory) // 4
    if not quarter:
        return 0.0
    last, before = memory[-quarter:], memory[-2 * quarter : -quarter]
    return statistics.median(last) - statistics.median(before)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--fast-path", choices=("true", "false"), default="true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), fast=options.fast_path == "true", rng=random.Random(options.seed))
        verdict = asyncio.run(soak.run(options.seconds))
    print(verdict.text())
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
