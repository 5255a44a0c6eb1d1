"""Rules over several sections of the router's file, listed at the bottom.

Each check reads only what it declares; see `continuum_shared.config.decode`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from continuum_router.config.admin import admin_findings
from continuum_router.config.backends import SALTED_TYPES
from continuum_router.config.kv_cache_index import KvCacheIndexConfig, ScoringMode
from continuum_router.config.routing import StrategyName
from continuum_router.config.source_checks import SOURCE_CHECKS
from continuum_router.config.timeout_checks import TIMEOUT_CHECKS
from continuum_shared.config.decode import ANY, Check, Finding, View
from continuum_shared.config.kinds import format_duration
from continuum_shared.config.report import Path, Severity
from continuum_shared.config.salt_echo import salt_echo_findings

if TYPE_CHECKING:
    from continuum_router.config.root import Config

_NAMES: Path = ("backends", ANY, "name")
_SOURCES: Path = ("kv_cache_index", "event_sources")
_SOURCE_NAMES: Path = (*_SOURCES, ANY, "backend_name")
_EMPTY_BASE: Path = ("model_aggregation", "empty_response_base_ttl")
_EMPTY_MAX: Path = ("model_aggregation", "empty_response_max_ttl")
_SALT_ECHO: Path = ("prefix_routing", "salt_echo")
_SCORING: Path = ("kv_cache_index", "scoring")
_KV_ON: Path = ("kv_cache_index", "enabled")
_PREFIX_ON: Path = ("prefix_routing", "enabled")
_FALLBACKS: Path = ("fallbacks",)


def _warn(path: Path, message: str, hint: str) -> Finding:
    return Finding(path=path, message=message, hint=hint, severity=Severity.WARNING)


def _some_backend(config: Config, _view: View) -> Iterator[Finding]:
    if not config.backends:
        yield Finding(
            path=("backends",),
            message="there is no backend",
            hint="list at least one with name and url",
        )
    elif not any(b.enabled and not b.internal for b in config.backends):
        yield _warn(
            ("backends",), "no backend is enabled and not internal", "no request can be served"
        )


def _backend_names_unique(config: Config, view: View) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for index, backend in enumerate(config.backends):
        if not view.sure(("backends", index, "name")):
            continue
        if backend.name in first:
            yield Finding(
                path=("backends", index, "name"),
                message=f"is also the name of backends[{first[backend.name]}]",
                hint="give each backend its own name",
            )
        first.setdefault(backend.name, index)


def _source_backends_known(config: Config, view: View) -> Iterator[Finding]:
    names = [backend.name for backend in config.backends]
    for index, source in enumerate(config.kv_cache_index.event_sources):
        sure = view.sure((*_SOURCES, index, "backend_name"))
        if sure and source.backend_name not in names:
            yield Finding(
                path=(*_SOURCES, index, "backend_name"),
                message="names no backend",
                hint="backends: " + (", ".join(names[:8]) or "none"),
            )


def _one_source_each(config: Config, view: View) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for index, source in enumerate(config.kv_cache_index.event_sources):
        name = source.backend_name
        if not view.sure((*_SOURCES, index, "backend_name")):
            continue
        if name in first:
            yield Finding(
                path=(*_SOURCES, index, "backend_name"),
                message=f"event_sources[{first[name]}] is already the source of this backend",
                hint="keep one source for each backend",
            )
        first.setdefault(name, index)


def _weights_sum(config: Config, _view: View) -> Iterator[Finding]:
    scoring = config.kv_cache_index.scoring
    total = math.fsum((scoring.overlap_weight, scoring.load_weight, scoring.health_weight))
    if abs(total - 1.0) > 1e-9:
        yield Finding(
            path=_SCORING,
            message=f"overlap_weight, load_weight and health_weight add up to {total:.10g}",
            hint="they must add up to 1.0",
        )


def _hash_needs_prefix_routing(config: Config, _view: View) -> Iterator[Finding]:
    wants = config.selection_strategy is StrategyName.PREFIX_AWARE_HASH
    if wants and not config.prefix_routing.enabled:
        yield _warn(
            ("selection_strategy",),
            "PrefixAwareHash has no prefix keys to hash while prefix_routing is off",
            "set prefix_routing.enabled: true",
        )


def _gpu_weight_reaches_threshold(config: Config, _view: View) -> Iterator[Finding]:
    scoring = config.kv_cache_index.scoring
    both = config.prefix_routing.enabled and _composite(config)
    if both and scoring.gpu_tier_weight < scoring.min_overlap_threshold:
        yield _warn(
            (*_SCORING, "gpu_tier_weight"),
            "no backend can reach min_overlap_threshold, so every request falls back",
            f"set it to at least {scoring.min_overlap_threshold:g}",
        )


def _index_needs_prefix_routing(config: Config, _view: View) -> Iterator[Finding]:
    if _composite(config) and not config.prefix_routing.enabled:
        yield _warn(
            _KV_ON,
            "the index is never asked while prefix_routing is off",
            "set prefix_routing.enabled: true",
        )


def _index_needs_sources(config: Config, _view: View) -> Iterator[Finding]:
    if _composite(config) and not config.kv_cache_index.event_sources:
        yield _warn(
            _KV_ON,
            "the index stays empty without event_sources",
            "name the listener's streams in kv_cache_index.event_sources",
        )


def _load_bound_off(config: Config, view: View) -> Iterator[Finding]:
    path = (*_SCORING, "holder_load_bound")
    if view.written(path) and config.kv_cache_index.scoring.holder_load_bound is None:
        yield _warn(
            path,
            "without a bound one holder may be given all requests of a popular prefix",
            f"default {_default_bound():g}",
        )


def _composite(config: Config) -> bool:
    section = config.kv_cache_index
    return section.enabled and section.scoring.mode is ScoringMode.COMPOSITE


def _default_bound() -> float:
    return KvCacheIndexConfig().scoring.holder_load_bound or 0.0


def _retry_delays_in_order(config: Config, view: View) -> Iterator[Finding]:
    retry = config.retry
    if retry.initial_delay > retry.max_delay:
        path: Path = ("retry", "initial_delay")
        yield Finding(
            path=path if view.written(path) else ("retry", "max_delay"),
            message=f"initial_delay ({format_duration(retry.initial_delay)}) is longer than "
            f"max_delay ({format_duration(retry.max_delay)})",
            hint="initial_delay must not be longer than max_delay",
        )


def _empty_ttls_in_order(config: Config, view: View) -> Iterator[Finding]:
    section = config.model_aggregation
    base, longest = section.empty_response_base_ttl, section.empty_response_max_ttl
    if base > longest:
        yield Finding(
            path=_EMPTY_BASE if view.written(_EMPTY_BASE) else _EMPTY_MAX,
            message=f"empty_response_base_ttl ({format_duration(base)}) is longer than "
            f"empty_response_max_ttl ({format_duration(longest)})",
            hint="empty_response_base_ttl must not be longer than empty_response_max_ttl",
        )


def _fallbacks_lead_somewhere(config: Config, view: View) -> Iterator[Finding]:
    """Names that no backend lists are mistakes only when every backend lists its models."""
    backends = [b for b in config.backends if b.enabled and not b.internal]
    served = {model for backend in backends for model in backend.models}
    all_listed = bool(backends) and all(backend.models for backend in backends)
    for model, chain in config.fallbacks.items():
        for index, name in enumerate(chain):
            path: Path = (*_FALLBACKS, model, index)
            if not view.sure(path, ("backends",)):
                continue
            if name == model or name in chain[:index]:
                yield Finding(
                    path=path,
                    message="is the model itself" if name == model else "is listed twice",
                    hint="name other models, each once",
                )
            elif all_listed and name not in served:
                yield _warn(path, "no backend lists this model", "it will be passed over")


def _salt_echo_has_a_secret(config: Config, view: View) -> Iterator[Finding]:
    yield from salt_echo_findings(config.prefix_routing.salt_echo, _SALT_ECHO, view)


def _salts_are_of_use(config: Config, _view: View) -> Iterator[Finding]:
    if not config.prefix_routing.salt_echo.enabled:
        return
    path: Path = (*_SALT_ECHO, "enabled")
    if not config.prefix_routing.enabled:
        yield _warn(
            path,
            "no request has a prefix key while prefix_routing is off, so none is salted",
            "set prefix_routing.enabled: true",
        )
    elif not config.kv_cache_index.enabled:
        yield _warn(
            path,
            "salts keep prompts apart in the engines' caches, and no index reads them",
            "set kv_cache_index.enabled: true, or switch salt_echo off",
        )
    if not any(backend.type in SALTED_TYPES for backend in config.backends if backend.enabled):
        yield _warn(
            path,
            "no backend takes salts",
            "set their type: " + ", ".join(sorted(SALTED_TYPES)),
        )


def _one_authorization(config: Config, _view: View) -> Iterator[Finding]:
    for index, backend in enumerate(config.backends):
        scheme, _, name = backend.auth_scheme.partition(":")
        header = name if scheme == "header" else "Authorization"
        if backend.api_key is not None and header.lower() in map(str.lower, backend.headers):
            yield Finding(
                path=("backends", index, "headers"),
                message=f"{header} is set twice: by api_key and by headers",
                hint="keep one of them",
            )


def _aliases_agree(config: Config, view: View) -> Iterator[Finding]:
    meant: dict[str, tuple[str, int]] = {}
    for index, backend in enumerate(config.backends):
        if not (backend.enabled and view.sure(("backends", index, "aliases"))):
            continue
        for alias, real in backend.aliases.items():
            path = ("backends", index, "aliases", alias)
            if alias in backend.models:
                yield Finding(
                    path=path, message="is also one of its models", hint="keep one of them"
                )
            elif backend.models and real not in backend.models:
                yield _warn(
                    path, "means a model that is not in its models", "add it there, or correct it"
                )
            first, where = meant.setdefault(alias, (real, index))
            if first != real:
                yield _warn(
                    path,
                    f"means another model than on backends[{where}]",
                    "what the KV index knows of this backend is not found under the alias",
                )


def _client_key_has_a_certificate(config: Config, _view: View) -> Iterator[Finding]:
    for index, backend in enumerate(config.backends):
        tls = backend.tls
        if tls.client_key is not None and tls.client_cert is None:
            yield Finding(
                path=("backends", index, "tls", "client_key"),
                message="is the key of no certificate",
                hint="name the certificate in client_cert",
            )
        if tls.insecure_skip_verify:
            yield _warn(
                ("backends", index, "tls", "insecure_skip_verify"),
                "any certificate is accepted, so anybody can pose as this backend",
                "name its authority in ca_file",
            )
        if tls != type(tls)() and not backend.url.tls:
            yield _warn(("backends", index, "tls"), "has no effect: the URL is not https", "")


CHECKS: tuple[Check[Config], ...] = (
    Check(admin_findings),
    Check(_some_backend, (("backends",),)),
    Check(_backend_names_unique),
    Check(_source_backends_known, (_NAMES,)),
    Check(_one_source_each),
    Check(_one_authorization),
    Check(_aliases_agree),
    Check(_client_key_has_a_certificate),
    Check(_weights_sum, (_SCORING,)),
    Check(_hash_needs_prefix_routing, (("selection_strategy",), _PREFIX_ON)),
    Check(_gpu_weight_reaches_threshold, (_SCORING, _KV_ON, _PREFIX_ON)),
    Check(_index_needs_prefix_routing, (_KV_ON, _PREFIX_ON)),
    Check(_index_needs_sources, (_KV_ON, _SOURCES)),
    Check(_salt_echo_has_a_secret),
    Check(_salts_are_of_use, (_SALT_ECHO, _PREFIX_ON, _KV_ON, ("backends", ANY, "type"))),
    Check(_load_bound_off, ((*_SCORING, "holder_load_bound"),)),
    *SOURCE_CHECKS,
    *TIMEOUT_CHECKS,
    Check(_retry_delays_in_order, (("retry", "initial_delay"), ("retry", "max_delay"))),
    Check(_empty_ttls_in_order, (_EMPTY_BASE, _EMPTY_MAX)),
    Check(_fallbacks_lead_somewhere),
)
