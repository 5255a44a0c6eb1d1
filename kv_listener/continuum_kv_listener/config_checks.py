"""Rules over several keys of the listener's file, listed at the bottom (decisions C26, C27)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from continuum_shared.config.addresses import is_loopback
from continuum_shared.config.decode import Check, Finding, View
from continuum_shared.config.report import Path, Severity
from continuum_shared.config.salt_echo import salt_echo_findings

if TYPE_CHECKING:
    from continuum_kv_listener.config import ListenerConfig, SourceConfig


def _at(index: int, key: str) -> Path:
    return ("sources", index, key)


def _some_source(config: ListenerConfig, _view: View) -> Iterator[Finding]:
    if not config.sources:
        yield Finding(path=("sources",), message="there is no source", hint="list at least one")


def _names_unique(config: ListenerConfig, view: View) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for index, source in enumerate(config.sources):
        if not view.sure(_at(index, "backend_name")):
            continue
        if source.backend_name in first:
            yield Finding(
                path=_at(index, "backend_name"),
                message=f"is also the backend_name of sources[{first[source.backend_name]}]",
                hint="one source for each backend",
            )
        first.setdefault(source.backend_name, index)


def _endpoints_unique(config: ListenerConfig, view: View) -> Iterator[Finding]:
    """Two sources on one socket would announce each other's blocks."""
    first: dict[tuple[str, str], int] = {}
    read = ("zmq_endpoint", "zmq_mode", "zmq_topic", "dp_size")
    for index, source in enumerate(config.sources):
        if not view.sure(*(_at(index, key) for key in read)) or _ranks_fit(source):
            continue
        topic = "" if source.binds else source.zmq_topic
        keys = [(str(source.zmq_endpoint.of_rank(n)), topic) for n in range(source.dp_size)]
        taken = next((first[key] for key in keys if key in first), None)
        if taken is not None:
            yield Finding(
                path=_at(index, "zmq_endpoint"),
                message=f"is also the zmq_endpoint of sources[{taken}]",
                hint="give each engine its own endpoint",
            )
        for key in keys:
            first.setdefault(key, index)


def _ranks_fit(source: SourceConfig) -> str | None:
    """Why the ranks of a source cannot each have an endpoint of their own; None when they can."""
    if source.dp_size == 1:
        return None
    replay = source.zmq_replay_endpoint
    endpoints = [source.zmq_endpoint, *([replay] if replay is not None else [])]
    if any(endpoint.ipc_path for endpoint in endpoints):
        return "an ipc endpoint has no port for each rank"
    if any(endpoint.port + source.dp_size - 1 > 65_535 for endpoint in endpoints):
        return "its ranks would need ports above 65535"
    if replay is not None and abs(replay.port - source.zmq_endpoint.port) < source.dp_size:
        return "the ranks' events and replays would share ports"
    return None


def _ranks_have_ports(config: ListenerConfig, view: View) -> Iterator[Finding]:
    """Rank r is at both ports + r (decisions C18)."""
    for index, source in enumerate(config.sources):
        keys = ("dp_size", "zmq_endpoint", "zmq_replay_endpoint")
        problem = _ranks_fit(source) if view.sure(*(_at(index, key) for key in keys)) else None
        if problem is not None:
            yield Finding(
                path=_at(index, "dp_size"),
                message=problem,
                hint="use tcp endpoints whose ports lie at least dp_size apart",
            )


def _has_engine_url(config: ListenerConfig, view: View) -> Iterator[Finding]:
    for index, source in enumerate(config.sources):
        sure = view.sure(_at(index, "detokenize_endpoint"), _at(index, "engine_url"))
        without = source.tokenizer is not None or config.salt_echo.enabled
        if sure and source.endpoints is None and not without:
            yield Finding(
                path=_at(index, "detokenize_endpoint"),
                message="is required: prompts can be read back only by asking the engine",
                hint='such as "http://10.0.0.5:8000/detokenize", or set engine_url',
            )


def _tokenizer_is_there(config: ListenerConfig, view: View) -> Iterator[Finding]:
    """A missing extra or file is told before the start (decisions H13)."""
    missing = [name for name in ("tokenizers", "jinja2") if find_spec(name) is None]
    for index, source in enumerate(config.sources):
        path = _at(index, "tokenizer")
        if source.tokenizer is None or not view.sure(path):
            continue
        if missing:
            yield Finding(
                path=path,
                message="needs a package that is not installed",
                hint="pip install 'continuum-router[tokenizers]'",
            )
        elif not tokenizer_file(source.tokenizer).is_file():
            yield Finding(
                path=path,
                message="has no tokenizer.json",
                hint="name the model's folder, or the file itself",
            )


