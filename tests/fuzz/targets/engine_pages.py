"""What engines answer beside events: their endpoints, their metrics, the texts of prompts."""

from continuum_kv_listener.discovery import MAX_RANKS, DiscoveryError, read_answer
from continuum_kv_listener.engine_watch import read_page
from continuum_kv_listener.families import Family, family_format
from continuum_kv_listener.prompt_format import parse
from fuzz.target import Target, plain
from support.source_tree import ROOT

WIRE = ROOT / "tests/fixtures/wire"
FORMATS = tuple(family_format(family)[0] for family in Family)
LIMIT = 64


def _discover(data: bytes) -> None:
    """One error class for whatever is wrong; never more ranks than the bound."""
    try:
        found = read_answer(data)
    except DiscoveryError:
        return
    assert 0 < len(found) <= MAX_RANKS
    assert all(len(each.topic) <= 256 for each in found)


def _metrics(data: bytes) -> None:
    """Nothing raises; what is told makes sense, and comes from whole lines only."""
    vitals = read_page(data)
    assert vitals.started_at is None or vitals.started_at > 0
    assert all(blocks > 0 for blocks in vitals.gpu_blocks.values())
    if b"\n" not in data and not data.startswith((b"process_start", b"vllm:cache_config")):
        assert (vitals.started_at, vitals.gpu_blocks) == (None, {})


def _prompt(data: bytes) -> None:
    """A key that a beginning has, the whole has; nothing is added once a text is complete."""
    if not data:
        return
    prompt_format = FORMATS[data[0] % len(FORMATS)]
    text = data[1:].decode("utf-8", "replace")
    whole = parse(prompt_format, text, LIMIT)
    for found in whole.found:
        assert 0 <= found.end <= len(text)
        assert len(found.key_text.text.encode("utf-8", "replace")) <= LIMIT + len(text.encode())
    half = parse(prompt_format, text[: len(text) // 2], LIMIT)
    keys = [found.key_text for found in whole.found]
    if half.complete:
        assert [found.key_text for found in half.found] == keys
    else:
        assert all(found.key_text in keys for found in half.found)


def _page(data: bytes) -> None:
    if data:
        (_discover if data[0] % 2 else _metrics)(data[1:])


PAGES = Target(
    name="engine_pages",
    opened=plain(_page),
    seeds=(
        b"1" + (WIRE / "vllm-0.32.0/kv_event_sources.json").read_bytes(),
        b'1{"0":{"endpoint":"tcp://*:5557","publisher":"zmq","topic":"kv"}}',
        b'1{"0":{"endpoint":"ipc:///a","replay_endpoint":null},"1":{"endpoint":"tcp://[::1]:1"}}',
        b"0" + (WIRE / "vllm-0.32.0/metrics_excerpt.txt").read_bytes(),
        b"0process_start_time_seconds 1.7e9\n"
        b'vllm:cache_config_info{engine="0",num_gpu_blocks="7"} 1\n',
    ),
    tokens=(
        b'"endpoint"',
        b'"replay_endpoint"',
        b"tcp://",
        b"null",
        b"\\ud800",
        b"[" * 64,
        b"process_start_time_seconds",
        b'num_gpu_blocks="',
        b'engine="',
        b"nan",
        b"inf",
    ),
    watched=(
        "continuum_kv_listener.discovery",
        "continuum_kv_listener.engine_watch",
        "continuum_shared.config",
    ),
    smoke=5000,
)
PROMPTS = Target(
    name="prompt_text",
    opened=plain(_prompt),
    seeds=tuple(
        bytes([number]) + text.encode()
        for number in range(len(FORMATS))
        for text in (
            "<|im_start|>system\nYou are.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n",
            "<bos><start_of_turn>user\n안녕하세요 😀<end_of_turn>\n<start_of_turn>model\n",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nx<|eot_id|>",
        )
    ),
    tokens=(b"<|im_start|>", b"<|im_end|>", b"\n", b"[INST]", b"<|user|>", b"\xef\xbf\xbd"),
    watched=("continuum_kv_listener.prompt_format", "continuum_kv_listener.prompt_literal"),
    smoke=1500,
)
