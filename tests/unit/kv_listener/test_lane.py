"""What several ranks say together."""

from types import SimpleNamespace

from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_events import DropReason
from continuum_kv_listener.lane import (
    Lane,
    all_stats,
    drop_counts,
    link_facts,
    order_facts,
    sure_lanes,
)
from continuum_kv_listener.reannounce import Vouching
from continuum_kv_listener.sequence import RestartLog
from continuum_kv_listener.sources.zmq_source import ZmqEndpointSettings


def lane(rank: int, **intake: object) -> Lane:
    settings = ZmqEndpointSettings(
        name="s", endpoint=f"tcp://h:{5557 + rank}", mode=ZmqMode.CONNECT, rank=rank
    )
    facts = {
        "connected": True,
        "down_since": None,
        "last_seq": None,
        "last_batch_at": None,
        "gaps": 0,
        "lost": 0,
        "restarts": RestartLog(),
        "replay_failing": False,
        "replay_foreign": False,
        "vouched": True,
    }
    return Lane(
        rank=rank,
        link=SimpleNamespace(
            settings=settings, ever_connected=True, last_error="gone", refused=None, peers=rank
        ),
        intake=SimpleNamespace(**{**facts, **intake}),
        pipeline=SimpleNamespace(tracker=ChainTracker(), drops={DropReason.DUPLICATE: rank + 1}),
        replay_endpoint=f"tcp://h:{6557 + rank}",
        vouching=Vouching(200.0, 0.0),
    )


def test_the_socket_that_is_down_speaks_for_all():
    up, down = lane(0), lane(1, connected=False, down_since=90.0)
    facts = link_facts([up, down], 100.0)
    assert (facts.connected, facts.endpoint, facts.down_for) == (False, "tcp://h:5558", 10.0)
    assert facts.peers == 1
    assert link_facts([up], 100.0).connected


def test_sequences_are_summed():
    one = lane(0, last_seq=7, last_batch_at=80.0, gaps=1, lost=2)
    two = lane(1, last_seq=3, last_batch_at=90.0, gaps=1, lost=3, vouched=False)
    two.intake.replay_failing = True
    two.intake.restarts.note(1.0)
    facts = order_facts([one, two], 100.0, 1_800_000_000.0)
    assert (facts.last_seq, facts.last_event_age, facts.gaps, facts.lost) == (7, 10.0, 2, 5)
    assert facts.last_event_at == "2027-01-15T07:59:50.000+00:00"
    assert (facts.restarts, facts.restarts_suspicious, facts.confirmed) == (1, False, False)
    assert (facts.replay_failing, facts.replay_endpoint) == (True, "tcp://h:6558")


def test_a_silent_source_has_no_last_event():
    facts = order_facts([lane(0)], 100.0, 1_800_000_000.0)
    assert (facts.last_seq, facts.last_event_at, facts.last_event_age) == (None, None, None)


def test_counts_of_all_ranks():
    lanes = [lane(0), lane(1)]
    assert drop_counts(lanes) == {DropReason.DUPLICATE: 3}
    assert all_stats(lanes).prefixes == 0
    assert all_stats(lanes, 5).prefixes == 5
    assert all_stats(lanes[:1]) == ChainTracker().stats


def test_a_rank_that_is_down_for_an_interval_vouches_no_more():
    up, down = lane(0), lane(1, connected=False)
    for each in (up, down):
        each.vouching.healthy(150.0)
    assert [each.rank for each in sure_lanes([up, down], 150.0)] == [0, 1]
    for each in (up, down):
        each.vouching.healthy(250.0)
    assert [each.rank for each in sure_lanes([up, down], 250.0)] == [0]
