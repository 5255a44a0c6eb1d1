"""Puts the router together: state once, a snapshot per configuration.

The only importer of optional modules, inside the branch that the configuration switched on. What is
registered as a metric is registered here, once, and handed to the feature that counts it.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from continuum_router.api.admin import Admin, ReloadAnswer
from continuum_router.api.app import EdgeServer, make_server
from continuum_router.api.edge_metrics import EdgeMetrics
from continuum_router.api.middleware import ActiveCount
from continuum_router.assemble_routing import (
    RoutingState,
    make_key_scoper,
    make_piecer,
    make_selector,
    routing_state,
)
from continuum_router.backends.credentials import TlsFileError, tls_context
from continuum_router.backends.fleet import Fleet
from continuum_router.backends.health_watch import HealthMetrics, HealthWatch
from continuum_router.backends.pool import Pool
from continuum_router.config.root import Config
from continuum_router.config.server import RoutingHeaders
from continuum_router.derive import (
    aliases_of,
    backend_of,
    catalog_rules,
    condition_rules,
    fetch_bounds,
    probe_plans,
    retry_policy,
)
from continuum_router.event_consumers import EventConsumers
from continuum_router.kv_index.consumer import ConsumerMetrics
from continuum_router.kv_index.cost_index import CostKvIndex
from continuum_router.kv_index.index import KvIndex
from continuum_router.kv_index.sweep import sweep
from continuum_router.models.catalog import Catalog
from continuum_router.models.fetch import fetch_models
from continuum_router.models.kv_room import keep_rooms
from continuum_router.providers.prepare import Preparer, TrustedProxies
from continuum_router.providers.salt_stamp import SaltStamp
from continuum_router.reload_report import ReloadMetrics
from continuum_router.request import RequestRules
from continuum_router.routing.response_homes import ResponseHomes
from continuum_router.routing.selector import RoutingMetrics
from continuum_router.runtime import Runtime, Snapshot
from continuum_router.upstream.attempt import Dispatcher
from continuum_router.upstream.call_limits import base_limits, model_limits
from continuum_router.upstream.dispatch_state import DispatchMetrics, DispatchState
from continuum_router.upstream.pool import UpstreamPool
from continuum_router.upstream.prewarm import prewarm
from continuum_shared.backoff import Backoff
from continuum_shared.cache_salt import SaltIssuer
from continuum_shared.metrics import Metrics
from continuum_shared.tasks import Supervisor
from continuum_shared.version import __version__

log = logging.getLogger("continuum_router.assemble")


@dataclass(slots=True, kw_only=True)
class State:
    """What lives as long as the process and is keyed by backend name. Made by `build_state`."""

    metrics: Metrics
    edge_metrics: EdgeMetrics
    consumer_metrics: ConsumerMetrics | None
    active: ActiveCount
    supervisor: Supervisor
    dispatch: DispatchState
    upstream: UpstreamPool
    routing: RoutingState
    catalog: Catalog
    health: HealthWatch
    consumers: EventConsumers
    reload_metrics: ReloadMetrics
    homes: ResponseHomes = field(default_factory=ResponseHomes)

    @property
    def kv(self) -> KvIndex:
        """The index of either mode."""
        return self.routing.kv


def build_state(config: Config) -> State:
    """Make the state; nothing is opened and no task runs yet. Needs the running loop."""
    metrics = Metrics()
    crashes = metrics.counter(
        "continuum_task_crashes_total", "Background tasks that ended with an error."
    ).child()
    metrics.gauge_fn(
        "continuum_build_info",
        "1, with the version as label.",
        ("version",),
        lambda: [((__version__,), 1)],
    )
    active = ActiveCount()
    upstream = UpstreamPool(clock=time.monotonic)
    metrics.gauge_fn(
        "continuum_upstream_connections",
        "Connections to backends by state; waiting are callers in the queue.",
        ("backend", "state"),
        upstream.connections,
    )
    routing = routing_state(config.kv_cache_index, metrics)
    kv, index_on = routing.kv, config.kv_cache_index.enabled
    fleet = Fleet(metrics, (backend.name for backend in config.backends), clock=time.monotonic)
    fleet.conditions.adopt(condition_rules(config))
    fleet.conditions.reconcile((backend.name, backend.enabled) for backend in config.backends)
    consumer_metrics = ConsumerMetrics(metrics) if index_on else None
    supervisor = Supervisor("router", on_crash=lambda _name: crashes.inc())
    dispatch = DispatchState(
        fleet=fleet,
        transport=upstream,
        routing_metrics=RoutingMetrics(metrics),
        metrics=DispatchMetrics(metrics),
        clock=time.monotonic,
        wall=time.time,  # noqa: TID251 - the one place that reads it
        rng=random.Random(),
        served=kv.refresh,
        holdings=kv.holdings,
    )
    catalog = _catalog(config, metrics)
    fleet.conditions.on_recovery = catalog.recovered
    return State(
        metrics=metrics,
        edge_metrics=EdgeMetrics(metrics, lambda: active.now),
        consumer_metrics=consumer_metrics,
        active=active,
        supervisor=supervisor,
        dispatch=dispatch,
        upstream=upstream,
        routing=routing,
        catalog=catalog,
        consumers=EventConsumers(
            kv, consumer_metrics, supervisor, clock=time.monotonic, rng=random.Random()
        ),
        reload_metrics=ReloadMetrics(metrics, time.time),  # noqa: TID251
        health=HealthWatch(
            fleet.conditions,
            supervisor,
            HealthMetrics(metrics, fleet.conditions),
            rng=random.Random(),
        ),
    )


def build_snapshot(config: Config, state: State, *, generation: int = 1) -> Snapshot:
    """Make everything that one configuration decides. Touches no state and opens nothing."""
    backends = [backend_of(entry) for entry in config.backends]
    limits = base_limits(config.timeouts)
    request_rules = RequestRules(
        # Cost mode needs no keys to choose by, but events name prompts by them.
        want_keys=config.prefix_routing.enabled or state.routing.cost is not None,
        max_prefix_length=config.prefix_routing.max_prefix_length,
        aliases=aliases_of(backends),
    )
    dispatcher = Dispatcher(
        pool=Pool(backends),
        selector=make_selector(config, state.routing, state.dispatch.fleet, state.dispatch.rng),
        preparer=Preparer(
            backends,
            rewrite_response_model=config.server.rewrite_response_model,
            salts=_salts(config),
        ),
        retry=retry_policy(config),
        connect_timeout=config.timeouts.connection,
        standard=limits.standard,
        streaming=limits.streaming,
        image_generation=limits.image_generation,
        model_limits=model_limits(config.timeouts),
        fallbacks=config.fallbacks,
        request_rules=request_rules,
        sse_keepalive=config.server.sse_keepalive,
        piecer=make_piecer(config, state.routing, request_rules),
        state=state.dispatch,
    )
    return Snapshot(
        config=config,
        generation=generation,
        request_rules=request_rules,
        dispatcher=dispatcher,
        lookup=state.routing.lookup,
        key_scoper=make_key_scoper(config),
        catalog=state.catalog,
        trusted_proxies=TrustedProxies(config.server.trusted_proxies),
        # Nobody is authenticated in this version, so `authenticated` means nobody.
        routing_headers=config.server.routing_headers is RoutingHeaders.ALWAYS,
        max_body_bytes=config.server.max_body_bytes,
    )


def check_tls_files(snapshot: Snapshot) -> None:
    """Read the certificates of backends and event sources once: a wrong path is told at the start.

    Raises TlsFileError whose text names the backend.
    """
    kv = snapshot.config.kv_cache_index
    for source in kv.event_sources if kv.enabled else ():
        try:
            tls_context(source.tls)
        except TlsFileError as err:
            place = f"event source of {source.backend_name}"
            raise TlsFileError(err.key, f"{err.reason} ({place})") from None
    for backend in snapshot.dispatcher.pool.backends:
        if backend.url.tls:
            try:
                tls_context(backend.tls)
            except TlsFileError as err:
                raise TlsFileError(err.key, f"{err.reason} (backend {backend.name})") from None


def build_server(
    runtime: Runtime, state: State, reload: Callable[[], Awaitable[ReloadAnswer]]
) -> EdgeServer:
    """Make the server for clients. Needs the running loop."""
    return make_server(
        runtime,
        metrics=state.metrics,
        edge_metrics=state.edge_metrics,
        active=state.active,
        homes=state.homes,
        upstream=state.upstream,
        supervisor=state.supervisor,
        admin=Admin(runtime, state.dispatch.fleet, reload),
    )


def adopt_state(runtime: Runtime, state: State) -> None:
    """Let the state follow the configuration in force: what is new begins, what is gone ends.

    Backends keep their counts and their health by name; one that is gone is forgotten when its last
    request ends, and gets no new one.
    """
    snap = runtime.current
    names = [backend.name for backend in snap.config.backends]
    fleet = state.dispatch.fleet
    gone = set(fleet.conditions.names()).difference(names)
    fleet.reconcile(names)
    fleet.conditions.adopt(condition_rules(snap.config))
    fleet.conditions.reconcile((backend.name, backend.enabled) for backend in snap.config.backends)
    state.upstream.keep_only(names)
    for name in gone:
        state.routing.forget(name)
    runtime.publish_models(state.catalog.known(snap.dispatcher.pool))
    state.catalog.invalidate()


async def before_clients(runtime: Runtime, state: State) -> None:
    """What comes before the first client: connections are warmed and the first probes made (S2)."""
    section, pool = runtime.current.config.health_checks, runtime.current.dispatcher.pool
    await prewarm(pool.backends, state.upstream, section.prewarm_timeout)
    await state.health.first_rounds()


async def adopt_health(runtime: Runtime, state: State) -> None:
    """Let the probes follow the configuration in force."""
    config, pool = runtime.current.config, runtime.current.dispatcher.pool
    await state.health.adopt(pool.backends, probe_plans(config, pool))


async def start_tasks(runtime: Runtime, state: State) -> None:
    """Start what runs beside requests: event consumers, the index's sweep, the model list."""
    config = runtime.current.config
    await state.consumers.adopt(config)
    if config.kv_cache_index.enabled:
        state.supervisor.supervise(
            "kv-sweep", lambda: sweep(state.kv, time.monotonic), Backoff(1, 60)
        )
    if isinstance(state.kv, CostKvIndex):
        set_room = state.kv.pieces.set_room
        state.supervisor.supervise(
            "kv-room",
            lambda: keep_rooms(lambda: runtime.current.dispatcher.pool, set_room),
            Backoff(1, 60),
        )
    state.health.start()
    state.supervisor.supervise(
        "model-list",
        lambda: state.catalog.keep_fresh(
            lambda: runtime.current.dispatcher.pool, runtime.publish_models
        ),
        Backoff(1, 60),
    )


async def stop_state(state: State) -> None:
    """Stop tasks, then close what they used."""
    await state.supervisor.stop()
    await state.health.close()
    await state.consumers.close()
    await state.upstream.close()


def _catalog(config: Config, metrics: Metrics) -> Catalog:
    section = config.model_aggregation
    bounds = fetch_bounds(section)
    failures = metrics.counter(
        "model_transient_errors_total",
        "Tries to read a backend's model list that ended in a timeout, a lost connection or a 5xx.",
        {"backend": None},
    )
    return Catalog(
        lambda backend: fetch_models(backend, bounds),
        started=int(time.time()),  # noqa: TID251
        clock=time.monotonic,
        rules=catalog_rules(section),
        on_transient=lambda name: failures.child(name).inc(),
    )


def _salts(config: Config) -> SaltStamp | None:
    section = config.prefix_routing.salt_echo
    if not section.enabled:
        return None
    return SaltStamp(SaltIssuer(section.secrets, section.scope))
