"""Wiring: what the file says arrives at the parts."""

import random

import pytest

from continuum_kv_listener.assemble import Listener, World, engine_endpoints, prompt_format
from continuum_kv_listener.config import ListenerConfig, PromptFormatConfig, parse_config
from continuum_kv_listener.families import CustomMarkers, Family
from continuum_kv_listener.sources.publisher_acl import UnresolvedPublisher
from support.kv_publisher import free_port

FILE = """
listen: 127.0.0.1:0
history: 7
sources:
  - backend_name: vllm-1
    engine: vllm
    zmq_endpoint: tcp://127.0.0.1:5557
    zmq_replay_endpoint: tcp://127.0.0.1:5558
    engine_url: http://127.0.0.1:8101/base/
    model: [tiny-chat, other]
    max_prefix_length: 64
  - backend_name: sglang-1
    engine: sglang
    zmq_endpoint: tcp://127.0.0.1:{port}
    zmq_mode: bind
    detokenize_endpoint: http://127.0.0.1:8102/detokenize
    model: tiny-chat
    prompt_format: chatml
"""


def config(port: int = 0, **replaced: str) -> ListenerConfig:
    text = FILE.replace("{port}", str(port or free_port()))
    for old, new in replaced.items():
        text = text.replace(old, new)
    made, report = parse_config(text, path="f", env={})
    assert made is not None, str(report)
    return made


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"name": "auto"}, None),
        ({"name": "llama3"}, Family.LLAMA3),
        (
            {
                "name": "custom",
                "custom": {"system_start": "<s>", "system_end": "</s>", "first_user_start": "<u>"},
            },
            CustomMarkers(system_start="<s>", system_end="</s>", first_user_start="<u>"),
        ),
    ],
)
def test_prompt_format(section, expected):
    assert prompt_format(PromptFormatConfig.model_validate(section)) == expected


def test_endpoints_of_the_engine():
    first, second = config().sources
    assert engine_endpoints(first).detokenize == "http://127.0.0.1:8101/base/detokenize"
    assert engine_endpoints(first).health == "http://127.0.0.1:8101/base/health"
    assert engine_endpoints(second).tokenize == "http://127.0.0.1:8102/tokenize"


async def test_every_source_gets_its_own_parts():
    listener = Listener(config(), World(rng=random.Random(5)))
    await listener.start()
    try:
        assert list(listener.runners) == ["vllm-1", "sglang-1"]
        first, second = (listener.runners[name].parts for name in ("vllm-1", "sglang-1"))
        assert [lane.replay_endpoint for lane in first.lanes] == ["tcp://127.0.0.1:5558"]
        assert [lane.replay_endpoint for lane in second.lanes] == [None]
        assert first.stream.epoch != second.stream.epoch
        assert second.judge.state.attribution.value == "family"
        assert first.judge.state.attribution.value == "none"
        rows = listener.page()["sources"]
        assert isinstance(rows, list)
        assert [(row["backend_name"], row["engine"]) for row in rows] == [
            ("vllm-1", "vllm"),
            ("sglang-1", "sglang"),
        ]
        text = listener.metrics.exposition().decode()
        assert 'continuum_listener_blocks{source="sglang-1"} 0.0' in text
        assert "continuum_listener_task_crashes_total 0.0" in text
    finally:
        await listener.stop()


async def test_a_publisher_name_without_an_address_ends_the_start():
    made = config(**{"zmq_mode: bind": "zmq_mode: bind\n    allowed_publishers: [no.such.invalid]"})
    listener = Listener(made, World(rng=random.Random(5)))
    try:
        with pytest.raises(UnresolvedPublisher):
            await listener.start()
    finally:
        await listener.stop()
