import pytest
import yaml

from continuum_kv_listener.config import (
    EngineKind,
    ListenerConfig,
    PromptFormatName,
    SourceConfig,
    TokenCount,
    ZmqMode,
    load_config,
)
from continuum_shared.config.report import ConfigError
from support.config_files import bad_files, good_listener, listener_lines
from support.source_tree import ROOT

BAD = bad_files("listener")


def _source(extra="", zmq="tcp://127.0.0.1:5557"):
    return good_listener(
        "sources:\n- backend_name: a\n"
        f"  zmq_endpoint: {zmq}\n  model: m\n  engine_url: http://h:8000\n" + extra
    ).sources[0]


def test_the_table_is_there():
    assert len(BAD) == 30


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_what_each_bad_file_is_told(text, said):
    assert listener_lines(text) == [f"l.yaml:{line}" for line in said]


def test_defaults():
    source = _source()
    assert source.engine is EngineKind.VLLM
    assert source.models == ("m",)
    assert source.max_prefix_length == 1024
    assert source.prompt_format.name is PromptFormatName.AUTO
    assert (source.zmq_topic, source.zmq_replay_endpoint) == ("", None)
    assert source.allowed_publishers == ()
    assert source.token_count is TokenCount.LONGEST_CHAIN
    assert source.max_frame_bytes == 64 << 20
    config = ListenerConfig()
    assert str(config.listen) == "127.0.0.1:7817"
    assert (config.max_chain_tokens, config.max_tracked_blocks) == (16384, 100_000)
    assert (config.max_retained_tokens, config.reannounce_interval) == (16_777_216, 200.0)
    assert config.history == 10_000


@pytest.mark.parametrize(
    ("zmq", "mode", "expected"),
    [
        ("tcp://127.0.0.1:5557", "", ZmqMode.CONNECT),
        ("tcp://localhost:5557", "", ZmqMode.CONNECT),
        ("ipc:///tmp/kv", "", ZmqMode.CONNECT),
        ("tcp://*:5557", "", ZmqMode.BIND),
        ("tcp://0.0.0.0:5557", "", ZmqMode.BIND),
        ("'tcp://[::]:5557'", "", ZmqMode.BIND),
        ("tcp://127.0.0.1:5557", "bind", ZmqMode.BIND),
        ("tcp://127.0.0.1:5557", "Connect", ZmqMode.CONNECT),
    ],
)
def test_the_default_of_zmq_mode(zmq, mode, expected):
    extra = "  allowed_publishers: [10.0.0.1]\n" + (f"  zmq_mode: {mode}\n" if mode else "")
    source = _source(extra, zmq)
    assert source.mode is expected
    assert source.binds is (expected is ZmqMode.BIND)


@pytest.mark.parametrize(
    ("extra", "endpoints"),
    [
        ("  engine_url: http://h:8000/", ["detokenize", "tokenize", "health", "metrics"]),
        ("  engine_url: http://h:8000/x/", ["x/detokenize", "x/tokenize", "x/health", "x/metrics"]),
        (
            "  detokenize_endpoint: http://h:8000/x/detok",
            ["x/detok", "x/tokenize", "x/health", "x/metrics"],
        ),
        (
            "  engine_url: http://h:8000\n  detokenize_endpoint: http://h:8000/x/detok\n"
            "  tokenize_endpoint: http://h:8000/y",
            ["x/detok", "y", "health", "metrics"],
        ),
    ],
)
def test_endpoints_are_siblings(extra, endpoints):
    source = good_listener(
        "sources:\n- backend_name: a\n  zmq_endpoint: tcp://127.0.0.1:1\n  model: m\n" + extra
    ).sources[0]
    found = source.endpoints
    assert [str(e) for e in (found.detokenize, found.tokenize, found.health, found.metrics)] == [
        f"http://h:8000/{path}" for path in endpoints
    ]


def test_without_any_endpoint_there_is_nothing_to_call():
    source = SourceConfig.model_validate(
        {"backend_name": "a", "zmq_endpoint": "tcp://127.0.0.1:1", "model": "m"}
    )
    assert source.endpoints is None


def test_prompt_formats():
    assert _source("  prompt_format: Llama3").prompt_format.name is PromptFormatName.LLAMA3
    custom = _source(
        "  prompt_format: {custom: {system_start: <s>, system_end: </s>, first_user_start: <u>}}"
    ).prompt_format
    assert custom.name is PromptFormatName.CUSTOM
    assert custom.custom is not None
    assert (custom.custom.system_start, custom.custom.first_user_start) == ("<s>", "<u>")


def test_the_sample_of_the_source_loads():
    config = good_listener(
        """
        listen: "127.0.0.1:7817"
        sources:
          - backend_name: "vllm-1"
            engine: "vllm"
            zmq_endpoint: "tcp://127.0.0.1:5557"
            zmq_mode: "bind"
            detokenize_endpoint: "http://vllm-1:8000/detokenize"
            model: "meta-llama/Llama-3.1-8B-Instruct"
            allowed_publishers: ["127.0.0.1"]
        """
    )
    assert config.sources[0].binds


def test_the_example_is_good_and_complete():
    path = ROOT / "config.kv-listener.yaml.example"
    config, report = load_config(str(path), {})
    assert report.lines() == []
    data = yaml.safe_load(path.read_text())
    assert sorted(data) == sorted(ListenerConfig.model_fields)
    assert sorted(data["sources"][0]) == sorted(SourceConfig.model_fields)
    assert [source.mode for source in config.sources] == [ZmqMode.CONNECT, ZmqMode.BIND]


def test_a_bad_file_raises_with_everything(tmp_path):
    path = tmp_path / "l.yaml"
    path.write_text("a: 1\nb: 2\n")
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), {})
    assert len(caught.value.report.errors) == 3
