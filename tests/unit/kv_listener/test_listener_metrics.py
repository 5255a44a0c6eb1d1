"""The listener's metric names and labels are a contract (J5, G19)."""

from continuum_kv_listener.chain_stats import ChainStats, Unattributed
from continuum_kv_listener.engine_events import DropReason, Stored
from continuum_kv_listener.listener_metrics import (
    EVENT_TYPES,
    ListenerMetrics,
    QuestionResult,
    ReplayResult,
    StreamEnd,
    StreamStart,
)
from continuum_kv_listener.replay import ReplayFault
from continuum_shared.metrics import Metrics

STATS = ChainStats(
    blocks=5,
    tokens=80,
    prefixes=2,
    pending=3,
    unattributed={Unattributed.PENDING: 3, Unattributed.FOREIGN_SALT: 1},
    questions_open=1,
    block_size_mismatches_total=4,
    blocks_evicted_total=6,
    texts_dropped_total=7,
    ignored_group_events_total=0,
)


def lines(metrics: Metrics) -> set[str]:
    return set(metrics.exposition().decode().splitlines())


def test_every_reason_has_a_series_from_the_start():
    metrics = Metrics()
    ListenerMetrics(metrics).intake("vllm-1")
    exposed = lines(metrics)
    for reason in DropReason:
        assert (
            f'continuum_listener_dropped_total{{reason="{reason}",source="vllm-1"}} 0.0' in exposed
        )
    for kind in EVENT_TYPES.values():
        assert f'continuum_listener_events_total{{source="vllm-1",type="{kind}"}} 0.0' in exposed


def test_sizes_are_read_when_somebody_scrapes():
    metrics = Metrics()
    ListenerMetrics(metrics).watch_sizes(lambda: [("a", STATS)])
    exposed = lines(metrics)
    for line in (
        'continuum_listener_blocks{source="a"} 5.0',
        'continuum_listener_tokens{source="a"} 80.0',
        'continuum_listener_prefixes{source="a"} 2.0',
        'continuum_listener_questions_open{source="a"} 1.0',
        'continuum_listener_block_size_mismatch_total{source="a"} 4.0',
        'continuum_listener_evicted_blocks_total{source="a"} 6.0',
        'continuum_listener_dropped_texts_total{source="a"} 7.0',
        'continuum_listener_unattributed_blocks{reason="pending",source="a"} 3.0',
        'continuum_listener_unattributed_blocks{reason="foreign_salt",source="a"} 1.0',
        'continuum_listener_unattributed_blocks{reason="no_match",source="a"} 0.0',
    ):
        assert line in exposed


def test_counting():
    metrics = Metrics()
    families = ListenerMetrics(metrics)
    intake, stream = families.intake("a"), families.stream("a")
    intake.applied(Stored(hashes=(1,), block_size=16))
    intake.dropped(DropReason.DUPLICATE)
    intake.replayed(ReplayResult.NO_ANSWER)
    intake.asked(QuestionResult.FAILED)
    stream.started(StreamStart.SWAP)
    stream.started(StreamStart.RESUMED)
    stream.ended(StreamEnd.FELL_BEHIND)
    exposed = lines(metrics)
    for line in (
        'continuum_listener_events_total{source="a",type="stored"} 1.0',
        'continuum_listener_dropped_total{reason="duplicate",source="a"} 1.0',
        'continuum_listener_replays_total{result="no_answer",source="a"} 1.0',
        'continuum_listener_questions_total{result="failed",source="a"} 1.0',
        'continuum_listener_subscribers{source="a"} 1.0',
        'continuum_listener_stream_ends_total{end="fell_behind",source="a"} 1.0',
    ):
        assert line in exposed


def test_each_replay_fault_is_a_result():
    assert {fault.value for fault in ReplayFault} < {result.value for result in ReplayResult}
