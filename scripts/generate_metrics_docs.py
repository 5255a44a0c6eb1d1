"""Write docs/metrics.md from the registries that the two daemons really build.

python scripts/generate_metrics_docs.py            writes docs/metrics.md
python scripts/generate_metrics_docs.py --check    exit 1 when the file is stale
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from continuum_kv_listener.assemble import Listener
from continuum_kv_listener.config import parse_config as parse_listener
from continuum_kv_listener.world import World
from continuum_router.assemble import build_state, stop_state
from continuum_router.config.root import parse_config as parse_router
from continuum_shared.logs import LogQueue, LogSettings
from continuum_shared.metrics import Metrics

TARGET = Path(__file__).parent.parent / "docs" / "metrics.md"

ROUTER = """
backends: [{name: b, url: "http://127.0.0.1:1"}]
prefix_routing: {enabled: true}
kv_cache_index:
  enabled: true
  event_sources: [{backend_name: b, endpoint: "http://127.0.0.1:1/events/b"}]
"""
LISTENER = """
sources:
  - {backend_name: b, engine: vllm, zmq_endpoint: "tcp://127.0.0.1:1", model: m,
     detokenize_endpoint: "http://127.0.0.1:1/detokenize"}
"""
HEAD = """# Metrics

Written by `make docs` from the registries that the daemons build; do not edit. Label values are
members of closed sets or names from the configuration. A histogram has the usual `_bucket`, `_sum`
and `_count` series.
"""


def metrics_of(registry: CollectorRegistry) -> Iterable[Metric]:
    return sorted(registry.collect(), key=lambda metric: metric.name)


def closed_values(metrics: Metrics, name: str) -> dict[str, str]:
    """Label -> its possible values, for labels with a closed set."""
    family = metrics.family(name)
    if family is None:
        return {}
    return {
        label: ", ".join(f"`{value}`" for value in domain)
        for label, domain in zip(family.labels, family.domains, strict=True)
        if domain is not None
    }


def table(title: str, metrics: Metrics) -> str:
    lines = [f"\n## {title}\n", "| name | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in metrics_of(metrics.registry):
        name = metric.name + ("_total" if metric.type == "counter" else "")
        known = closed_values(metrics, name)
        labels = "; ".join(
            f"`{label}`" + (f": {known[label]}" if label in known else "")
            for label in metric._labelnames
        )
        text = metric.documentation.replace("|", "\\|")
        lines.append(f"| `{name}` | {metric.type} | {labels or '–'} | {text} |")
    return "\n".join(lines) + "\n"


async def document() -> str:
    config, report = parse_router(ROUTER, path="router.yaml", env={})
    assert config is not None, str(report)
    state = build_state(config)
    listener_config, report = parse_listener(LISTENER, path="listener.yaml", env={})
    assert listener_config is not None, str(report)
    listener = Listener(listener_config, World(rng=random.Random(0)))
    listener.families.watch_certificate(lambda: 0.0)
    logs = Metrics()
    queue = LogQueue(LogSettings(), sys.stderr.buffer)
    queue.register_metrics(logs)
    try:
        return (
            HEAD
            + table("continuum-router", state.metrics)
            + table("continuum-kv-listener", listener.metrics)
            + table("Both: process logs", logs)
        )
    finally:
        queue.stop()
        await listener.stop()
        await stop_state(state)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    text = asyncio.run(document())
    if parser.parse_args().check:
        if TARGET.exists() and TARGET.read_text() == text:
            return 0
        print("docs/metrics.md is stale: run make docs", file=sys.stderr)
        return 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
