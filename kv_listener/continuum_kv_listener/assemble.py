"""Wiring: from a configuration to sources that run. The only place that knows every part."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import zmq

from continuum_kv_listener.attribution import Attributor
from continuum_kv_listener.bearer import BearerGate
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.chain_stats import ChainLimits, ChainStats, TokenCount
from continuum_kv_listener.config import (
    ListenerConfig,
    PromptFormatConfig,
    PromptFormatName,
    SourceConfig,
    ZmqMode,
)
from continuum_kv_listener.engine_client import EngineClient, EngineEndpoints
from continuum_kv_listener.families import CustomMarkers, Family
from continuum_kv_listener.intake import Intake, IntakeSettings
from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.pipeline import Pipeline
from continuum_kv_listener.replay import ReplayClient, ReplaySettings
from continuum_kv_listener.serve_sse import Access, HttpSide, ServeTimes
from continuum_kv_listener.server_certificate import ServerCertificate
from continuum_kv_listener.serving_config import token_digests, tokens
from continuum_kv_listener.source_runner import SourceParts, SourceRunner
from continuum_kv_listener.sources.publisher_acl import AdmissionDesk, resolve_acl
from continuum_kv_listener.sources.readable import Socket
from continuum_kv_listener.sources.zmq_source import Admission, ZmqEndpointSettings, ZmqSource
from continuum_kv_listener.sources_page import page
from continuum_kv_listener.stream import EventStream
from continuum_shared.backoff import Backoff
from continuum_shared.metrics import Metrics
from continuum_shared.tasks import Supervisor

HARD_FRAME_LIMIT = 2
"""A frame of this many times ``max_frame_bytes`` makes ZMQ hang up; a smaller one that is still
too large is read, counted as ``oversized`` and dropped, and its number is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What only a process has: clocks, randomness, environment. Tests give their own."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # noqa: TID251 - the wiring hands the clock out
    rng: random.Random
    env: Mapping[str, str] = field(default_factory=dict)


