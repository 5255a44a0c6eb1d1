"""``GET /sources``: is each source connected, calibrated and attributed, and if not, why.

Pure: facts in, JSON-ready values out. The fields are those of decisions J4; the warnings say what
an operator can do, because a wrong wiring shows nowhere else (user report K14).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from continuum_kv_listener.attribution import CalibrationState
from continuum_kv_listener.chain_stats import ChainStats
from continuum_kv_listener.engine_events import DropReason

CONNECT_PATIENCE = 5.0
"""Seconds after the start before a source that never connected is worth a warning."""
QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """The socket. Times are seconds up to now; ``down_for`` is None while connected."""

    endpoint: str
    binds: bool
    topic: str = ""
    connected: bool = False
    ever_connected: bool = False
    down_for: float | None = None
    last_error: str | None = None
    refused: str | None = None
    peers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFacts:
    """The sequence. ``last_event_at`` is UTC in ISO form, ``last_event_age`` seconds."""

    last_seq: int | None = None
    last_event_at: str | None = None
    last_event_age: float | None = None
    gaps: int = 0
    lost: int = 0
    restarts: int = 0
    restarts_suspicious: bool = False
    replay_endpoint: str | None = None
    replay_failing: bool = False
    replay_foreign: bool = False
    confirmed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Everything the page says about one source. ``uptime`` and ``engine_silent`` in seconds."""

    backend_name: str
    engine: str
    uptime: float
    link: LinkFacts
    order: OrderFacts
    stats: ChainStats
    calibration: CalibrationState
    engine_fault: str | None = None
    engine_silent: float = 0.0
    vouches: bool = True
    starts_unclear: bool = False
    drops: Mapping[DropReason, int]


def page(sources: Iterable[SourceFacts]) -> dict[str, object]:
    """The whole answer."""
    return {"sources": [row(facts) for facts in sources]}


def row(facts: SourceFacts) -> dict[str, object]:
    """One source, in the order and with the names of J4."""
    stats = facts.stats
    unattributed = {reason.value: n for reason, n in stats.unattributed.items() if n}
    return {
        "backend_name": facts.backend_name,
        "engine": facts.engine,
        "connected": facts.link.connected,
        "calibrated": facts.calibration.calibrated,
        "attribution": facts.calibration.attribution.value,
        "last_seq": facts.order.last_seq,
        "last_event_at": facts.order.last_event_at,
        "gaps": facts.order.gaps,
        "restarts": facts.order.restarts,
        "blocks": stats.blocks,
        "tokens": stats.tokens,
        "prefixes": stats.prefixes,
        "unattributed": unattributed,
        "warnings": warnings(facts),
    }


def warnings(facts: SourceFacts) -> list[str]:
    """What is wrong or likely to be, most basic first."""
    return [text for rule in RULES for text in rule(facts)]


def _not_connected(facts: SourceFacts) -> Iterator[str]:
    link = facts.link
    if link.connected:
        return
    if link.ever_connected:
        because = f" ({link.last_error})" if link.last_error else ""
        yield f"not connected to {link.endpoint} for {link.down_for or 0:.0f} s{because}"
        return
    if link.binds and link.last_error:
        yield (
            f"cannot listen on {link.endpoint} ({link.last_error}): does the engine bind it too? "
            "Then set zmq_mode: connect"
        )
    elif facts.uptime < CONNECT_PATIENCE:
        return
    elif link.binds:
        yield (
            f"no engine has connected to {link.endpoint}: an engine whose endpoint has a * binds "
            "as this source does; then set zmq_mode: connect"
        )
    else:
        because = f" ({link.last_error})" if link.last_error else ""
        yield (
            f"nothing answers at {link.endpoint}{because}: is the engine up with KV events on? An "
            "engine whose endpoint names a host connects as this source does; then set "
            "zmq_mode: bind"
        )


def _quiet(facts: SourceFacts) -> Iterator[str]:
    age = facts.order.last_event_age
    quiet_for = facts.uptime if age is None else age
    if quiet_for < QUIET_SECONDS:
        return
    if not facts.link.connected:
        yield f"no message in {QUIET_SECONDS:.0f} s: both ends connect, or both bind?"
    elif age is None:
        topic = f", zmq_topic {facts.link.topic!r}" if facts.link.topic else ""
        yield (
            f"connected, but no message in {QUIET_SECONDS:.0f} s: an idle engine, or check that "
            f"its KV events are enabled{topic}"
        )


def _wrong_peer(facts: SourceFacts) -> Iterator[str]:
    link, order = facts.link, facts.order
    if link.refused:
        yield f"a publisher at {link.refused} was refused: it is not in allowed_publishers"
    if link.peers > 1:
        yield f"{link.peers} publishers are connected; only the newest one is followed"
    if order.restarts_suspicious:
        yield (
            "more than three restarts within a minute: two publishers on one endpoint, or an "
            "engine that crashes"
        )


def _replay(facts: SourceFacts) -> Iterator[str]:
    order = facts.order
    if order.replay_failing:
        yield f"the replay endpoint {order.replay_endpoint} does not answer"
    if order.replay_foreign:
        yield (
            f"the replay endpoint {order.replay_endpoint} answers for another engine and is not "
            "asked any more: correct zmq_replay_endpoint and restart the listener"
        )
    if not order.confirmed:
        yield "reconnected, but not yet known whether the engine has restarted"
    if facts.starts_unclear:
        yield (
            "the engine's /metrics names several processes in turn: a restart is noticed by the "
            "sequence and the replay endpoint only"
        )
    if facts.stats.doubted_prefixes:
        yield (
            f"{facts.stats.doubted_prefixes} prefixes were known before a loss and not seen since: "
            "they lapse unless the engine proves them"
        )
    if order.lost:
        yield f"{order.lost} batches were lost and not replayed: what they said is missing"


def _engine_text(facts: SourceFacts) -> Iterator[str]:
    yield from facts.calibration.warnings
    if facts.engine_fault:
        yield f"the engine's /detokenize failed last time ({facts.engine_fault})"
    if not facts.vouches:
        yield (
            "live prefixes are no longer re-announced: socket down, /health silent for "
            f"{facts.engine_silent:.0f} s, or engine unconfirmed"
        )


_DROP_TEXTS = {
    DropReason.BAD_FRAMES: "messages do not have the frames topic, sequence, payload",
    DropReason.OVERSIZED: "messages are larger than max_frame_bytes",
    DropReason.UNDECODABLE_BATCH: "batches could not be decoded",
    DropReason.MALFORMED_EVENT: "events were malformed",
    DropReason.UNKNOWN_TAG: "events are of a type unknown here",
    DropReason.BAD_SALT: (
        "chains carry a router's salt that does not verify: salt_echo must be on here, with the "
        "router's secret and scope, and backend_name and model must be the router's names"
    ),
}


def _drops(facts: SourceFacts) -> Iterator[str]:
    for reason, text in _DROP_TEXTS.items():
        count = facts.drops.get(reason, 0)
        if count:
            yield f"{count} {text}"
    if facts.stats.block_size_mismatches_total:
        yield (
            f"{facts.stats.block_size_mismatches_total} events whose tokens do not fit their "
            "block size; those chains stay unattributed"
        )


RULES: tuple[Callable[[SourceFacts], Iterator[str]], ...] = (
    _not_connected,
    _quiet,
    _wrong_peer,
    _replay,
    _engine_text,
    _drops,
)