def _request_can_be_sent(config: ListenerConfig, view: View) -> Iterator[Finding]:
    for index, source in enumerate(config.sources):
        path = _at(index, "calibrate_by_request")
        if source.calibrate_by_request and source.endpoints is None and view.sure(path):
            yield Finding(
                path=path,
                message="has no engine to send a chat to",
                hint="set engine_url",
                severity=Severity.WARNING,
            )


def _salt_echo_has_a_secret(config: ListenerConfig, view: View) -> Iterator[Finding]:
    yield from salt_echo_findings(config.salt_echo, ("salt_echo",), view)


def tokenizer_file(path: str) -> FilePath:
    """The `tokenizer.json` that `sources[].tokenizer` means."""
    named = FilePath(path)
    return named / "tokenizer.json" if named.is_dir() else named


def _mode_fits_host(config: ListenerConfig, view: View) -> Iterator[Finding]:
    for index, source in enumerate(config.sources):
        if not view.sure(_at(index, "zmq_endpoint"), _at(index, "zmq_mode")):
            continue
        if not source.binds and source.zmq_endpoint.wildcard:
            yield Finding(
                path=_at(index, "zmq_mode"),
                message="connect needs a concrete host in zmq_endpoint",
                hint="name the engine's host, or use zmq_mode: bind",
            )
        replay = source.zmq_replay_endpoint
        if replay is not None and replay.wildcard:
            yield Finding(
                path=_at(index, "zmq_replay_endpoint"),
                message="needs a concrete host",
                hint="name the engine's host",
            )


def _hosts_allowed(config: ListenerConfig, view: View) -> Iterator[Finding]:
    """Decisions C26: what we connect to must be loopback or listed."""
    for index, source in enumerate(config.sources):
        if not view.sure(_at(index, "zmq_mode"), _at(index, "allowed_publishers")):
            continue
        endpoints = [("zmq_replay_endpoint", source.zmq_replay_endpoint)]
        if not source.binds:
            endpoints.append(("zmq_endpoint", source.zmq_endpoint))
        for key, endpoint in endpoints:
            if endpoint is None or endpoint.wildcard or endpoint.loopback:
                continue
            if not view.sure(_at(index, key)):
                continue
            if not _listed(endpoint.host, source.allowed_publishers):
                yield Finding(
                    path=_at(index, key),
                    message="its host is not in allowed_publishers",
                    hint=f'add "{endpoint.host}" to allowed_publishers',
                )


def _listed(host: str, allowed: tuple[str, ...]) -> bool:
    if host.lower() in {entry.lower() for entry in allowed}:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in allowed:
        try:
            if address in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False


def _bound_to_nobody(config: ListenerConfig, view: View) -> Iterator[Finding]:
    for index, source in enumerate(config.sources):
        keys = ("zmq_endpoint", "zmq_mode", "allowed_publishers")
        if not view.sure(*(_at(index, key) for key in keys)):
            continue
        closed = all(is_loopback(entry) for entry in source.allowed_publishers)
        if closed and source.binds and source.zmq_endpoint.wildcard:
            yield Finding(
                path=_at(index, "zmq_endpoint"),
                message="is open on every interface, but only this machine may publish",
                hint="list the engine's address in allowed_publishers, or bind to 127.0.0.1",
                severity=Severity.WARNING,
            )


def _retained_fits_chain(config: ListenerConfig, _view: View) -> Iterator[Finding]:
    if config.max_retained_tokens < config.max_chain_tokens:
        yield Finding(
            path=("max_retained_tokens",),
            message="is smaller than max_chain_tokens, so no full chain would fit",
            hint=f"at least {config.max_chain_tokens}",
        )


CHECKS: tuple[Check[ListenerConfig], ...] = (
    Check(_some_source, (("sources",),)),
    Check(_names_unique),
    Check(_endpoints_unique),
    Check(_has_engine_url, (("salt_echo",),)),
    Check(_tokenizer_is_there),
    Check(_request_can_be_sent),
    Check(_salt_echo_has_a_secret),
    Check(_ranks_have_ports),
    Check(_mode_fits_host),
    Check(_hosts_allowed),
    Check(_bound_to_nobody),
    Check(_retained_fits_chain, (("max_chain_tokens",), ("max_retained_tokens",))),
)
