"""`continuum-router demo`: two simulated engines, the listener and the router in one command.

The same workload runs twice, each time with fresh engines: routed round robin, and routed by what
the engines say about their caches. Everything is a process of its own, as in production.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

import aiohttp

from continuum_router.demo.child_process import Child, ChildFailed, free_ports, running
from continuum_router.demo.fleet_config import EngineAddress, listener_config, router_config
from continuum_router.demo.readiness import Probe, total
from continuum_router.demo.report import Decisions, Measured, as_json, as_table, measure
from continuum_router.demo.workload import Conversation, WorkloadShape, conversations, requests_in
from continuum_router.demo.workload_driver import Client, TurnFailed, TurnResult, play

MODEL: Final = "demo"
ENGINES: Final = ("engine-1", "engine-2")
USERS: Final = 6
ENGINE_OPTIONS: Final = (
    *("--blocks", "700", "--block-size", "16", "--max-model-len", "4096"),
    *("--prefill-us-per-token", "250", "--decode-ms", "3"),
)
SHORT: Final = WorkloadShape(tenants=2, conversations=1, turns=2)
_START_TIMEOUT: Final = 30.0
# The two commands, run by this interpreter whether or not their scripts are on the PATH.
ROUTER: Final = (sys.executable, "-m", "continuum_router.cli")
LISTENER: Final = (
    *(sys.executable, "-c"),
    "import sys; from continuum_kv_listener.cli import main; sys.exit(main())",
)
EXAMPLE: Final = """examples:
  continuum-router demo                        play, then stay up until Ctrl-C
  continuum-router demo --once --json --seed 2 one JSON object on stdout
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet that is up: the router's address, how it routes, and all processes."""

    router_url: str
    kv_aware: bool
    children: tuple[Child, ...]

    def check(self) -> None:
        """Raise ChildFailed if one of the processes has ended."""
        for child in self.children:
            child.check()


class Progress:
    """Tells a person what goes on: a rewritten line on a terminal, few lines elsewhere.

    `finished` is True once the result is out: being stopped is then a good end.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self.finished = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self._out.write(("\r\x1b[K" if self._live else "") + text + "\n")
        self._out.flush()

    def turn(self, label: str, done: int, of: int, hit_ratio: float) -> None:
        """The workload went on by one request."""
        if not self._live and done % max(1, of // 4):
            return
        filled = 30 * done // of
        bar = "#" * filled + "." * (30 - filled)
        text = f"{label:<12} [{bar}] {done:>3}/{of}  hit ratio {hit_ratio:5.1%}"
        self._out.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._out.flush()


@contextlib.asynccontextmanager
async def fleet_up(folder: Path, probe: Probe, *, kv_aware: bool) -> AsyncIterator[Fleet]:
    """Start a fleet and take it down on leaving. Raises ChildFailed.

    Without `kv_aware` there is no listener and the router knows nothing of caches.
    """
    async with contextlib.AsyncExitStack() as stack:
        started = [await stack.enter_async_context(_engine(name, folder)) for name in ENGINES]
        engines = [
            await _engine_address(name, child) for name, child in zip(ENGINES, started, strict=True)
        ]
        listener_port, router_port = free_ports(2)
        children = list(started)
        events = None
        if kv_aware:
            events = f"http://127.0.0.1:{listener_port}"
            listen = f"127.0.0.1:{listener_port}"
            text = listener_config(engines, model=MODEL, listen=listen)
            argv = [*LISTENER, "--config", _write(folder, "listener", text)]
            listener = await stack.enter_async_context(running("listener", argv, logs=folder))
            children.append(listener)
        url = f"http://127.0.0.1:{router_port}"
        text = router_config(engines, model=MODEL, listen=f"127.0.0.1:{router_port}", events=events)
        argv = [*ROUTER, "serve", "--config", _write(folder, "router", text)]
        router = await stack.enter_async_context(running("router", argv, logs=folder))
        children.append(router)
        await router.wait_for(lambda: probe.ok(f"{url}/health/ready"), _START_TIMEOUT)
        if events is not None:
            count = len(engines)
            await listener.wait_for(lambda: probe.sources_ready(events, count), _START_TIMEOUT)
            await router.wait_for(lambda: probe.consumers_connected(url, count), _START_TIMEOUT)
        yield Fleet(router_url=url, kv_aware=kv_aware, children=tuple(children))


async def play_on(
    fleet: Fleet, probe: Probe, workload: Sequence[Conversation], label: str, progress: Progress
) -> Measured:
    """Play the workload on a fleet and measure it. Raises TurnFailed, ChildFailed."""
    results: list[TurnResult] = []
    asked = cached = 0
    of = requests_in(workload)

    def on_turn(result: TurnResult) -> None:
        nonlocal asked, cached
        results.append(result)
        asked += result.prompt_tokens
        cached += result.cached_tokens
        progress.turn(label, len(results), of, cached / asked)

    client = Client(
        url=fleet.router_url,
        model=MODEL,
        users=USERS,
        answer_tokens=WorkloadShape().answer_tokens,
        clock=time.monotonic,
    )
    await play(client, workload, on_turn)
    fleet.check()
    if not fleet.kv_aware:
        return measure(results)
    found = await probe.metric(fleet.router_url, "continuum_kv_index_routing_decisions_total")
    decisions = Decisions(
        kv_aware=total(found, "decision", "kv_aware"), fallback=total(found, "decision", "fallback")
    )
    return measure(results, decisions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one demo is to do: which workload, how to print the result, whether to stay up."""

    seed: int
    json_out: bool
    stay: bool
    shape: WorkloadShape = field(default_factory=WorkloadShape)


