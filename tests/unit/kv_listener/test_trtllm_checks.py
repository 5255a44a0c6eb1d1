import pytest

from continuum_kv_listener.config import parse_config

URL = "http://127.0.0.1:8000/kv_cache_events"
T = f"engine: trtllm, model: m, trtllm_endpoint: '{URL}'"
Z = "model: m, engine_url: 'http://h', zmq_endpoint: 'tcp://127.0.0.1:1'"
SECRET = "a-secret-of-more-than-32-characters-for-tests"
ECHO = "salt_echo: {enabled: true, secret_env: S}"


def lines(*sources, echo=ECHO):
    """(errors, warnings) without their places' file name."""
    text = "\n".join([echo, "sources:", *(f"- {{{source}}}" for source in sources)])
    config, report = parse_config(text, path="l", env={"S": SECRET})
    errors = [f"{p.path}: {p.message}" for p in report.errors]
    assert (config is None) == bool(errors)
    return errors, [f"{p.path}: {p.message}" for p in report.warnings]


def listed(host, *allowed):
    url = URL.replace("127.0.0.1", host)
    return f"backend_name: a, {T.replace(URL, url)}, allowed_publishers: [{', '.join(allowed)}]"


NOT_LISTED = ["sources[0].trtllm_endpoint: its host is not in allowed_publishers"]


@pytest.mark.parametrize(
    ("source", "errors"),
    [
        (f"backend_name: a, {T}", []),
        (listed("localhost"), []),
        (listed("[::1]"), []),
        (listed("10.0.0.5"), NOT_LISTED),
        (listed("gpu-1"), NOT_LISTED),
        (listed("10.0.0.5", "10.0.0.0/8"), []),
        (listed("10.0.0.5", "10.0.0.5"), []),
        (listed("11.0.0.5", "10.0.0.0/8"), NOT_LISTED),
        (listed("GPU-1", "gpu-1"), []),
        (listed("'[fd00::7]'".strip("'"), "'fd00::/8'"), []),
        (listed("127.0.0.1", "10.0.0.0/8"), NOT_LISTED),
        (
            "backend_name: a, engine: trtllm, model: m",
            ["sources[0].trtllm_endpoint: is required for engine: trtllm"],
        ),
    ],
)
def test_who_may_be_asked(source, errors):
    assert lines(source) == (errors, [])


def test_the_same_backend_twice_is_an_error():
    other = T.replace("8000", "8001")
    assert lines(f"backend_name: a, {T}", f"backend_name: a, {other}")[0] == [
        "sources[1].backend_name: is also the backend_name of sources[0]"
    ]
    assert lines(f"backend_name: a, {T}", f"backend_name: b, {T}")[0] == [
        "sources[1].trtllm_endpoint: is also read by sources[0]"
    ]


def test_a_native_source_beside_a_zmq_one_is_a_warning_and_not_run():
    said = (
        "sources[0].backend_name: has a ZMQ source already (sources[1]); this native one is not run"
    )
    assert lines(f"backend_name: a, {T}", f"backend_name: a, {Z}") == ([], [said])
    text = f"{ECHO}\nsources:\n- {{backend_name: a, {T}}}\n- {{backend_name: a, {Z}}}\n"
    config, _ = parse_config(text, path="l", env={"S": SECRET})
    assert [each.engine.value for each in config.active_sources] == ["vllm"]


def test_without_salt_echo_nothing_is_identified():
    errors, warnings = lines(f"backend_name: a, {T}", echo="")
    assert errors == []
    assert [each.partition(":")[0] for each in warnings] == ["sources[0].engine"]
    assert "every chain is discarded" in warnings[0]


@pytest.mark.parametrize(
    ("source", "key"),
    [
        (f"backend_name: a, {T}, zmq_endpoint: 'tcp://127.0.0.1:1'", "zmq_endpoint"),
        (f"backend_name: a, {T}, dp_size: 2", "dp_size"),
        (f"backend_name: a, {T}, prompt_format: chatml", "prompt_format"),
        (f"backend_name: a, {T}, engine_url: 'http://h'", "engine_url"),
        (f"backend_name: a, {Z}, poll_interval_ms: 100", "poll_interval_ms"),
        (f"backend_name: a, {Z}, trtllm_endpoint: '{URL}'", "trtllm_endpoint"),
    ],
)
def test_keys_of_the_other_kind_of_source(source, key):
    engine = (
        "vllm" if "zmq_endpoint: 'tcp://127.0.0.1:1'" in source and T not in source else "trtllm"
    )
    assert lines(source) == ([], [f"sources[0].{key}: has no effect with engine: {engine}"])


@pytest.mark.parametrize("interval", ["9", "60001", "1.5", "fast"])
def test_poll_intervals_out_of_range(interval):
    errors, _ = lines(f"backend_name: a, {T}, poll_interval_ms: {interval}")
    assert [each.partition(":")[0] for each in errors] == ["sources[0].poll_interval_ms"]
