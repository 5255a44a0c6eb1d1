"""Wiring: from a configuration to sources that run. The only place that knows every part."""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import aiohttp
import zmq

from continuum_kv_listener.attribution import Attributor
from continuum_kv_listener.attribution_types import AttributionMode
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
from continuum_kv_listener.engine_text import EngineText, LocalText
from continuum_kv_listener.engine_watch import MetricsPage
from continuum_kv_listener.families import CustomMarkers, Family
from continuum_kv_listener.intake import Intake, IntakeSettings
from continuum_kv_listener.lane import Lane
from continuum_kv_listener.listener_metrics import IntakeMetrics, ListenerMetrics
from continuum_kv_listener.pipeline import OnGap, Pipeline
from continuum_kv_listener.rank_merge import RankMerge
from continuum_kv_listener.reannounce import Vouching
from continuum_kv_listener.replay import ReplayClient, ReplaySettings
from continuum_kv_listener.request_probe import RequestProbe
from continuum_kv_listener.salt_reader import SaltReader
from continuum_kv_listener.serve_sse import Access, HttpSide, ServeTimes
from continuum_kv_listener.server_certificate import ServerCertificate
from continuum_kv_listener.serving_config import token_digests, tokens
from continuum_kv_listener.source_runner import SourceParts, SourceRunner
from continuum_kv_listener.sources.publisher_acl import AdmissionDesk, resolve_acl
from continuum_kv_listener.sources.readable import Socket
from continuum_kv_listener.sources.zmq_source import Admission, ZmqEndpointSettings, ZmqSource
from continuum_kv_listener.sources_page import page
from continuum_kv_listener.stream import EventStream
from continuum_kv_listener.teacher import Teacher
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_shared.backoff import Backoff
from continuum_shared.cache_salt import SaltVerifier
from continuum_shared.metrics import Metrics
from continuum_shared.tasks import Supervisor

HARD_FRAME_LIMIT = 2
"""A frame of this many times ``max_frame_bytes`` makes ZMQ hang up; a smaller one that is still
too large is read, counted as ``oversized`` and dropped, and its number is known."""

TTL_INTERVALS = 3
"""The router's entries live for three intervals of re-announcement (decisions C29)."""


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
        self._salts: dict[str, SaltReader] = {}
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
        self.families.watch_attribution(self._attribution)

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
            for lane in runner.parts.lanes:
                lane.link.close()
        self._desk.close()
        await self._session.close()
        # Lets aiohttp's transports close before the loop does.
        await asyncio.sleep(0)
        self._context.destroy(0)

    def _stats(self) -> list[tuple[str, ChainStats]]:
        return [(name, runner.stats) for name, runner in self.runners.items()]

    def _attribution(self) -> list[tuple[str, Collection[TemplateLimit], int]]:
        return [
            (name, runner.parts.judge.state.limits, self._salts[name].verified_total)
            for name, runner in self.runners.items()
        ]

    async def _runner(self, source: SourceConfig) -> SourceRunner:
        name, world, config = source.backend_name, self._world, self.config
        metrics = self.families.intake(name)
        client = EngineClient(self._session, engine_endpoints(source), model=source.models[0])
        salts = self._salts[name] = salt_reader(source, config)
        trackers = [self._tracker(source, salts) for _ in range(source.dp_size)]
        judge = attributor(
            source,
            client,
            world,
            salts=salts,
            wanted=lambda: any(tracker.stats.pending for tracker in trackers),
        )
        pipelines = [
            Pipeline(
                engine=source.engine.value,
                tracker=tracker,
                metrics=metrics,
                clock=world.clock,
                on_restart=judge.engine_restarted,
                on_gap=OnGap(source.on_gap.value),
            )
            for tracker in trackers
        ]
        merge = RankMerge(pipelines) if source.dp_size > 1 else None
        stream = EventStream(
            epoch=f"{world.rng.getrandbits(48):012x}",
            max_prefix_length=source.max_prefix_length,
            snapshot=pipelines[0].snapshot if merge is None else merge.snapshot,
            metrics=self.families.stream(name),
            history=config.history,
        )
        if merge is None:
            pipelines[0].publish_to(stream)
        else:
            merge.publish_to(stream)
        lanes = [
            await self._lane(source, rank, pipeline, metrics)
            for rank, pipeline in enumerate(pipelines)
        ]
        parts = SourceParts(
            name=name,
            engine=source.engine.value,
            lanes=tuple(lanes),
            merge=merge,
            stream=stream,
            judge=judge,
            health=client,
            vitals=MetricsPage(
                self._session, None if source.endpoints is None else str(source.endpoints.metrics)
            ),
            metrics=metrics,
        )
        return SourceRunner(
            parts, reannounce_interval=config.reannounce_interval, clock=world.clock
        )

    def _tracker(self, source: SourceConfig, salts: SaltReader) -> ChainTracker:
        config = self.config
        return ChainTracker(
            ChainLimits(
                max_chain_tokens=config.max_chain_tokens,
                max_tracked_blocks=config.max_tracked_blocks,
                max_retained_tokens=config.max_retained_tokens,
            ),
            token_count=TokenCount(source.token_count.value),
            verify_salt=salts,
            doubt_seconds=TTL_INTERVALS * config.reannounce_interval,
        )

    async def _lane(
        self,
        source: SourceConfig,
        rank: int,
        pipeline: Pipeline,
        metrics: IntakeMetrics,
    ) -> Lane:
        link = await self._link(source, rank, pipeline)
        replay = source.zmq_replay_endpoint
        return Lane(
            rank=rank,
            link=link,
            intake=Intake(
                IntakeSettings(max_frame_bytes=source.max_frame_bytes),
                source=link,
                replay=self._replay(source, rank, pipeline),
                sink=pipeline,
                metrics=metrics,
                clock=self._world.clock,
            ),
            pipeline=pipeline,
            replay_endpoint=None if replay is None else str(replay.of_rank(rank)),
            vouching=Vouching(self.config.reannounce_interval, self._world.clock()),
        )

    async def _link(self, source: SourceConfig, rank: int, pipeline: Pipeline) -> ZmqSource:
        admission = None
        if source.mode is ZmqMode.BIND:
            local = bool(source.zmq_endpoint.ipc_path)
            acl = await resolve_acl(source.allowed_publishers, local=local)
            admission = Admission(desk=self._desk, acl=acl)
        settings = ZmqEndpointSettings(
            # names the admission rule, so each rank needs its own
            name=f"{source.backend_name}#{rank}" if rank else source.backend_name,
            endpoint=str(source.zmq_endpoint.of_rank(rank)),
            mode=source.mode,
            topic=source.zmq_topic,
            rank=rank,
            max_message_bytes=HARD_FRAME_LIMIT * source.max_frame_bytes,
        )
        return ZmqSource(
            settings,
            context=self._context,
            on_drop=pipeline.dropped,
            admission=admission,
            clock=self._world.clock,
        )

    def _replay(self, source: SourceConfig, rank: int, pipeline: Pipeline) -> ReplayClient | None:
        if source.zmq_replay_endpoint is None:
            return None
        settings = ReplaySettings(
            source=source.backend_name,
            endpoint=str(source.zmq_replay_endpoint.of_rank(rank)),
            rank=rank,
            max_message_bytes=HARD_FRAME_LIMIT * source.max_frame_bytes,
        )
        return ReplayClient(
            settings, context=self._context, on_drop=pipeline.dropped, clock=self._world.clock
        )


