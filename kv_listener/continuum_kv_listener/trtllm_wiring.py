"""Wiring of one TensorRT-LLM source: a poller, its chains, and nothing that asks for text."""

import random
from collections.abc import Callable

import aiohttp

from continuum_kv_listener.attribution import CalibrationState
from continuum_kv_listener.attribution_types import AttributionMode, PathVerdict, Question
from continuum_kv_listener.chain_stats import ChainLimits, TokenCount
from continuum_kv_listener.config import ListenerConfig, SourceConfig
from continuum_kv_listener.engine_watch import MetricsPage
from continuum_kv_listener.lane import Lane
from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.pipeline import OnGap, Pipeline
from continuum_kv_listener.reannounce import Vouching
from continuum_kv_listener.salt_reader import SaltReader
from continuum_kv_listener.source_runner import SourceParts
from continuum_kv_listener.stream import EventStream
from continuum_kv_listener.trtllm_chains import TrtllmChains
from continuum_kv_listener.trtllm_client import TrtllmClient
from continuum_kv_listener.trtllm_intake import TrtllmIntake

SALT_ECHO_OFF = (
    "salt_echo is off: prompts of this engine are identified by the router's salts alone, so every "
    "chain is discarded"
)


class SaltJudge:
    """Stands where other sources learn a template: here salts say it all."""

    def __init__(self, salts: SaltReader) -> None:
        self._salts = salts

    @property
    def state(self) -> CalibrationState:
        """Whether salts are read."""
        on = self._salts.expected
        return CalibrationState(
            calibrated=on,
            attribution=AttributionMode.SALT if on else AttributionMode.NONE,
            warnings=() if on else (SALT_ECHO_OFF,),
        )

    @property
    def ready(self) -> bool:
        """Always: nothing is learnt."""
        return True

    @property
    def next_calibration(self) -> float | None:
        """Never."""
        return None

    async def calibrate(self, now: float) -> CalibrationState:  # noqa: ARG002
        """Never called."""
        return self.state

    async def judge(self, question: Question, now: float) -> PathVerdict:  # noqa: ARG002
        """Never called: the chains ask nothing."""
        return PathVerdict(done=True)

    def engine_restarted(self, now: float) -> None:
        """Salts stay what they are."""


def trtllm_parts(  # noqa: PLR0913  what the process shares
    source: SourceConfig,
    config: ListenerConfig,
    *,
    session: aiohttp.ClientSession,
    families: ListenerMetrics,
    salts: SaltReader,
    clock: Callable[[], float],
    rng: random.Random,
) -> SourceParts:
    """The parts of one source whose engine is polled."""
    name = source.backend_name
    judge = SaltJudge(salts)
    chains = TrtllmChains(
        ChainLimits(
            max_chain_tokens=config.max_chain_tokens,
            max_tracked_blocks=config.max_tracked_blocks,
            max_retained_tokens=config.max_retained_tokens,
        ),
        token_count=TokenCount(source.token_count.value),
        verify_salt=salts,
    )
    metrics = families.intake(name)
    pipeline = Pipeline(
        engine=source.engine.value,
        tracker=chains,
        metrics=metrics,
        clock=clock,
        on_restart=judge.engine_restarted,
        on_gap=OnGap.PURGE,
    )
    stream = EventStream(
        epoch=f"{rng.getrandbits(48):012x}",
        max_prefix_length=source.max_prefix_length,
        snapshot=pipeline.snapshot,
        metrics=families.stream(name),
        history=config.history,
    )
    pipeline.publish_to(stream)
    intake = TrtllmIntake(
        TrtllmClient(session, str(source.polled_at), max_bytes=source.max_frame_bytes),
        name=name,
        interval=source.poll_interval_ms / 1000,
        chains=chains,
        sink=pipeline,
        metrics=metrics,
        polls=families.polls_of(name),
        clock=clock,
    )
    lane = Lane(
        link=intake,
        intake=intake,
        pipeline=pipeline,
        vouching=Vouching(config.reannounce_interval, clock()),
    )
    return SourceParts(
        name=name,
        engine=source.engine.value,
        lanes=(lane,),
        stream=stream,
        judge=judge,
        health=intake,
        vitals=MetricsPage(session, None),  # its /metrics may be of another form (H12)
        metrics=metrics,
    )
