"""Rules of the listener's file for TensorRT-LLM sources (S0, decisions C26, C37)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from continuum_kv_listener.config_checks import listed
from continuum_shared.config.addresses import is_loopback
from continuum_shared.config.decode import Check, Finding, View
from continuum_shared.config.report import Path, Severity

if TYPE_CHECKING:
    from continuum_kv_listener.config import ListenerConfig, SourceConfig

POLLED_KEYS = ("trtllm_endpoint", "poll_interval_ms")
PUBLISHED_KEYS = (
    "zmq_endpoint",
    "zmq_mode",
    "zmq_replay_endpoint",
    "zmq_topic",
    "discover",
    "dp_size",
    "engine_url",
    "detokenize_endpoint",
    "tokenize_endpoint",
    "prompt_format",
    "tokenizer",
    "calibrate_by_request",
)


def _at(index: int, key: str) -> Path:
    return ("sources", index, key)


def _polled(config: ListenerConfig) -> Iterator[tuple[int, SourceConfig]]:
    for index, source in enumerate(config.sources):
        if source.polled:
            yield index, source


def _has_url(config: ListenerConfig, view: View) -> Iterator[Finding]:
    for index, source in _polled(config):
        if source.trtllm_endpoint is None and view.sure(_at(index, "trtllm_endpoint")):
            yield Finding(
                path=_at(index, "trtllm_endpoint"),
                message="is required for engine: trtllm",
                hint='such as "http://10.0.0.5:8000/kv_cache_events"; an engine that publishes '
                "vLLM's events on ZMQ is engine: vllm",
            )


def _host_allowed(config: ListenerConfig, view: View) -> Iterator[Finding]:
    """An empty list allows this machine; any other list has to name the host (S0, C26)."""
    for index, source in _polled(config):
        url, allowed = source.trtllm_endpoint, source.allowed_publishers
        if url is None or not view.sure(
            _at(index, "trtllm_endpoint"), _at(index, "allowed_publishers")
        ):
            continue
        if not (listed(url.host, allowed) if allowed else is_loopback(url.host)):
            yield Finding(
                path=_at(index, "trtllm_endpoint"),
                message="its host is not in allowed_publishers",
                hint=f'add "{url.host}" to allowed_publishers',
            )


def _read_once(config: ListenerConfig, view: View) -> Iterator[Finding]:
    first: dict[tuple[str, int, str], int] = {}
    for index, source in _polled(config):
        url = source.trtllm_endpoint
        if url is None or not view.sure(_at(index, "trtllm_endpoint")):
            continue
        key = (url.host.lower(), url.port, url.target)
        if key in first:
            yield Finding(
                path=_at(index, "trtllm_endpoint"),
                message=f"is also read by sources[{first[key]}]",
                hint="each answer drains the engine's buffer: one source for each engine",
            )
        first.setdefault(key, index)


def _beside_zmq(config: ListenerConfig, view: View) -> Iterator[Finding]:
    published = {
        source.backend_name: index
        for index, source in enumerate(config.sources)
        if not source.polled
    }
    for index, source in _polled(config):
        path = _at(index, "backend_name")
        if source.backend_name in published and view.sure(path, _at(index, "engine")):
            yield Finding(
                path=path,
                message=f"has a ZMQ source already (sources[{published[source.backend_name]}]); "
                "this native one is not run",
                hint="keep one of the two",
                severity=Severity.WARNING,
            )


def _salts_are_read(config: ListenerConfig, view: View) -> Iterator[Finding]:
    if not view.sure(("salt_echo",)) or config.salt_echo.enabled:
        return
    for index, _ in _polled(config):
        yield Finding(
            path=_at(index, "engine"),
            message="trtllm prompts are identified by the router's salts alone, and salt_echo is "
            "off: every chain is discarded",
            hint="set salt_echo here and prefix_routing.salt_echo in the router",
            severity=Severity.WARNING,
        )


def _keys_have_effect(config: ListenerConfig, view: View) -> Iterator[Finding]:
    for index, source in enumerate(config.sources):
        for key in PUBLISHED_KEYS if source.polled else POLLED_KEYS:
            field = type(source).model_fields[key]
            default = field.get_default(call_default_factory=True, validated_data={})
            if getattr(source, key) != default and view.sure(_at(index, "engine")):
                yield Finding(
                    path=_at(index, key),
                    message=f"has no effect with engine: {source.engine.value}",
                    severity=Severity.WARNING,
                )


TRTLLM_CHECKS: tuple[Check[ListenerConfig], ...] = (
    Check(_has_url),
    Check(_host_allowed),
    Check(_read_once),
    Check(_beside_zmq),
    Check(_salts_are_read),
    Check(_keys_have_effect),
)
