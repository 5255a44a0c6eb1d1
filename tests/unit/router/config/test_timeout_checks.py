"""Caps, order and deprecated keys of `timeouts`, base values and overrides alike (S2, E18)."""

import pytest

from support.config_files import ROUTER_BASE, router_lines

M = "timeouts: {request: {model_overrides: {m: {%s}}}}"
AT = "timeouts.request.model_overrides.m."
CASES: dict[str, tuple[str, list[str]]] = {
    "image above its cap": (
        "timeouts: {request: {image_generation: {total: 541s}}}",
        [
            "timeouts.request.image_generation.total: is above the cap of 540s; lower it, or raise "
            "timeouts.limits.max_image_timeout"
        ],
    ),
    "at the cap": (
        "timeouts: {request: {standard: {total: 540s}, image_generation: {total: 540s}, "
        "streaming: {first_byte: 600s, chunk_interval: 300s, total: 1200s}}}",
        [],
    ),
    "override above a cap": (
        M % "standard: {total: 541s}",
        [
            AT + "standard.total: is above the cap of 540s; lower it, or raise "
            "timeouts.limits.max_standard_timeout"
        ],
    ),
    "override above a cap, streaming": (
        M % "streaming: {first_byte: 601s, chunk_interval: 301s, total: 1201s}",
        [
            AT + "streaming.first_byte: is above the cap of 600s; lower it, or raise "
            "timeouts.limits.max_first_byte_timeout",
            AT + "streaming.chunk_interval: is above the cap of 300s; lower it, or raise "
            "timeouts.limits.max_chunk_interval",
            AT + "streaming.total: is above the cap of 1200s; lower it, or raise "
            "timeouts.limits.max_streaming_timeout",
        ],
    ),
    "the base is told once": (
        "timeouts: {request: {standard: {total: 541s}, model_overrides: {m: {}, n: {}}}}",
        [
            "timeouts.request.standard.total: is above the cap of 540s; lower it, or raise "
            "timeouts.limits.max_standard_timeout"
        ],
    ),
    "override against the base's first_byte": (
        M % "streaming: {total: 60s}",
        [
            AT + "streaming.total: first_byte (120s) is longer than total (60s); first_byte must "
            "not be longer than total"
        ],
    ),
    "override with both": (M % "streaming: {first_byte: 60s, total: 60s}", []),
    "override's first_byte against the base's total": (
        "timeouts: {limits: {max_first_byte_timeout: 700s}, request: {model_overrides: {m: "
        "{streaming: {first_byte: 601s}}}}}",
        [
            AT + "streaming.first_byte: first_byte (601s) is longer than total (600s); first_byte "
            "must not be longer than total"
        ],
    ),
    "override deprecated": (
        M % "standard: {first_byte: 40s}, image_generation: {first_byte: 61s}",
        [
            "warning: " + AT + "standard.first_byte: is deprecated and has no effect; use "
            "standard.total",
            "warning: " + AT + "image_generation.first_byte: is deprecated and has no effect; use "
            "image_generation.total",
        ],
    ),
    "deprecated, equal to the default": (
        M % "standard: {first_byte: 30s}, image_generation: {first_byte: 60s}",
        [],
    ),
    "image first_byte deprecated": (
        "timeouts: {request: {image_generation: {first_byte: 59s}}}",
        [
            "warning: timeouts.request.image_generation.first_byte: is deprecated and has no "
            "effect; use image_generation.total"
        ],
    ),
    "deprecated and still checked": (
        "timeouts: {request: {image_generation: {first_byte: 60s, total: 59s}}}",
        [
            "timeouts.request.image_generation.first_byte: first_byte (60s) is longer than total "
            "(59s); first_byte must not be longer than total"
        ],
    ),
    "deprecated and not written": ("timeouts: {request: {image_generation: {total: 59s}}}", []),
    "override has an unknown key": (
        M % "standard: {totl: 1s}",
        [AT + 'standard.totl: is not a known key; did you mean "total"?'],
    ),
    "legacy health check, absent or agreeing": (
        "timeouts: {health_check: {interval: 30s, timeout: 10s}}",
        [],
    ),
    "legacy health check, in conflict": (
        "timeouts: {health_check: {interval: 5s}}",
        [
            "warning: timeouts.health_check.interval: is deprecated and ignored; 30s is in force; "
            "use health_checks.interval"
        ],
    ),
    "absolute cap of an image": (
        "timeouts: {limits: {max_image_timeout: 1081s}}",
        ["timeouts.limits.max_image_timeout: must be at most 1080s; default 540s"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rules(name: str) -> None:
    text, said = CASES[name]
    expected = [f"r.yaml:2: {line}" for line in said]
    assert sorted(router_lines(ROUTER_BASE + text)) == sorted(expected)


def test_an_override_in_doubt_is_not_judged() -> None:
    assert len(router_lines(ROUTER_BASE + M % "streaming: {total: 60}")) == 1
