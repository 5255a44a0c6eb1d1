#!/usr/bin/env python3
"""The router's own routing classes in a fleet simulator, beside what others do.

    bench_routing.py                    equality with the source's tiers, then the table
    bench_routing.py --same-choice      only the equality
    bench_routing.py --grid [--trace agentic --rho 0.85 --seeds 1 --policies cost,chain_cost]

The simulator is the one in ../shared/sim (--sim); the router's classes reach it through
tests/bench/routesim_adapter.py. Equality: the source's formula decides and the product, which is
told the same, is asked beside it; exact ties between engines are counted apart. The exit code is 1
when a choice differs.
"""

import argparse
import importlib
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
SAME = {"Tier1Policy": "seed_tier1", "Tier4Policy": "seed_tier4"}
WORKLOADS = ("conversation", "synthetic", "agentic", "tenants")
SHORT = {
    "tier1": "Tier1Policy",
    "tier4": "Tier4Policy",
    "tier4_default": "Tier4DefaultPolicy",
    "cost": "CostPolicy",
    "cost_no_events": "CostNoEventsPolicy",
    "cost_blind": "CostBlindPolicy",
    "cost_total": "CostTotalPolicy",
    "cost_total_room": "CostTotalRoomPolicy",
}
LATE = (0.05, 0.5)
"""Seconds that KV events take, lowest and highest."""


class Shadow:
    """The reference decides; the product sees the same and is asked as well."""

    wants_events = True

    def __init__(self, reference: Any, product: Any) -> None:
        self.reference, self.product = reference, product
        self.asked = self.ties = 0
        self.differ: list[tuple[int, int, int]] = []

    def choose(self, request: Any, state: Any) -> int:
        """The reference's choice; the product's is compared with it."""
        chosen: int = self.reference.choose(request, state)
        other: int = self.product.choose(request, state)
        self.asked += 1
        if other != chosen:
            if self.tied(request, state, chosen, other):
                self.ties += 1
            else:
                self.differ.append((request.rid, chosen, other))
        return chosen

    def tied(self, request: Any, state: Any, one: int, other: int) -> bool:
        """Whether the reference's own formula gives both engines the same score."""
        kept = getattr(self.reference, "cache", {}).get(request.key)
        if kept is None:
            return False
        _, held, load = kept
        if one not in held or other not in held:
            return False
        top, most, weight = max(held.values()), max(load) or 1, self.reference.w

        def score(engine: int) -> float:
            overlap, idle = held[engine] / top, 1 - load[engine] / most
            return float(weight[0] * overlap + weight[1] * idle + weight[2] * state.success[engine])

        return score(one) == score(other)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def both(*args: Any) -> None:
            getattr(self.reference, name)(*args)
            getattr(self.product, name)(*args)

        return both


class Bench:
    """The simulator and the adapter, loaded."""

    def __init__(self, sim: Path) -> None:
        for path in (sim, PROJECT / "tests" / "bench"):
            sys.path.insert(0, str(path))
        self.run: ModuleType = importlib.import_module("routesim.run")
        self.fleet: ModuleType = importlib.import_module("routesim.fleet")
        self.adapter: ModuleType = importlib.import_module("routesim_adapter")
        self._loads: dict[tuple[str, int, float, int], Any] = {}

    def workload(self, trace: str, engines: int, rho: float, seed: int) -> Any:
        """Requests and engine profile; only the last one is kept."""
        key = (trace, engines, rho, seed)
        if key not in self._loads:
            self._loads = {key: self.run.workload(trace, engines, rho, seed)}
        return self._loads[key]

    def policy(self, name: str, engines: int, seed: int, capacity: int) -> Any:
        """One of the adapter's or of the simulator's policies, ready to run."""
        own = getattr(self.adapter, SHORT.get(name, name), None)
        made = (own or self.run.load_policy(name))(engines, random.Random(seed * 7919 + 1))
        if hasattr(made, "set_capacity"):  # engines publish it
            made.set_capacity(capacity)
        return made

    def simulate(self, policy: Any, trace: str, engines: int, rho: float, seed: int) -> Any:
        """One run."""
        requests, _, profile = self.workload(trace, engines, rho, seed)
        sim = self.fleet.Sim(
            requests, engines, policy, profile, delay=LATE, rng=random.Random(seed)
        )
        return sim.run()

    def cell(self, name: str, trace: str, engines: int, rho: float, seeds: Sequence[int]) -> Any:
        """Averages over seeds of one policy in one cell."""
        rows = []
        for seed in seeds:
            _, _, profile = self.workload(trace, engines, rho, seed)
            policy = self.policy(name, engines, seed, profile.cap)
            rows.append(self.simulate(policy, trace, engines, rho, seed))
        keys = ("hit", "mean", "p50", "p90", "p99", "imb")
        return {key: statistics.fmean(getattr(row, key) for row in rows) for key in keys}


def same_choice(bench: Bench, seed: int) -> bool:
    """Print how often the product decides as the source does; whether it always did."""
    good = True
    for own, source in SAME.items():
        bench.workload("tenants", 8, 0.5, seed)
        shadow = Shadow(bench.policy(source, 8, seed, 0), bench.policy(own, 8, seed, 0))
        bench.simulate(shadow, "tenants", 8, 0.5, seed)
        print(
            f"{own} against {source}, tenants at rho 0.5, seed {seed}: {shadow.asked} choices, "
            f"{len(shadow.differ)} differ, {shadow.ties} exact ties"
        )
        good = good and not shadow.differ
    return good


def grid(bench: Bench, options: argparse.Namespace) -> None:
    """Print the table, one row a policy and cell."""
    print("| workload | rho | policy | hit | mean s | p50 / p90 / p99 s | max/mean |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for trace in options.trace:
        for rho in options.rho:
            cells: dict[str, Mapping[str, float]] = {}
            for name in options.policies:
                row = bench.cell(name, trace, options.engines, rho, options.seeds)
                cells[name] = row
                print(
                    f"| {trace} | {rho} | {name} | {row['hit'] * 100:.1f} % | {row['mean']:.3f} | "
                    f"{row['p50']:.2f} / {row['p90']:.2f} / {row['p99']:.2f} | {row['imb']:.2f} |",
                    flush=True,
                )


def main() -> int:
    """Read the options, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sim", type=Path, default=PROJECT.parent / "shared" / "sim")
    parser.add_argument("--same-choice", action="store_true")
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--trace", type=lambda text: text.split(","), default=WORKLOADS)
    parser.add_argument(
        "--rho", type=lambda text: [float(word) for word in text.split(",")], default=(0.7, 0.85)
    )
    parser.add_argument(
        "--seeds", type=lambda text: [int(word) for word in text.split(",")], default=(1, 2, 3)
    )
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        default=("round_robin", "tier1", "tier4_default", "cost", "cost_no_events", "chain_cost"),
    )
    options = parser.parse_args()
    if not (options.sim / "routesim").is_dir():
        sys.exit(f"no simulator at {options.sim}; name its folder with --sim")
    bench = Bench(options.sim)
    both = not options.same_choice and not options.grid
    good = True
    if options.same_choice or both:
        for seed in options.seeds:
            good = same_choice(bench, seed) and good
    if options.grid or both:
        grid(bench, options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
