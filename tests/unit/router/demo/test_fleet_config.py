"""The demo's configuration files are ones that the daemons accept."""

import json

from continuum_kv_listener.config import ListenerConfig
from continuum_router.config.root import Config
from continuum_router.demo.fleet_config import EngineAddress, listener_config, router_config
from continuum_shared.config.decode import decode
from continuum_shared.config.source import load_text

ENGINES = [
    EngineAddress(
        name=name,
        url=f"http://127.0.0.1:{port}",
        zmq=f"tcp://127.0.0.1:{port + 1}",
        replay=f"tcp://127.0.0.1:{port + 2}",
    )
    for name, port in (("engine-1", 8100), ("engine-2", 8200))
]


def accepted(model: type, text: str) -> bool:
    value, report = decode(model, load_text(text, path="x.yaml", env={}))
    return value is not None and not report.errors and not report.warnings


def test_the_listener_accepts_its_file() -> None:
    text = listener_config(ENGINES, model="demo", listen="127.0.0.1:7000")
    assert accepted(ListenerConfig, text)
    assert json.loads(text)["sources"][1] == {
        "backend_name": "engine-2",
        "engine": "vllm",
        "zmq_endpoint": "tcp://127.0.0.1:8201",
        "zmq_mode": "connect",
        "zmq_replay_endpoint": "tcp://127.0.0.1:8202",
        "zmq_topic": "kv-events",
        "detokenize_endpoint": "http://127.0.0.1:8200/detokenize",
        "model": "demo",
    }


def test_the_router_accepts_both_files() -> None:
    listen = "127.0.0.1:7001"
    plain = router_config(ENGINES, model="demo", listen=listen, events=None)
    aware = router_config(ENGINES, model="demo", listen=listen, events="http://127.0.0.1:7000")
    assert accepted(Config, plain)
    assert accepted(Config, aware)
    assert "kv_cache_index" not in json.loads(plain)
    assert json.loads(aware)["kv_cache_index"]["event_sources"] == [
        {"backend_name": "engine-1", "endpoint": "http://127.0.0.1:7000/events/engine-1"},
        {"backend_name": "engine-2", "endpoint": "http://127.0.0.1:7000/events/engine-2"},
    ]