def engine_endpoints(source: SourceConfig) -> EngineEndpoints:
    """The engine's URLs as text (J16)."""
    urls = source.endpoints
    if urls is None:
        return EngineEndpoints()
    return EngineEndpoints(
        detokenize=str(urls.detokenize),
        tokenize=str(urls.tokenize),
        health=str(urls.health),
        chat=str(urls.chat),
    )


def salt_reader(source: SourceConfig, config: ListenerConfig) -> SaltReader:
    """What reads the salts of one source; without salt echo no salt is good."""
    section = config.salt_echo
    verifier = SaltVerifier(section.secrets, backend=source.backend_name, scope=section.scope)
    return SaltReader(verifier, models=source.models, expected=section.enabled)


def attributor(
    source: SourceConfig,
    client: EngineClient,
    world: World,
    *,
    salts: SaltReader | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Attributor:
    """The attributor of one source with the ways that its configuration opens (decisions C22).

    Raises ``TokenizerFileError``.
    """
    text: EngineText = client
    ways: list[tuple[AttributionMode, EngineText]] = []
    local = _tokenizer(source, world)
    if local is not None:
        text = LocalText(client, local)
    if source.endpoints is not None:
        ways.append((AttributionMode.PROBE, text))
    if local is not None:
        ways.append((AttributionMode.TOKENIZER, local))
    request = RequestProbe(client, rng=world.rng) if source.calibrate_by_request else None
    return Attributor(
        text,
        Teacher(ways, rng=world.rng, request=request),
        models=source.models,
        max_prefix_length=source.max_prefix_length,
        prompt_format=prompt_format(source.prompt_format),
        request=request,
        salts=salts,
        wanted=wanted,
        rng=world.rng,
    )


def _tokenizer(source: SourceConfig, world: World) -> EngineText | None:
    if source.tokenizer is None:
        return None
    from continuum_kv_listener.local_tokenizer import LocalTokenizer

    def strftime(form: str) -> str:
        return datetime.fromtimestamp(world.wall()).strftime(form)  # noqa: DTZ006  as engines do

    return LocalTokenizer(source.tokenizer, strftime=strftime)


def prompt_format(section: PromptFormatConfig) -> Family | CustomMarkers | None:
    """What the file says about the template; None means that it is learnt."""
    if section.custom is not None:
        return CustomMarkers(
            system_start=section.custom.system_start,
            system_end=section.custom.system_end,
            first_user_start=section.custom.first_user_start,
        )
    return None if section.name is PromptFormatName.AUTO else Family(section.name.value)