class Listener:
    """All sources of one configuration and what they share. Made in a running loop."""

    def __init__(self, config: ListenerConfig, world: World) -> None:
        self.config = config
        self.metrics = Metrics()
        self.families = ListenerMetrics(self.metrics)
        self.runners: dict[str, SourceRunner] = {}
        self._world = world
        crashes = self.families.crashes.child()
        self._supervisor = Supervisor("listener", on_crash=lambda _: crashes.inc())
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self._desk = AdmissionDesk(self._context)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=8),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        self.families.watch_sizes(self._stats)

    async def start(self) -> None:
        """Build and start every source. Raises ``UnresolvedPublisher``."""
        self._supervisor.supervise("admission", self._desk.run, Backoff(0.1, 5.0))
        for source in self.config.sources:
            self.runners[source.backend_name] = await self._runner(source)
        for runner in self.runners.values():
            runner.start(self._supervisor)

    def http(self, times: ServeTimes | None = None) -> HttpSide:
        """The HTTP side over these sources."""
        digests = token_digests(tokens(self.config, self._world.env))
        return HttpSide(
            self.runners,
            page=self.page,
            families=self.families,
            access=Access(gate=BearerGate(digests), max_subscribers=self.config.max_subscribers),
            times=times,
        )

    def certificate(self) -> ServerCertificate | None:
        """What TLS shows, None without TLS. Raises ``CertificateError``."""
        if self.config.tls is None:
            return None
        made = ServerCertificate(self.config.tls, lambda result: renewals[result].inc())
        renewals = self.families.watch_certificate(lambda: made.expires)
        self._supervisor.supervise("certificate", made.watch, Backoff(1.0, 60.0))
        return made

    def page(self) -> dict[str, object]:
        """The body of ``/sources``."""
        wall = self._world.wall()
        return page(runner.facts(wall) for runner in self.runners.values())

    def end_streams(self) -> None:
        """Close every event stream: the daemon stops."""
        for runner in self.runners.values():
            runner.stream.close()

    async def stop(self) -> None:
        """Stop the tasks, then close what they used."""
        await self._supervisor.stop()
        for runner in self.runners.values():
            runner.parts.link.close()
        self._desk.close()
        await self._session.close()
        # Lets aiohttp's transports close before the loop does.
        await asyncio.sleep(0)
        self._context.destroy(0)

    def _stats(self) -> list[tuple[str, ChainStats]]:
        return [
            (name, runner.parts.pipeline.tracker.stats) for name, runner in self.runners.items()
        ]

    async def _runner(self, source: SourceConfig) -> SourceRunner:
        name, world, config = source.backend_name, self._world, self.config
        metrics = self.families.intake(name)
        client = EngineClient(self._session, engine_endpoints(source), model=source.models[0])
        judge = Attributor(
            client,
            models=source.models,
            max_prefix_length=source.max_prefix_length,
            prompt_format=prompt_format(source.prompt_format),
            rng=world.rng,
        )
        pipeline = Pipeline(
            engine=source.engine.value,
            tracker=ChainTracker(
                ChainLimits(
                    max_chain_tokens=config.max_chain_tokens,
                    max_tracked_blocks=config.max_tracked_blocks,
                    max_retained_tokens=config.max_retained_tokens,
                ),
                token_count=TokenCount(source.token_count.value),
            ),
            metrics=metrics,
            clock=world.clock,
            on_restart=judge.engine_restarted,
        )
        stream = EventStream(
            epoch=f"{world.rng.getrandbits(48):012x}",
            max_prefix_length=source.max_prefix_length,
            snapshot=pipeline.snapshot,
            metrics=self.families.stream(name),
            history=config.history,
        )
        pipeline.publish_to(stream)
        link = await self._link(source, pipeline)
        intake = Intake(
            IntakeSettings(max_frame_bytes=source.max_frame_bytes),
            source=link,
            replay=self._replay(source, pipeline),
            sink=pipeline,
            metrics=metrics,
            clock=world.clock,
        )
        parts = SourceParts(
            name=name,
            engine=source.engine.value,
            replay_endpoint=_text(source.zmq_replay_endpoint),
            link=link,
            intake=intake,
            pipeline=pipeline,
            stream=stream,
            judge=judge,
            health=client,
            metrics=metrics,
        )
        return SourceRunner(
            parts, reannounce_interval=config.reannounce_interval, clock=world.clock
        )

    async def _link(self, source: SourceConfig, pipeline: Pipeline) -> ZmqSource:
        admission = None
        if source.mode is ZmqMode.BIND:
            local = bool(source.zmq_endpoint.ipc_path)
            acl = await resolve_acl(source.allowed_publishers, local=local)
            admission = Admission(desk=self._desk, acl=acl)
        settings = ZmqEndpointSettings(
            name=source.backend_name,
            endpoint=str(source.zmq_endpoint),
            mode=source.mode,
            topic=source.zmq_topic,
            max_message_bytes=HARD_FRAME_LIMIT * source.max_frame_bytes,
        )
        return ZmqSource(
            settings,
            context=self._context,
            on_drop=pipeline.dropped,
            admission=admission,
            clock=self._world.clock,
        )

    def _replay(self, source: SourceConfig, pipeline: Pipeline) -> ReplayClient | None:
        if source.zmq_replay_endpoint is None:
            return None
        settings = ReplaySettings(
            source=source.backend_name,
            endpoint=str(source.zmq_replay_endpoint),
            max_message_bytes=HARD_FRAME_LIMIT * source.max_frame_bytes,
        )
        return ReplayClient(
            settings, context=self._context, on_drop=pipeline.dropped, clock=self._world.clock
        )


def engine_endpoints(source: SourceConfig) -> EngineEndpoints:
    """The engine's URLs as text (J16)."""
    urls = source.endpoints
    return EngineEndpoints(
        detokenize=str(urls.detokenize), tokenize=str(urls.tokenize), health=str(urls.health)
    )


def prompt_format(section: PromptFormatConfig) -> Family | CustomMarkers | None:
    """What the file says about the template; None means that it is learnt."""
    if section.custom is not None:
        return CustomMarkers(
            system_start=section.custom.system_start,
            system_end=section.custom.system_end,
            first_user_start=section.custom.first_user_start,
        )
    return None if section.name is PromptFormatName.AUTO else Family(section.name.value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
