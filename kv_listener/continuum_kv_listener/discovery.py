"""Where an engine publishes, asked from the engine itself (decisions C40).

Newer vLLM answers ``GET /kv_event_sources`` with one entry for each data-parallel rank::

    {"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
           "replay_endpoint": "tcp://127.0.0.1:5558", "topic": "kv-events", …}}

Its endpoints are seen from the engine: a wildcard is bound there, so we connect to the host that we
asked; a concrete host is where the engine connects to, so we bind. The replay socket always binds.
What is written in the file wins over what is found; what is found must pass ``allowed_publishers``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
import orjson

from continuum_kv_listener.config import SourceConfig, ZmqMode
from continuum_kv_listener.config_checks import listed
from continuum_shared.config.addresses import is_loopback
from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.kinds import HttpEndpoint, ZmqEndpoint

MAX_ANSWER_BYTES = 256 * 1024
MAX_RANKS = 64
SECONDS = 5.0


class DiscoveryFault(StrEnum):
    """Why nothing was found; part of a warning on ``GET /sources``."""

    UNREACHABLE = "it does not answer"
    UNSUPPORTED = "it has no such page: the engine is too old, or the URL is wrong"
    BAD_ANSWER = "its answer is not a list of KV event sources"
    DISABLED = "the engine publishes no KV events over ZMQ: see --kv-events-config"
    RANKS = "its ranks are not at consecutive ports"
    NOT_LOCAL = "the engine publishes on its own machine only"
    NOT_ALLOWED = "the endpoint that it names is not in allowed_publishers"


class DiscoveryError(Exception):
    """Nothing usable was found."""

    def __init__(self, fault: DiscoveryFault) -> None:
        super().__init__(fault.value)
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One rank as the engine lists it."""

    endpoint: ZmqEndpoint
    replay: ZmqEndpoint | None
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A source with everything filled in, and what could not be."""

    source: SourceConfig
    warnings: tuple[str, ...] = ()


def read_answer(body: bytes) -> tuple[Publication, ...]:
    """The ranks in their order. Raises :class:`DiscoveryError`."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise DiscoveryError(DiscoveryFault.BAD_ANSWER) from None
    if not isinstance(answer, dict) or not 0 < len(answer) <= MAX_RANKS:
        raise DiscoveryError(DiscoveryFault.BAD_ANSWER)
    rows = [answer.get(str(rank)) for rank in range(len(answer))]
    return tuple(_publication(row) for row in rows)


def _publication(row: object) -> Publication:
    if not isinstance(row, dict):
        raise DiscoveryError(DiscoveryFault.BAD_ANSWER)
    if row.get("enable_kv_cache_events") is False or row.get("publisher", "zmq") != "zmq":
        raise DiscoveryError(DiscoveryFault.DISABLED)
    endpoint, topic = _endpoint(row.get("endpoint")), row.get("topic", "")
    if endpoint is None or not isinstance(topic, str) or len(topic) > 256:
        raise DiscoveryError(DiscoveryFault.BAD_ANSWER)
    return Publication(endpoint=endpoint, replay=_endpoint(row.get("replay_endpoint")), topic=topic)


def _endpoint(text: object) -> ZmqEndpoint | None:
    if text is None:
        return None
    try:
        return ZmqEndpoint.parse(text if isinstance(text, str) else "")
    except BadValue:
        raise DiscoveryError(DiscoveryFault.BAD_ANSWER) from None


def settle(source: SourceConfig, found: Sequence[Publication], asked: HttpEndpoint) -> Found:
    """``source`` with the endpoints that the engine at ``asked`` listed. Raises DiscoveryError."""
    written = source.model_fields_set
    warnings: list[str] = []
    fields: dict[str, object] = {}
    endpoint = _first(found, "endpoint")
    if "dp_size" not in written:
        fields["dp_size"] = len(found)
    if "zmq_topic" not in written:
        fields["zmq_topic"] = found[0].topic
    if source.zmq_endpoint is None:
        fields.update(_subscribe(endpoint, asked.host))
    if source.zmq_replay_endpoint is None and found[0].replay is not None:
        replay = _reachable(_first(found, "replay"), asked.host)
        if replay is None:
            warnings.append("the engine's replay endpoint is on its own machine only: gaps stay")
        elif not allowed(replay, source.allowed_publishers):
            warnings.append("the engine's replay endpoint is not in allowed_publishers: gaps stay")
        else:
            fields["zmq_replay_endpoint"] = replay
    settled = source.model_copy(update=fields)
    if not settled.binds and not allowed(settled.published_at, source.allowed_publishers):
        raise DiscoveryError(DiscoveryFault.NOT_ALLOWED)
    return Found(source=settled, warnings=tuple(warnings))


def _subscribe(endpoint: ZmqEndpoint, host: str) -> Mapping[str, object]:
    """Our end of the socket of which the engine has the other."""
    if endpoint.ipc_path or endpoint.wildcard:
        ours = _reachable(endpoint, host)
        if ours is None:
            raise DiscoveryError(DiscoveryFault.NOT_LOCAL)
        return {"zmq_endpoint": ours, "zmq_mode": ZmqMode.CONNECT}
    here = endpoint if endpoint.loopback else ZmqEndpoint(host="*", port=endpoint.port)
    return {"zmq_endpoint": here, "zmq_mode": ZmqMode.BIND}


def _reachable(endpoint: ZmqEndpoint, host: str) -> ZmqEndpoint | None:
    """Where we find what an engine on ``host`` has bound; None: only that machine does."""
    if endpoint.wildcard:
        return ZmqEndpoint(host=host, port=endpoint.port)
    return None if endpoint.loopback and not is_loopback(host) else endpoint


def _first(found: Sequence[Publication], name: str) -> ZmqEndpoint:
    """Rank 0's endpoint, when rank r is at its port + r, or all list rank 0's."""
    endpoints: list[ZmqEndpoint | None] = [getattr(rank, name) for rank in found]
    first = endpoints[0]
    if first is None:
        raise DiscoveryError(DiscoveryFault.RANKS)
    for rank, endpoint in enumerate(endpoints):
        if endpoint not in (first, None if first.ipc_path else first.of_rank(rank)):
            raise DiscoveryError(DiscoveryFault.RANKS)
    return first


def allowed(endpoint: ZmqEndpoint, publishers: tuple[str, ...]) -> bool:
    """Whether a concrete endpoint may be connected to (decisions C26)."""
    return endpoint.loopback or listed(endpoint.host, publishers)


async def ask(session: aiohttp.ClientSession, url: HttpEndpoint) -> tuple[Publication, ...]:
    """Ask the engine once. Raises :class:`DiscoveryError`."""
    body = bytearray()
    try:
        async with session.get(
            str(url), timeout=aiohttp.ClientTimeout(total=SECONDS), allow_redirects=False
        ) as response:
            if response.status != 200:
                refused = response.status in (404, 405, 501)
                raise DiscoveryError(
                    DiscoveryFault.UNSUPPORTED if refused else DiscoveryFault.UNREACHABLE
                )
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise DiscoveryError(DiscoveryFault.BAD_ANSWER)
    except (aiohttp.ClientError, TimeoutError, OSError):
        raise DiscoveryError(DiscoveryFault.UNREACHABLE) from None
    return read_answer(bytes(body))
