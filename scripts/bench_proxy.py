#!/usr/bin/env python3
"""The router beside its peers, in one run: both its ways, other routers, plain reverse proxies.

    bench_proxy.py [--rounds 3] [--only fast,general,vllm-rr] [--cases c1,c16] [--json ROWS]

Every target stands alone on one core in front of two mock backends; backends and load share the
other core. Rounds are the outer loop, so that drift of the machine hits all targets alike. Prints
one table a case, then the figures of the design's "must" and "aim" columns with their verdicts.

The load, the mock backends and the peers' command lines come from the measuring tools in
../shared/bench (--tools). Peers that are missing are installed into --venvs from the configured
package index, one environment each; nginx and haproxy are measured when they are installed.
With --no-peers only the router is measured. The exit code is 0 unless a row failed.
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
PEERS: Mapping[str, str] = {
    "sgl": "sglang-router==0.3.2",
    "vllmr": "vllm-router==0.1.17",
    "litellm": "litellm[proxy]",
}
# What the peers' file of the tools names, and what each needs.
NEEDS: Mapping[str, str] = {
    "nginx": "nginx",
    "haproxy": "haproxy",
    "sglang-rr": "sgl",
    "sglang-cache": "sgl",
    "vllm-rr": "vllmr",
    "vllm-cache": "vllmr",
    "litellm": "litellm",
}
# Beside the tools' own cases: a lone stream (its first chunk), and many open ones (memory).
EXTRA_CASES: Mapping[str, tuple[str, float]] = {
    "first": ("-c 1 -s 4 -i 1000", 3),
    "open1000": ("-c 1000 -s 80 -i 100000 -g 2000", 10),
}
PLAIN_CASES = ("c1", "c16", "c64")
ROUTER = """\
server: {{listen: "127.0.0.1:{port}", fast_path: {fast}}}
backends:
  - {{name: b1, type: vllm, url: "http://127.0.0.1:9101", models: [mock-model]}}
  - {{name: b2, type: vllm, url: "http://127.0.0.1:9102", models: [mock-model]}}
selection_strategy: PrefixAwareHash
prefix_routing: {{enabled: true}}
logging: {{level: warn}}
"""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One line of the design's table: a figure of ours against the peers' in the same rounds."""

    what: str
    ours: float
    theirs: float
    must: float
    aim: float
    ratio: bool = True

    def line(self) -> str:
        """The row of the verdict table."""
        figure = self.ours / self.theirs if self.ratio else self.ours - self.theirs
        verdict = "aim" if figure <= self.aim else "must" if figure <= self.must else "MISSED"
        return (
            f"| {self.what} | {self.ours:,.2f} | {self.theirs:,.2f} | {figure:,.2f} "
            f"| {self.must:g} | {self.aim:g} | {verdict} |"
        )


def load_tools(folder: Path) -> ModuleType:
    """The measuring tools as a module, with our extra cases among theirs."""
    spec = importlib.util.spec_from_file_location("proxy_bench_tools", folder / "bench.py")
    if spec is None or spec.loader is None or not (folder / "bench.py").is_file():
        raise SystemExit(f"{folder}: no bench.py there; give its folder with --tools")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.CASES.update(EXTRA_CASES)
    return module


def install_peers(folder: Path, names: Iterable[str]) -> None:
    """One virtual environment a peer, kept for the next run."""
    for name in sorted(set(names)):
        python = folder / name / "bin" / "python"
        if (folder / name / ".complete").exists():
            continue
        print(f"installing {PEERS[name]} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", PEERS[name]], check=True)
        (folder / name / ".complete").touch()


def our_targets(work: Path) -> list[Row]:
    """The router of this checkout, the general way and the fast path."""
    command = Path(sys.executable).parent / "continuum-router"
    found = []
    for name, port, fast in (("general", 18071, "false"), ("fast", 18072, "true")):
        config = work / f"router-{name}.yaml"
        config.write_text(ROUTER.format(port=port, fast=fast))
        cmd = [str(command), "serve", "--config", str(config)]
        found.append({"name": name, "port": port, "cmd": cmd, "settle": 1})
    return found


