"""One data-parallel rank of a source: its socket, its order, its chains (decisions C18).

Most engines have one. The page and the health of a source speak for all of its lanes at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from continuum_kv_listener.chain_stats import ChainStats, Unattributed
from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_events import DropReason
from continuum_kv_listener.intake import Intake
from continuum_kv_listener.pipeline import Pipeline
from continuum_kv_listener.reannounce import Vouching
from continuum_kv_listener.sources.zmq_source import ZmqEndpointSettings
from continuum_kv_listener.sources_page import LinkFacts, OrderFacts


class Link(Protocol):
    """What the socket says about itself (``zmq_source.ZmqSource``)."""

    @property
    def settings(self) -> ZmqEndpointSettings: ...

    @property
    def ever_connected(self) -> bool: ...

    @property
    def last_error(self) -> str | None: ...

    @property
    def refused(self) -> str | None: ...

    @property
    def peers(self) -> int: ...

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Lane:
    """What the wiring made for one rank."""

    rank: int = 0
    link: Link
    intake: Intake
    pipeline: Pipeline
    replay_endpoint: str | None = None
    vouching: Vouching


def link_facts(lanes: Sequence[Lane], now: float) -> LinkFacts:
    """What is to be said about the sockets: the first that is down speaks for all."""
    down = next((lane for lane in lanes if not lane.intake.connected), lanes[0])
    link, down_since = down.link, down.intake.down_since
    return LinkFacts(
        endpoint=link.settings.endpoint,
        binds=link.settings.mode is ZmqMode.BIND,
        topic=link.settings.topic,
        connected=down.intake.connected,
        ever_connected=link.ever_connected,
        down_for=None if down_since is None else now - down_since,
        last_error=link.last_error,
        refused=next((lane.link.refused for lane in lanes if lane.link.refused), None),
        peers=max(lane.link.peers for lane in lanes),
    )


def order_facts(lanes: Sequence[Lane], now: float, wall: float) -> OrderFacts:
    """The sequences together; ``wall`` is the present in Unix seconds."""
    intakes = [lane.intake for lane in lanes]
    seqs = [intake.last_seq for intake in intakes if intake.last_seq is not None]
    times = [intake.last_batch_at for intake in intakes if intake.last_batch_at is not None]
    age = now - max(times) if times else None
    moment = None if age is None else datetime.fromtimestamp(wall - age, UTC)
    troubled = next(
        (lane for lane in lanes if lane.intake.replay_failing or lane.intake.replay_foreign),
        lanes[0],
    )
    return OrderFacts(
        last_seq=max(seqs, default=None),
        last_event_at=None if moment is None else moment.isoformat(timespec="milliseconds"),
        last_event_age=age,
        gaps=sum(intake.gaps for intake in intakes),
        lost=sum(intake.lost for intake in intakes),
        restarts=sum(intake.restarts.total for intake in intakes),
        restarts_suspicious=any(intake.restarts.suspicious(now) for intake in intakes),
        replay_endpoint=troubled.replay_endpoint,
        replay_failing=troubled.intake.replay_failing,
        replay_foreign=troubled.intake.replay_foreign,
        confirmed=all(intake.vouched for intake in intakes),
    )


def drop_counts(lanes: Sequence[Lane]) -> dict[DropReason, int]:
    """Drops of all lanes by reason."""
    counts: dict[DropReason, int] = {}
    for lane in lanes:
        for reason, count in lane.pipeline.drops.items():
            counts[reason] = counts.get(reason, 0) + count
    return counts


def all_stats(lanes: Sequence[Lane], prefixes: int | None = None) -> ChainStats:
    """Counts of all lanes; ``prefixes`` when the source knows them better than their sum."""
    stats = [lane.pipeline.tracker.stats for lane in lanes]
    if len(stats) == 1:
        return stats[0]
    reasons: dict[Unattributed, int] = {}
    for each in stats:
        for reason, blocks in each.unattributed.items():
            reasons[reason] = reasons.get(reason, 0) + blocks
    return ChainStats(
        blocks=sum(each.blocks for each in stats),
        tokens=sum(each.tokens for each in stats),
        prefixes=sum(each.prefixes for each in stats) if prefixes is None else prefixes,
        pending=sum(each.pending for each in stats),
        unattributed=reasons,
        questions_open=sum(each.questions_open for each in stats),
        block_size_mismatches_total=sum(each.block_size_mismatches_total for each in stats),
        blocks_evicted_total=sum(each.blocks_evicted_total for each in stats),
        texts_dropped_total=sum(each.texts_dropped_total for each in stats),
        ignored_group_events_total=sum(each.ignored_group_events_total for each in stats),
        doubted_prefixes=sum(each.doubted_prefixes for each in stats),
        drifted_copies_total=sum(each.drifted_copies_total for each in stats),
    )


def sure_lanes(lanes: Sequence[Lane], now: float) -> Iterator[Lane]:
    """Lanes that may still vouch for what they track (decisions C29)."""
    for lane in lanes:
        lane.vouching.note(now, link=lane.intake.connected, process=lane.intake.vouched)
        if lane.vouching.holds(now):
            yield lane
