"""The whole router configuration: one field per YAML section, and how a file becomes one.

`load_config` is the only way from a file to a `Config`. Rules over several sections are in
`checks.py`.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import Field

from continuum_router.config.admin import AdminConfig
from continuum_router.config.backends import BackendConfig
from continuum_router.config.checks import CHECKS
from continuum_router.config.fallbacks import Fallbacks
from continuum_router.config.health_checks import HealthChecksConfig
from continuum_router.config.kv_cache_index import KvCacheIndexConfig
from continuum_router.config.model_aggregation import ModelAggregationConfig
from continuum_router.config.retry import RetryConfig
from continuum_router.config.routing import PrefixRoutingConfig, SelectionStrategy, StrategyName
from continuum_router.config.server import ServerConfig
from continuum_router.config.timeouts import TimeoutsConfig
from continuum_shared.config.decode import decode
from continuum_shared.config.kinds import SectionModel, not_yet
from continuum_shared.config.logging_section import LoggingConfig
from continuum_shared.config.report import ConfigError, Report
from continuum_shared.config.source import load_file, load_text


class Config(SectionModel):
    """Everything the router's file says, with defaults filled in."""

    later: ClassVar[Mapping[str, str]] = not_yet(
        "access",
        "auth",
        "control_plane",
        "dynamo",
        "gemini_context_cache",
        "guardrails",
        "prompt_logging",
        "rate_limiting",
        "response_cache",
    )

    server: ServerConfig = Field(default_factory=ServerConfig)
    backends: tuple[BackendConfig, ...] = Field(())
    selection_strategy: SelectionStrategy = Field(
        StrategyName.ROUND_ROBIN,
        description="How a backend is chosen when the KV index has no answer. Both spellings "
        "work: `PrefixAwareHash`, `prefix_aware_hash`. See docs/routing.md.",
    )
    prefix_routing: PrefixRoutingConfig = Field(default_factory=PrefixRoutingConfig)
    kv_cache_index: KvCacheIndexConfig = Field(default_factory=KvCacheIndexConfig)
    health_checks: HealthChecksConfig = Field(default_factory=HealthChecksConfig)
    model_aggregation: ModelAggregationConfig = Field(default_factory=ModelAggregationConfig)
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig)
    retry: RetryConfig = Field(default_factory=RetryConfig)
    fallbacks: Fallbacks = Field(
        default_factory=dict,
        description="Models to try, in order, when a model's backends have failed or it has none: "
        "`{model: [model, ...]}`.",
    )
    admin: AdminConfig = Field(default_factory=AdminConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)


def load_config(path: str, env: Mapping[str, str]) -> tuple[Config, Report]:
    """Read a file. The report holds the warnings; any error raises ConfigError with all of them."""
    config, report = decode(Config, load_file(path, env=env), CHECKS)
    if config is None:
        raise ConfigError(report)
    return config, report


def parse_config(text: str, *, path: str, env: Mapping[str, str]) -> tuple[Config | None, Report]:
    """Like `load_config` for text at hand, without raising: None when there is any error."""
    return decode(Config, load_text(text, path=path, env=env), CHECKS)


def config_from_backends(urls: Iterable[str]) -> Config:
    """The configuration of `serve --backend URL …`: defaults, and backends named backend-1, ….

    Raises ConfigError whose problems name the command line argument.
    """
    lines = ["backends:"]
    for number, url in enumerate(urls, start=1):
        quoted = url.replace("'", "''")
        lines.append(f"- {{name: backend-{number}, url: '{quoted}'}}")
    config, report = parse_config("\n".join(lines), path="--backend", env={})
    if config is None:
        raise ConfigError(report)
    return config