def targets(options: argparse.Namespace, work: Path) -> list[Row]:
    """What is measured, in the order of the tables."""
    ours = our_targets(work)
    listed = json.loads((options.tools / "targets-peers.json").read_text())
    known = [row for row in listed if row["name"] == "direct"]
    if not options.no_peers:
        for row in listed:
            need = NEEDS.get(row["name"])
            if need is None or (need not in PEERS and shutil.which(need) is None):
                continue
            known.append(row)
    chosen = [*known, *ours]
    if options.only:
        wanted = options.only.split(",")
        missing = set(wanted) - {row["name"] for row in chosen}
        if missing:
            raise SystemExit(
                f"--only: not known or not installed here: {', '.join(sorted(missing))}"
            )
        chosen = [row for row in chosen if row["name"] in wanted]
    install_peers(
        options.venvs, (NEEDS[r["name"]] for r in chosen if NEEDS.get(r["name"]) in PEERS)
    )
    return chosen


def measure_one(tools: ModuleType, options: argparse.Namespace, target: Row) -> list[Row]:
    """Start one target, note its memory before any load, run all cases, stop it."""
    if not target.get("cmd"):
        return list(tools.measure(options, target["name"], target["port"], 0, 1))
    log = os.path.join(options.work, f"{target['name']}.log")
    with tools.process(
        options, target["cmd"], options.proxy_cpu, log, target.get("env"), target.get("cwd")
    ) as running:
        health = target.get("health", "/health")
        up = tools.wait_up(target["port"], health, target.get("timeout", 60), running)
        error = tools.wait_works(target["port"]) if up else "did not start"
        if error:
            cases = options.cases.split(",")
            return [{"name": target["name"], "case": case, "failed": error} for case in cases]
        time.sleep(target.get("settle", 0.5))
        idle = tools.usage(running.pid)[2] / 2**20
        rows = tools.measure(
            options, target["name"], target["port"], running.pid, 1, target.get("warm")
        )
    return [{**row, "idle_mb": idle} for row in rows]


def run(tools: ModuleType, options: argparse.Namespace, chosen: Sequence[Row]) -> list[Row]:
    """All rounds of all targets; raw rows go to --json as they come."""
    rows: list[Row] = []
    mock = [os.path.join(options.work, "mockllm"), "9101", "9102"]
    for number in range(options.rounds):
        log = os.path.join(options.work, "mock.log")
        with tools.process(options, mock, options.load_cpu, log):
            if not tools.wait_up(9101, "/health", 5):
                raise SystemExit("the mock backend did not start; are ports 9101 and 9102 free?")
            for target in chosen:
                new = [{**row, "round": number} for row in measure_one(tools, options, target)]
                rows += new
                said = (f"{r['case']}={r.get('failed') or round(r['rps'])}" for r in new)
                print(
                    f"round {number} {target['name']}: {' '.join(said)}",
                    file=sys.stderr,
                    flush=True,
                )
                if options.json:
                    with open(options.json, "a") as raw:
                        raw.writelines(json.dumps(row) + "\n" for row in new)
    return rows


def median(rows: Iterable[Row], name: str, case: str, key: str) -> float | None:
    """The median over the rounds, None when that target or case was not measured."""
    of_case = (row for row in rows if row["name"] == name and row["case"] == case)
    found = [row[key] for row in of_case if row.get(key) is not None]
    return statistics.median(found) if found else None


def best(rows: Sequence[Row], names: Sequence[str], case: str, key: str) -> float | None:
    """The smallest of some targets' medians."""
    found = [value for n in names if (value := median(rows, n, case, key)) is not None]
    return min(found) if found else None


