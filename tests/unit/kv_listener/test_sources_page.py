"""``GET /sources``: the fields of J4, and a warning for every wiring mistake (user report K14)."""

from dataclasses import replace

import pytest

from continuum_kv_listener.attribution import CalibrationState
from continuum_kv_listener.attribution_types import AttributionMode
from continuum_kv_listener.chain_stats import ChainStats, Unattributed
from continuum_kv_listener.engine_events import DropReason
from continuum_kv_listener.sources_page import LinkFacts, OrderFacts, SourceFacts, page, warnings

STATS = ChainStats(
    blocks=12,
    tokens=96,
    prefixes=2,
    pending=3,
    unattributed={Unattributed.PENDING: 3, Unattributed.NO_MATCH: 0},
    questions_open=1,
    block_size_mismatches_total=0,
    blocks_evicted_total=0,
    texts_dropped_total=0,
    ignored_group_events_total=0,
)
GOOD = SourceFacts(
    backend_name="vllm-1",
    engine="vllm",
    uptime=500.0,
    link=LinkFacts(
        endpoint="tcp://10.0.0.5:5557",
        binds=False,
        connected=True,
        ever_connected=True,
        peers=1,
    ),
    order=OrderFacts(
        last_seq=41,
        last_event_at="2026-11-30T12:00:00.123+00:00",
        last_event_age=1.5,
        gaps=1,
        restarts=2,
        replay_endpoint="tcp://10.0.0.5:5558",
    ),
    stats=STATS,
    calibration=CalibrationState(calibrated=True, attribution=AttributionMode.PROBE),
    drops={},
)


def link(**changes: object) -> SourceFacts:
    return replace(GOOD, link=replace(GOOD.link, **changes))


def order(**changes: object) -> SourceFacts:
    return replace(GOOD, order=replace(GOOD.order, **changes))


def test_the_fields_are_those_of_the_contract():
    assert page([GOOD]) == {
        "sources": [
            {
                "backend_name": "vllm-1",
                "engine": "vllm",
                "connected": True,
                "calibrated": True,
                "attribution": "probe",
                "last_seq": 41,
                "last_event_at": "2026-11-30T12:00:00.123+00:00",
                "gaps": 1,
                "restarts": 2,
                "blocks": 12,
                "tokens": 96,
                "prefixes": 2,
                "unattributed": {"pending": 3},
                "warnings": [],
            }
        ]
    }


NEVER = {"connected": False, "ever_connected": False, "peers": 0}
CASES = {
    "all is well": (GOOD, []),
    "starting": (replace(link(**NEVER), uptime=1.0, order=OrderFacts()), []),
    "nothing answers": (
        replace(link(**NEVER, last_error="connection refused"), uptime=10.0, order=OrderFacts()),
        [
            "nothing answers at tcp://10.0.0.5:5557 (connection refused): is the engine up with "
            "KV events on? An engine whose endpoint names a host connects as this source does; "
            "then set zmq_mode: bind"
        ],
    ),
    "nobody comes, for a minute": (
        replace(link(**NEVER, binds=True), uptime=61.0, order=OrderFacts()),
        [
            "no engine has connected to tcp://10.0.0.5:5557: an engine whose endpoint has a * "
            "binds as this source does; then set zmq_mode: connect",
            "no message in 60 s: both ends connect, or both bind?",
        ],
    ),
    "both ends bind": (
        replace(
            link(**NEVER, binds=True, last_error="Address already in use"),
            uptime=1.0,
            order=OrderFacts(),
        ),
        [
            "cannot listen on tcp://10.0.0.5:5557 (Address already in use): does the engine bind "
            "it too? Then set zmq_mode: connect"
        ],
    ),
    "connection lost": (
        link(connected=False, down_for=12.3, last_error="connection lost", peers=0),
        ["not connected to tcp://10.0.0.5:5557 for 12 s (connection lost)"],
    ),
    "connected but silent from the start": (
        replace(link(topic="kv"), order=OrderFacts()),
        [
            "connected, but no message in 60 s: an idle engine, or check that its KV events are "
            "enabled, zmq_topic 'kv'"
        ],
    ),
    "quiet after traffic is no fault": (order(last_event_age=3600.0), []),
    "refused publisher": (
        link(refused="10.0.0.9"),
        ["a publisher at 10.0.0.9 was refused: it is not in allowed_publishers"],
    ),
    "two publishers": (
        link(peers=2),
        ["2 publishers are connected; only the newest one is followed"],
    ),
    "restarts too fast": (
        order(restarts_suspicious=True),
        [
            "more than three restarts within a minute: two publishers on one endpoint, or an "
            "engine that crashes"
        ],
    ),
    "replay endpoint dead": (
        order(replay_failing=True, confirmed=False),
        [
            "the replay endpoint tcp://10.0.0.5:5558 does not answer",
            "reconnected, but not yet known whether the engine has restarted",
        ],
    ),
    "replay endpoint of another engine": (
        order(replay_foreign=True),
        [
            "the replay endpoint tcp://10.0.0.5:5558 answers for another engine and is not asked "
            "any more: correct zmq_replay_endpoint and restart the listener",
        ],
    ),
    "lost batches": (
        order(lost=7),
        ["7 batches were lost and not replayed: what they said is missing"],
    ),
    "not calibrated": (
        replace(
            GOOD,
            calibration=CalibrationState(
                calibrated=False, attribution=AttributionMode.NONE, warnings=("not calibrated: x",)
            ),
        ),
        ["not calibrated: x"],
    ),
    "detokenize fails": (
        replace(GOOD, engine_fault="unreachable"),
        ["the engine's /detokenize failed last time (unreachable)"],
    ),
    "may not vouch": (
        replace(GOOD, vouches=False, engine_silent=230.0),
        [
            "live prefixes are no longer re-announced: socket down, /health silent for 230 s, or "
            "engine unconfirmed"
        ],
    ),
    "drops": (
        replace(GOOD, drops={DropReason.UNDECODABLE_BATCH: 2, DropReason.DUPLICATE: 9}),
        ["2 batches could not be decoded"],
    ),
    "block sizes": (
        replace(GOOD, stats=replace(STATS, block_size_mismatches_total=4)),
        ["4 events whose tokens do not fit their block size; those chains stay unattributed"],
    ),
}


@pytest.mark.parametrize(("facts", "expected"), CASES.values(), ids=CASES)
def test_warnings(facts, expected):
    assert warnings(facts) == expected
