"""Configuration files of a small fleet on loopback. Pure: returns YAML text (JSON is YAML)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """Where one engine is reached. `zmq_mode` is what the listener does: connect or bind."""

    name: str
    url: str
    zmq: str
    replay: str
    zmq_mode: str = "connect"


def listener_config(engines: Sequence[EngineAddress], *, model: str, listen: str) -> str:
    """The listener's file: one source for each engine."""
    sources = [
        {
            "backend_name": engine.name,
            "engine": "vllm",
            "zmq_endpoint": engine.zmq,
            "zmq_mode": engine.zmq_mode,
            "zmq_replay_endpoint": engine.replay,
            "zmq_topic": "kv-events",
            "detokenize_endpoint": f"{engine.url}/detokenize",
            "model": model,
        }
        for engine in engines
    ]
    return _text({"listen": listen, "sources": sources})


def router_config(
    engines: Sequence[EngineAddress], *, model: str, listen: str, events: str | None
) -> str:
    """The router's file: KV-aware with the listener's base URL as `events`, else round robin."""
    config: dict[str, object] = {
        "server": {"listen": listen, "drain_timeout": "2s"},
        "backends": [
            {"name": engine.name, "type": "vllm", "url": engine.url, "models": [model]}
            for engine in engines
        ],
        "selection_strategy": "RoundRobin",
    }
    if events is not None:
        sources = [
            {"backend_name": engine.name, "endpoint": f"{events}/events/{engine.name}"}
            for engine in engines
        ]
        config["selection_strategy"] = "PrefixAwareHash"
        config["prefix_routing"] = {"enabled": True}
        config["kv_cache_index"] = {"enabled": True, "event_sources": sources}
    return _text(config)


def _text(config: dict[str, object]) -> str:
    return json.dumps(config, indent=2) + "\n"