def bounds(rows: Sequence[Row], ours: str) -> list[Bound]:
    """The lines of the design's table which these rows can answer."""
    cheap = ("sglang-rr", "vllm-rr")
    cached = ("sglang-cache", "vllm-cache")
    direct = {key: median(rows, "direct", "c16", key) or 0.0 for key in ("p50", "p99")}
    wanted = (
        ("CPU us/request, c16, vllm-rr", "c16", "cpu_us", ("vllm-rr",), 0.85, 0.65),
        ("CPU us/request, c16, cheaper cache_aware", "c16", "cpu_us", cached, 0.5, 0.35),
        ("CPU us/chunk, fan512, better of the two", "fan512", "chunk_us", cheap, 1.0, 0.85),
        ("added p50 us, c16, better of the two", "c16", "p50", cheap, 1.0, 0.8),
        ("added p99 us, c16, better of the two", "c16", "p99", cheap, 1.0, 0.8),
    )
    found = []
    for what, case, key, names, must, aim in wanted:
        mine, theirs = median(rows, ours, case, key), best(rows, names, case, key)
        if mine is None or theirs is None:
            continue
        floor = direct.get(key, 0.0)
        found.append(Bound(what=what, ours=mine - floor, theirs=theirs - floor, must=must, aim=aim))
    first, plain = median(rows, ours, "first", "ttfb50"), median(rows, "direct", "first", "ttfb50")
    if first is not None and plain is not None:
        found.append(
            Bound(
                what="first chunk, added ms",
                ours=first / 1e3,
                theirs=plain / 1e3,
                must=2.0,
                aim=0.3,
                ratio=False,
            )
        )
    for what, case, key, must, aim in (
        ("RSS idle, MB", next((r["case"] for r in rows), ""), "idle_mb", 80, 50),
        ("RSS with 1,000 open streams, MB", "open1000", "rss_mb", 160, 90),
    ):
        mine = median(rows, ours, case, key)
        if mine is not None:
            found.append(Bound(what=what, ours=mine, theirs=0.0, must=must, aim=aim, ratio=False))
    return found


def print_memory(rows: Sequence[Row]) -> None:
    """Resident memory of every target before any load and after 1,000 open streams."""
    print("\n### memory of the process tree\n")
    print("| target | RSS idle MB | RSS after 1,000 open streams MB |\n|---|--:|--:|")
    for name in dict.fromkeys(row["name"] for row in rows if "idle_mb" in row):
        case = next(row["case"] for row in rows if row["name"] == name)
        idle, full = median(rows, name, case, "idle_mb"), median(rows, name, "open1000", "rss_mb")
        print(f"| {name} | {idle or 0:,.0f} | {'-' if full is None else f'{full:,.0f}'} |")


def print_verdicts(rows: Sequence[Row]) -> None:
    """The design's table for both ways of the router."""
    for name in ("fast", "general"):
        lines = bounds(rows, name)
        if not lines:
            continue
        print(f"\n### {name}: against the bounds\n")
        print("| figure | ours | theirs | ratio or difference | must | aim | verdict |")
        print("|---|--:|--:|--:|--:|--:|---|")
        for line in lines:
            print(line.line())


def parse() -> argparse.Namespace:
    """The command line."""
    build = PROJECT / "build" / "bench"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", type=Path, default=PROJECT.parent / "shared" / "bench")
    parser.add_argument("--venvs", type=Path, default=build / "venvs", help="peers' environments")
    parser.add_argument("--work", default=str(build / "work"), help="built programs and logs")
    parser.add_argument("--only", help="names of targets, with commas")
    parser.add_argument("--no-peers", action="store_true", help="the router alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="c1,c16,c64,first,paced,fan512,open1000")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies each case's seconds")
    parser.add_argument("--json", help="append the raw rows here")
    parser.add_argument("--load-cpu", default="0")
    parser.add_argument("--proxy-cpu", default="1")
    parser.add_argument("--nice", type=int, default=0, help="niceness of all parts")
    options = parser.parse_args()
    options.warm, options.bodies, options.header = 1.0, None, None
    return options


def main() -> int:
    """Measure and print; 1 when a row failed or an answer was bad."""
    options = parse()
    tools = load_tools(options.tools)
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    options.venvs.mkdir(parents=True, exist_ok=True)
    os.environ.update(HERE=str(options.tools), WORK=options.work, VENVS=str(options.venvs))
    tools.build(options.work)
    chosen = targets(options, work)
    if options.nice:
        tools.own_group(options.nice)
    rows = run(tools, options, tools.expand(chosen))
    tools.table(rows)
    print_memory(rows)
    print_verdicts(rows)
    ours = [row for row in rows if row["name"] in {"fast", "general"}]
    return int(any("failed" in row or row["bad"] + row["io_err"] for row in ours))


if __name__ == "__main__":
    raise SystemExit(main())
