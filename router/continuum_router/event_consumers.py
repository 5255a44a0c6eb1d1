"""The consumers of KV events, one task for each event source, following the configuration (H14)."""

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from continuum_router.backends.credentials import TlsFileError, tls_context
from continuum_router.config.backends import TlsConfig
from continuum_router.config.kv_cache_index import EventSourceConfig
from continuum_router.config.root import Config
from continuum_router.kv_index.apply import OffloadPolicy
from continuum_router.kv_index.consumer import (
    ConsumerMetrics,
    EventSource,
    KvEventConsumer,
    source_backoff,
)
from continuum_router.kv_index.feeds import FeedAccess, MakeTls, SseFeed, TlsFiles, event_session
from continuum_router.kv_index.index import KvIndex
from continuum_shared.backoff import Backoff
from continuum_shared.tasks import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """All that one consumer depends on; a change of any of it means a new consumer."""

    config: EventSourceConfig
    policy: OffloadPolicy
    max_prefix_length: int


class EventConsumers:
    """State: which consumers run. Without `metrics` (the index is off) there are none."""

    def __init__(
        self,
        index: KvIndex,
        metrics: ConsumerMetrics | None,
        supervisor: Supervisor,
        *,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._index = index
        self._metrics = metrics
        self._supervisor = supervisor
        self._clock = clock
        self._rng = rng
        self._running: dict[str, _Source] = {}
        self._session: aiohttp.ClientSession | None = None

    async def adopt(self, config: Config) -> None:
        """Run the consumers of this configuration: start new ones, end others, leave the rest.

        What a source that is gone had told about its backend leaves the index with it.
        """
        wanted = _sources(config) if self._metrics is not None else {}
        for name in [name for name, have in self._running.items() if wanted.get(name) != have]:
            del self._running[name]
            await self._supervisor.cancel(_task(name))
            if name not in wanted:
                self._index.purge(name)
        for name, source in wanted.items():
            if name not in self._running:
                self._running[name] = source
                self._supervisor.supervise(_task(name), self._consumer(source).run, Backoff(1, 60))

    async def close(self) -> None:
        """Close what the consumers used; their tasks have ended."""
        self._running.clear()
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            # The session's transports close their sockets in the next turns of the loop.
            await asyncio.sleep(0)

    def _consumer(self, source: _Source) -> KvEventConsumer:
        assert self._metrics is not None
        if self._session is None:
            self._session = event_session()
        config, interval = source.config, source.config.reconnect_interval_ms
        access = FeedAccess(
            token=config.auth_token, tls=_tls(config.tls), server_name=config.tls.server_name
        )
        return KvEventConsumer(
            EventSource(
                backend=config.backend_name,
                feed=SseFeed(self._session, str(config.endpoint), access=access),
                backoff=source_backoff(None if interval is None else interval / 1000, self._rng),
                counters=self._metrics.bind(config.backend_name),
            ),
            self._index,
            policy=source.policy,
            max_prefix_length=source.max_prefix_length,
            clock=self._clock,
        )


def _sources(config: Config) -> dict[str, _Source]:
    section = config.kv_cache_index
    if not section.enabled:
        return {}
    offloading = section.storage_offloading
    policy = OffloadPolicy(
        enabled=offloading.enabled,
        treat_eviction_as_offload=offloading.treat_eviction_as_offload,
    )
    length = config.prefix_routing.max_prefix_length
    return {
        entry.backend_name: _Source(config=entry, policy=policy, max_prefix_length=length)
        for entry in section.event_sources
    }


def _tls(section: TlsConfig) -> MakeTls | None:
    """Makes the context of each connection anew, so that renewed files count; None = defaults."""
    if section == TlsConfig():
        return None

    def make() -> ssl.SSLContext:
        try:
            return tls_context(section)
        except TlsFileError as err:
            raise TlsFiles(str(err)) from None

    return make


def _task(name: str) -> str:
    return f"kv-events:{name}"
