import random

import aiohttp

from continuum_kv_listener.assemble import salt_reader
from continuum_kv_listener.attribution_types import AttributionMode
from continuum_kv_listener.config import parse_config
from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.trtllm_wiring import SALT_ECHO_OFF, SaltJudge, trtllm_parts
from continuum_shared.metrics import Metrics

FILE = """
{echo}
max_tracked_blocks: 123
sources:
- {{backend_name: t, engine: trtllm, model: m, trtllm_endpoint: "http://127.0.0.1:9/kv_cache_events"}}
"""


def loaded(echo=""):
    config, report = parse_config(FILE.format(echo=echo), path="l", env={"S": "secret"})
    assert config is not None, str(report)
    return config


async def test_the_parts_of_a_source():
    config = loaded("salt_echo: {enabled: true, secret_env: S}")
    source = config.sources[0]
    async with aiohttp.ClientSession() as session:
        parts = trtllm_parts(
            source,
            config,
            session=session,
            families=ListenerMetrics(Metrics()),
            salts=salt_reader(source, config),
            clock=lambda: 5.0,
            rng=random.Random(1),
        )
    (lane,) = parts.lanes
    assert (parts.name, parts.engine, parts.merge) == ("t", "trtllm", None)
    assert lane.link.settings.endpoint == "http://127.0.0.1:9/kv_cache_events"
    assert lane.intake is lane.link is parts.health
    assert parts.judge.state.attribution is AttributionMode.SALT
    assert (parts.judge.ready, parts.judge.next_calibration) == (True, None)
    assert parts.judge.state.warnings == ()


def test_without_salt_echo_the_page_says_that_nothing_can_be_known():
    config = loaded()
    state = SaltJudge(salt_reader(config.sources[0], config)).state
    assert (state.calibrated, state.attribution) == (False, AttributionMode.NONE)
    assert state.warnings == (SALT_ECHO_OFF,)