async def demo(folder: Path, plan: Plan, progress: Progress) -> None:
    """Both runs and the result on stdout; with `stay`, then wait until cancelled.

    Raises ChildFailed, TurnFailed.
    """
    workload = conversations(plan.seed, plan.shape)
    timeout = aiohttp.ClientTimeout(total=2.0)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        probe = Probe(http)
        progress.say("round robin: starting two engines and the router")
        place = _subfolder(folder, "round_robin")
        async with fleet_up(place, probe, kv_aware=False) as fleet:
            round_robin = await play_on(fleet, probe, workload, "round robin", progress)
        progress.say("KV-aware: starting two engines, the listener and the router")
        place = _subfolder(folder, "kv_aware")
        async with fleet_up(place, probe, kv_aware=True) as fleet:
            kv_aware = await play_on(fleet, probe, workload, "KV-aware", progress)
            progress.say("")
            if plan.json_out:
                print(json.dumps(as_json(plan.seed, round_robin, kv_aware)), flush=True)
            else:
                print(as_table(round_robin, kv_aware), flush=True)
            progress.finished = True
            if plan.stay:
                progress.say(_invitation(fleet.router_url))
                await _watch(fleet)


def parser() -> argparse.ArgumentParser:
    """The command line of `demo`."""
    args = argparse.ArgumentParser(
        prog="continuum-router demo",
        description="Two simulated engines, the listener and the router: round robin against "
        "KV-aware routing on one workload.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    args.add_argument("--once", action="store_true", help="end after the result")
    args.add_argument("--json", action="store_true", help="print the result as one JSON object")
    args.add_argument("--seed", type=int, default=1, help="which workload (default 1)")
    return args


def main(argv: Sequence[str]) -> int:
    """Run the demo. Exit codes: 0 good, 1 a process or a request failed, 130 stopped early.

    Usage errors end with SystemExit(2), as argparse does it.
    """
    arguments = parser().parse_args(argv)
    stay = sys.stdin.isatty() and sys.stdout.isatty() and not arguments.once
    plan = Plan(seed=arguments.seed, json_out=arguments.json, stay=stay)
    progress = Progress(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="continuum-demo-") as folder:
        return asyncio.run(_main(Path(folder), plan, progress))


async def _main(folder: Path, plan: Plan, progress: Progress) -> int:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _cancel, task)
    try:
        await demo(folder, plan, progress)
    except (ChildFailed, TurnFailed, OSError) as failure:
        progress.say(f"demo: {failure}")
        return 1
    except asyncio.CancelledError:
        if progress.finished:
            return 0
        progress.say("demo: stopped")
        return 130
    return 0


def _cancel(task: "asyncio.Task[object] | None") -> None:
    """Once only: a second Ctrl-C must not interrupt the stopping of the children."""
    if task is not None and not task.cancelling():
        task.cancel()


def _engine(name: str, folder: Path) -> contextlib.AbstractAsyncContextManager[Child]:
    options = ("--port", "0", "--model", MODEL, "--zmq", "tcp://127.0.0.1:*")
    replay = ("--replay", "tcp://127.0.0.1:*")
    argv = [*ROUTER, "engine-sim", *options, *replay, *ENGINE_OPTIONS]
    return running(name, argv, logs=folder)


async def _engine_address(name: str, child: Child) -> EngineAddress:
    ready = json.loads(await child.first_line(_START_TIMEOUT))
    return EngineAddress(name=name, url=ready["url"], zmq=ready["zmq"], replay=ready["replay"])


def _subfolder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def _write(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def _invitation(url: str) -> str:
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}
    )
    return (
        "\nThe KV-aware fleet stays up; Ctrl-C ends it. Try it, and look at x-continuum-route:\n"
        f"  curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"    -d '{body}'\n"
    )


async def _watch(fleet: Fleet) -> None:
    while True:
        fleet.check()
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
