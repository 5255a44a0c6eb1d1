"""`continuum-router config validate | show | diff | schema | init`, without the command line.

Each function writes to `out` and returns the exit code: 0 good (warnings allowed), 1 problems
(decisions J1). Nothing here opens a socket, and no secret is ever written.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, TextIO

import yaml

from continuum_router.config.checks import CHECKS
from continuum_router.config.reload import Sign, compare
from continuum_router.config.root import Config
from continuum_shared.config.decode import decode
from continuum_shared.config.kinds import Reload, SectionModel
from continuum_shared.config.model_walk import secret_paths
from continuum_shared.config.report import Report, dotted
from continuum_shared.config.source import Source, load_file

_REFERENCE = re.compile(r"""(['"]?)\$\{[A-Za-z_][A-Za-z0-9_]*\}\1""")
_ANCHOR = re.compile(r"&\S+\s+")
_EFFECT: Mapping[Reload, str] = {
    Reload.HOT: "applied by a reload",
    Reload.RESTART: "needs a restart",
    Reload.REFUSED: "refused by a reload, needs a restart",
}

STARTER = """\
# Configuration of continuum-router. Check it with: continuum-router config validate --config FILE
# Every key: continuum-router config schema, docs/configuration.md

server:
  listen: "127.0.0.1:8080"

backends:
  - name: engine-1
    type: vllm
    url: "http://127.0.0.1:8000"
  - name: engine-2
    type: vllm
    url: "http://127.0.0.1:8001"

# Requests that begin alike go to the same engine.
selection_strategy: PrefixAwareHash
prefix_routing:
  enabled: true

# Ask which engine really holds a prefix. Needs continuum-kv-listener beside the engines.
kv_cache_index:
  enabled: true
  event_sources:
    - backend_name: engine-1
      endpoint: "http://127.0.0.1:7817/events/engine-1"
    - backend_name: engine-2
      endpoint: "http://127.0.0.1:7817/events/engine-2"
"""


def validate(path: str, out: TextIO, *, env: Mapping[str, str]) -> int:
    """Say everything that is wrong with a file, or that it is good."""
    _, config, report = _read(path, env)
    _print_report(report, out)
    counts = [_count(len(report.errors), "error"), _count(len(report.warnings), "warning")]
    verdict = "cannot be used" if config is None else "is good"
    print(f"{path} {verdict}: {', '.join(counts)}", file=out)
    return 1 if config is None else 0


def show(path: str, out: TextIO, *, env: Mapping[str, str], resolved: bool = False) -> int:
    """The file as it is written, or with `resolved` everything that is in force. Secrets masked."""
    source, config, report = _read(path, env)
    if config is None:
        _print_report(report, out)
        return 1
    out.write(_as_yaml(config) if resolved else _masked(source, config))
    return 0


def diff(old: str, new: str, out: TextIO, *, env: Mapping[str, str]) -> int:
    """What changes from one file to the other, and what each change needs of a running router."""
    configs: list[Config] = []
    for path in (old, new):
        _, config, report = _read(path, env)
        if config is None:
            _print_report(report, out)
        else:
            configs.append(config)
    if len(configs) != 2:
        return 1
    changes = compare(configs[0], configs[1])
    for change in changes:
        values = f": {change.before} -> {change.after}" if change.sign is Sign.CHANGED else ""
        effect = _EFFECT[change.reload]
        print(f"{change.sign} {dotted(change.path)}{values} ({effect})", file=out)
    print(_count(len(changes), "change") if changes else "no difference", file=out)
    return 0


def schema(out: TextIO) -> int:
    """The JSON Schema of the file, for editors (decisions P2)."""
    json.dump(json_schema(Config), out, indent=2)
    out.write("\n")
    return 0


def init(out: TextIO, path: str | None = None) -> int:
    """A short file to begin with: written to `path`, which must not exist, or else to `out`."""
    if path is None:
        out.write(STARTER)
        return 0
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(STARTER)
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        print(f"{path}: the file cannot be written: {reason}", file=out)
        return 1
    print(
        f"{path} written; check it with: continuum-router config validate --config {path}", file=out
    )
    return 0


def json_schema(model: type[SectionModel]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
        "title": "continuum-router configuration",
    }


def _read(path: str, env: Mapping[str, str]) -> tuple[Source, Config | None, Report]:
    source = load_file(path, env=env)
    config, report = decode(Config, source, CHECKS)
    return source, config, report


def _print_report(report: Report, out: TextIO) -> None:
    for line in report.lines():
        print(line, file=out)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _as_yaml(config: Config) -> str:
    data = config.model_dump(mode="json")
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)


def _masked(source: Source, config: Config) -> str:
    """The file's own text with every literal secret replaced; `${VAR}` references stay."""
    text = source.text
    spans = {
        (scalar.start, scalar.end)
        for path in secret_paths(config)
        if (scalar := source.scalars.get(path)) is not None
    }
    for start, end in sorted(spans, reverse=True):
        written = text[start:end]
        anchor = _ANCHOR.match(written)
        start += anchor.end() if anchor else 0
        if not _REFERENCE.fullmatch(text[start:end]):
            text = text[:start] + '"***"' + ("\n" if written.endswith("\n") else "") + text[end:]
    return text if text.endswith("\n") else text + "\n"
