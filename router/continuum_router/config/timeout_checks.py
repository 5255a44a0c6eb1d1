"""Rules over the `timeouts` section: caps, order, and keys that have no effect any more (S2, E18).

Each rule goes over the base values and over every model's overrides. An override is judged by what
would be in force for that model, and the finding stands at a key that the file has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from continuum_shared.config.decode import Check, Finding, View
from continuum_shared.config.kinds import format_duration
from continuum_shared.config.report import Path, Severity

if TYPE_CHECKING:
    from continuum_router.config.root import Config

_REQUEST: Path = ("timeouts", "request")
_LIMITS: Path = ("timeouts", "limits")
_LEGACY: Path = ("timeouts", "health_check")

_CAPS = {
    ("standard", "total"): "max_standard_timeout",
    ("streaming", "total"): "max_streaming_timeout",
    ("streaming", "first_byte"): "max_first_byte_timeout",
    ("streaming", "chunk_interval"): "max_chunk_interval",
    ("image_generation", "total"): "max_image_timeout",
}

_KINDS = ("standard", "streaming", "image_generation")
_ENFORCED = "streaming"
"""The one kind whose first_byte has an effect."""

_PROBE_DEFAULTS = {"interval": 30.0, "timeout": 10.0}
"""What `health_checks` has in force while it does not take these keys (S2 "health checks")."""


@dataclass(frozen=True, slots=True)
class _Value:
    """One deadline in force: its seconds, where it was written, and all places it depends on."""

    seconds: float
    path: Path
    paths: tuple[Path, ...]


def _value(config: Config, model: str | None, kind: str, name: str) -> _Value:
    """The deadline `name` of `kind`, for a model with overrides or (None) for all others."""
    base = (*_REQUEST, kind, name)
    seconds = getattr(getattr(config.timeouts.request, kind), name)
    if model is None:
        return _Value(seconds, base, (base,))
    own = (*_REQUEST, "model_overrides", model, kind, name)
    override = getattr(getattr(config.timeouts.request.model_overrides[model], kind), name)
    if override is None:
        return _Value(seconds, base, (base, own))
    return _Value(override, own, (own,))


def _scopes(config: Config) -> Iterator[str | None]:
    yield None
    yield from config.timeouts.request.model_overrides


def _within_caps(config: Config, view: View) -> Iterator[Finding]:
    for model in _scopes(config):
        for (kind, name), limit in _CAPS.items():
            value = _value(config, model, kind, name)
            cap = getattr(config.timeouts.limits, limit)
            told_above = model is not None and "model_overrides" not in value.path
            sure = view.sure(*value.paths, (*_LIMITS, limit))
            if sure and not told_above and value.seconds > cap:
                yield Finding(
                    path=value.path,
                    message=f"is above the cap of {format_duration(cap)}",
                    hint=f"lower it, or raise timeouts.limits.{limit}",
                )


def _in_order(config: Config, view: View) -> Iterator[Finding]:
    for model in _scopes(config):
        for kind in _KINDS:
            first = _value(config, model, kind, "first_byte")
            total = _value(config, model, kind, "total")
            own = [v for v in (first, total) if model is None or model in v.path]
            counts = kind == _ENFORCED or view.written(first.path)
            sure = view.sure(*first.paths, *total.paths)
            if own and counts and sure and first.seconds > total.seconds:
                written = [value.path for value in own if view.written(value.path)]
                yield Finding(
                    path=(written or [total.path])[0],
                    message=f"first_byte ({format_duration(first.seconds)}) is longer than "
                    f"total ({format_duration(total.seconds)})",
                    hint="first_byte must not be longer than total",
                )


def _first_byte_deprecated(config: Config, view: View) -> Iterator[Finding]:
    for model in _scopes(config):
        for kind in _KINDS:
            if kind == _ENFORCED:
                continue
            value = _value(config, model, kind, "first_byte")
            default = type(getattr(config.timeouts.request, kind))().first_byte
            own = model is None or model in value.path
            written = own and view.written(value.path) and view.sure(*value.paths)
            if written and value.seconds != default:
                yield Finding(
                    path=value.path,
                    message="is deprecated and has no effect",
                    hint=f"use {kind}.total",
                    severity=Severity.WARNING,
                )


def _legacy_health_check(config: Config, view: View) -> Iterator[Finding]:
    for name, default in _PROBE_DEFAULTS.items():
        path = (*_LEGACY, name)
        written = getattr(config.timeouts.health_check, name)
        in_force = getattr(config.health_checks, name, default)
        if view.sure(path) and written is not None and written != in_force:
            yield Finding(
                path=path,
                message=f"is deprecated and ignored; {format_duration(in_force)} is in force",
                hint=f"use health_checks.{name}",
                severity=Severity.WARNING,
            )


TIMEOUT_CHECKS: tuple[Check[Config], ...] = (
    Check(_within_caps),
    Check(_in_order),
    Check(_first_byte_deprecated),
    Check(_legacy_health_check),
)
