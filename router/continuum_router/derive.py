"""Values that one configuration decides, made from its sections; `assemble` puts them together.

Pure: nothing is opened, no state is touched.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from continuum_router.backends.breaker import BreakerRules
from continuum_router.backends.conditions import ConditionRules
from continuum_router.backends.health import HealthRules
from continuum_router.backends.pool import Backend, Pool
from continuum_router.backends.probe_plan import ProbePlan, plan_for
from continuum_router.config.backends import BackendConfig, Replay
from continuum_router.config.model_aggregation import Deduplication, ModelAggregationConfig
from continuum_router.config.root import Config
from continuum_router.models.catalog import CatalogRules
from continuum_router.models.fetch import Bounds
from continuum_router.models.freshness import Lifetimes
from continuum_router.upstream.retry import RetryPolicy
from continuum_router.upstream.retry_budget import BudgetRules


def backend_of(entry: BackendConfig) -> Backend:
    """One entry of `backends[]` as the value that routing and sending use."""
    return Backend(
        name=entry.name,
        type=entry.type,
        url=entry.url,
        models=frozenset(entry.models),
        weight=entry.weight,
        replay_allowed=entry.replay is Replay.ENABLED,
        api_key=entry.api_key,
        headers=tuple((name, value.reveal()) for name, value in entry.headers.items()),
        max_connections=entry.max_connections,
        enabled=entry.enabled,
        internal=entry.internal,
        aliases=MappingProxyType(dict(entry.aliases)),
        auth_scheme=entry.auth_scheme,
        organization=entry.organization,
        tls=entry.tls,
    )


def aliases_of(backends: Sequence[Backend]) -> dict[str, str]:
    """Client's name → name that prefix keys are made of: what the first backend calls it (A1)."""
    found: dict[str, str] = {}
    for backend in backends:
        if backend.enabled and not backend.internal:
            for model in (*backend.models, *backend.aliases):
                found.setdefault(model, backend.real_name(model))
    return {name: real for name, real in found.items() if name != real}


def condition_rules(config: Config) -> ConditionRules:
    """How backends are judged under this configuration."""
    section = config.health_checks
    return ConditionRules(
        health=HealthRules(
            interval=section.interval,
            unhealthy_threshold=section.unhealthy_threshold,
            healthy_threshold=section.healthy_threshold,
            warmup_check_interval=section.warmup_check_interval,
            max_warmup_duration=section.max_warmup_duration,
        ),
        breaker=BreakerRules(
            failures=section.breaker.failures,
            cooldown=section.breaker.cooldown,
            enabled=section.breaker.enabled,
        ),
        probing=section.enabled,
        last_resort=section.last_resort,
    )


def probe_plans(config: Config, pool: Pool) -> Mapping[str, ProbePlan]:
    """How each backend is probed; empty when nobody is."""
    section = config.health_checks
    return {
        entry.name: plan_for(pool.by_name[entry.name], entry.health_check, section)
        for entry in (config.backends if section.enabled else ())
    }


def retry_policy(config: Config) -> RetryPolicy:
    """The `retry` section as the rules that decide."""
    section = config.retry
    return RetryPolicy(
        max_attempts=section.max_attempts,
        initial_delay=section.initial_delay,
        max_delay=section.max_delay,
        backoff_multiplier=section.backoff_multiplier,
        jitter=section.jitter,
        retryable_status_codes=frozenset(section.retryable_status_codes),
        prefer_untried_backends=section.prefer_untried_backends,
        on_timeout=section.on_timeout,
        budget=BudgetRules(
            ratio=section.budget.ratio,
            min_retries=section.budget.min_retries,
            window=section.budget.window,
        ),
    )


def fetch_bounds(section: ModelAggregationConfig) -> Bounds:
    """What reading one backend's model list may cost."""
    return Bounds(
        timeout=section.request_timeout,
        max_bytes=section.max_response_size,
        max_models=section.max_models_per_backend,
    )


def catalog_rules(section: ModelAggregationConfig) -> CatalogRules:
    """How the model list is gathered and kept."""
    background = section.background_refresh
    return CatalogRules(
        lifetimes=Lifetimes(
            ttl=section.cache_ttl,
            soft_ratio=section.soft_ttl_ratio,
            empty_base=section.empty_response_base_ttl,
            empty_max=section.empty_response_max_ttl,
        ),
        max_retries=section.max_retries,
        retry_delay=section.retry_delay,
        max_total=section.max_total_models,
        last_wins=section.deduplication_strategy is Deduplication.LAST_WINS,
        check_interval=background.check_interval if background.enabled else None,
    )
