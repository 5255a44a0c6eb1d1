"""A source whose endpoints its engine names: asked for until it answers, then run like any other.

Until then the source is on ``GET /sources`` with the reason, and has no stream (decisions C40).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from continuum_kv_listener.attribution import CalibrationState
from continuum_kv_listener.attribution_types import AttributionMode
from continuum_kv_listener.chain_stats import ChainStats
from continuum_kv_listener.config import SourceConfig
from continuum_kv_listener.discovery import (
    DiscoveryError,
    DiscoveryFault,
    Found,
    Publication,
    settle,
)
from continuum_kv_listener.sources.publisher_acl import UnresolvedPublisher
from continuum_kv_listener.sources_page import LinkFacts, OrderFacts, SourceFacts
from continuum_shared.backoff import Backoff
from continuum_shared.config.kinds import HttpEndpoint
from continuum_shared.logs import fields

log = logging.getLogger("continuum_kv_listener.source_finder")

T = TypeVar("T")
Build = Callable[[SourceConfig, tuple[str, ...]], Awaitable[T]]
"""Makes what runs a source from its configuration and the warnings that it comes with."""
Ask = Callable[[HttpEndpoint], Awaitable[Sequence[Publication]]]


class SourceFinder:
    """Asks for the endpoints of one source. ``clock`` gives seconds."""

    def __init__(
        self, source: SourceConfig, ask: Ask, *, clock: Callable[[], float], backoff: Backoff
    ) -> None:
        if source.discover is None:
            raise ValueError("the source has no discover URL")
        self.problem = DiscoveryFault.UNREACHABLE.value
        self._source = source
        self._url = source.discover
        self._ask = ask
        self._clock = clock
        self._backoff = backoff
        self._started_at = clock()

    async def run(self, build: Build[T]) -> T:
        """Find the source and build it."""
        while True:
            found = await self.find()
            try:
                return await build(found.source, found.warnings)
            except UnresolvedPublisher as error:
                await self.failed(str(error))

    async def find(self) -> Found:
        """Return when the engine has told enough."""
        while True:
            try:
                found = settle(self._source, await self._ask(self._url), self._url)
            except DiscoveryError as error:
                await self.failed(error.fault.value)
            else:
                log.info(
                    "Source found",
                    extra=fields(
                        source=self._source.backend_name,
                        endpoint=str(found.source.zmq_endpoint),
                        ranks=found.source.dp_size,
                        warnings=list(found.warnings),
                    ),
                )
                return found

    async def failed(self, problem: str) -> None:
        """Note what is wrong and wait before the next try; a new problem is logged once."""
        if problem != self.problem:
            log.warning(
                "Source not found",
                extra=fields(source=self._source.backend_name, problem=problem),
            )
        self.problem = problem
        await asyncio.sleep(self._backoff.next())

    def facts(self) -> SourceFacts:
        """The source's row while it is not found."""
        return SourceFacts(
            backend_name=self._source.backend_name,
            engine=self._source.engine.value,
            uptime=self._clock() - self._started_at,
            link=LinkFacts(endpoint=str(self._url), binds=False),
            order=OrderFacts(),
            stats=ChainStats.of_nothing(),
            calibration=CalibrationState(calibrated=False, attribution=AttributionMode.NONE),
            drops={},
            unfound=self.problem,
        )
