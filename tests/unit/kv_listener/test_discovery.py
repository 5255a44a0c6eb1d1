"""What an engine lists of its event endpoints, and what a source makes of it."""

from pathlib import Path

import aiohttp
import orjson
import pytest
from aiohttp import web

from continuum_kv_listener.config import SourceConfig, ZmqMode, parse_config
from continuum_kv_listener.discovery import (
    MAX_ANSWER_BYTES,
    DiscoveryError,
    DiscoveryFault,
    ask,
    read_answer,
    settle,
)
from continuum_shared.config.kinds import HttpEndpoint

RECORDED = Path(__file__).parents[2] / "fixtures" / "wire" / "vllm-0.32.0" / "kv_event_sources.json"
REMOTE = "http://10.0.0.5:8000/kv_event_sources"
LOCAL = "http://127.0.0.1:8000/kv_event_sources"


def source(url: str = REMOTE, **more: str) -> SourceConfig:
    keys = {
        "backend_name": "a",
        "model": "m",
        "allowed_publishers": '["10.0.0.0/8"]',
        "discover": f'"{url}"',
        **more,
    }
    text = "sources:\n- {" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}\n"
    config, report = parse_config(text, path="l.yaml", env={})
    assert config is not None, str(report)
    return config.sources[0]


def listing(*rows: dict[str, object]) -> bytes:
    return orjson.dumps({str(rank): row for rank, row in enumerate(rows)})


def found(answer: bytes, url: str = REMOTE, **more: str):
    made = source(url, **more)
    assert made.discover is not None
    return settle(made, read_answer(answer), made.discover)


def test_the_recorded_answer_beside_the_engine():
    made = found(RECORDED.read_bytes(), LOCAL)
    assert made.warnings == ()
    assert str(made.source.zmq_endpoint) == "tcp://127.0.0.1:5557"
    assert made.source.mode is ZmqMode.CONNECT
    assert str(made.source.zmq_replay_endpoint) == "tcp://127.0.0.1:5558"
    assert (made.source.zmq_topic, made.source.dp_size) == ("kv-events", 1)
    assert made.source.endpoints is not None
    assert str(made.source.endpoints.detokenize) == "http://127.0.0.1:8000/detokenize"


def test_the_recorded_answer_from_another_machine():
    made = found(RECORDED.read_bytes())
    assert str(made.source.zmq_endpoint) == "tcp://10.0.0.5:5557"
    assert made.source.zmq_replay_endpoint is None
    assert made.warnings == ("the engine's replay endpoint is on its own machine only: gaps stay",)


def test_an_engine_that_connects_is_bound_for():
    made = found(listing({"endpoint": "tcp://10.9.9.9:6000", "replay_endpoint": "tcp://*:6001"}))
    assert (str(made.source.zmq_endpoint), made.source.mode) == ("tcp://*:6000", ZmqMode.BIND)
    assert str(made.source.zmq_replay_endpoint) == "tcp://10.0.0.5:6001"
    made = found(listing({"endpoint": "tcp://127.0.0.1:6000"}), LOCAL)
    assert (str(made.source.zmq_endpoint), made.source.mode) == (
        "tcp://127.0.0.1:6000",
        ZmqMode.BIND,
    )


@pytest.mark.parametrize("step", [0, 1], ids=["the same port", "port and rank"])
def test_ranks(step):
    rows = [
        {"endpoint": f"tcp://*:{5557 + step * n}", "replay_endpoint": f"tcp://*:{6557 + step * n}"}
        for n in range(3)
    ]
    made = found(listing(*rows)).source
    assert (made.dp_size, str(made.zmq_endpoint)) == (3, "tcp://10.0.0.5:5557")
    assert str(made.zmq_replay_endpoint) == "tcp://10.0.0.5:6557"


def test_what_is_written_wins():
    made = found(
        listing({"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv"}),
        zmq_endpoint='"tcp://10.0.0.9:7000"',
        zmq_replay_endpoint='"tcp://10.0.0.9:7001"',
        zmq_topic='""',
        dp_size="1",
    ).source
    assert str(made.zmq_endpoint) == "tcp://10.0.0.9:7000"
    assert str(made.zmq_replay_endpoint) == "tcp://10.0.0.9:7001"
    assert (made.zmq_topic, made.mode) == ("", ZmqMode.CONNECT)


def test_a_replay_endpoint_elsewhere_must_be_allowed():
    answer = listing({"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://192.168.0.1:5558"})
    made = found(answer)
    assert made.source.zmq_replay_endpoint is None
    assert made.warnings == (
        "the engine's replay endpoint is not in allowed_publishers: gaps stay",
    )


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"", DiscoveryFault.BAD_ANSWER),
        (b"[1]", DiscoveryFault.BAD_ANSWER),
        (b"{}", DiscoveryFault.BAD_ANSWER),
        (b'{"1": {"endpoint": "tcp://*:1"}}', DiscoveryFault.BAD_ANSWER),
        (b'{"0": "tcp://*:1"}', DiscoveryFault.BAD_ANSWER),
        (b'{"0": {"endpoint": null}}', DiscoveryFault.BAD_ANSWER),
        (b'{"0": {"endpoint": "http://h"}}', DiscoveryFault.BAD_ANSWER),
        (b'{"0": {"endpoint": 7}}', DiscoveryFault.BAD_ANSWER),
        (b'{"0": {"endpoint": "tcp://*:1", "topic": 7}}', DiscoveryFault.BAD_ANSWER),
        (
            b'{"0": {"endpoint": "tcp://*:1", "enable_kv_cache_events": false}}',
            DiscoveryFault.DISABLED,
        ),
        (b'{"0": {"endpoint": "tcp://*:1", "publisher": "null"}}', DiscoveryFault.DISABLED),
        (listing({"endpoint": "tcp://*:1"}, {"endpoint": "tcp://*:9"}), DiscoveryFault.RANKS),
        (listing({"endpoint": "ipc:///a"}), DiscoveryFault.NOT_LOCAL),
        (listing(*[{"endpoint": "tcp://*:1"}] * 65), DiscoveryFault.BAD_ANSWER),
    ],
)
def test_answers_that_lead_nowhere(answer, fault):
    with pytest.raises(DiscoveryError) as raised:
        found(answer)
    assert raised.value.fault is fault


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (404, b"", DiscoveryFault.UNSUPPORTED),
        (500, b"", DiscoveryFault.UNREACHABLE),
        (302, b"", DiscoveryFault.UNREACHABLE),
        (200, b" " * (MAX_ANSWER_BYTES + 1), DiscoveryFault.BAD_ANSWER),
    ],
)
async def test_asking(status, body, fault):
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Location": "/"})

    app = web.Application()
    app.router.add_get("/kv_event_sources", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = HttpEndpoint.parse(f"http://127.0.0.1:{runner.addresses[0][1]}/kv_event_sources")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(DiscoveryError) as raised:
            await ask(session, url)
    assert raised.value.fault is fault
    await runner.cleanup()


async def test_nobody_to_ask():
    async with aiohttp.ClientSession() as session:
        with pytest.raises(DiscoveryError) as raised:
            await ask(session, HttpEndpoint.parse("http://127.0.0.1:9/kv_event_sources"))
    assert raised.value.fault is DiscoveryFault.UNREACHABLE
