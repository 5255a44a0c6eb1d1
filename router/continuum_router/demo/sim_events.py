"""The simulated engine's event wire: vLLM's message bytes on real ZMQ sockets.

Each message is ``[topic, 8-byte sequence, payload]``; the payload is a msgpack array
``[timestamp, events, rank]``. An event is a map with named fields or, as older engines send it,
an array in this order (wire notes, "Events"):

| # | BlockStored                  | BlockRemoved | AllBlocksCleared |
|---|------------------------------|--------------|------------------|
| 0 | tag                          | tag          | tag              |
| 1 | block_hashes                 | block_hashes |                  |
| 2 | parent_block_hash            | medium       |                  |
| 3 | token_ids                    | group_idx    |                  |
| 4 | block_size                   |              |                  |
| 5 | lora_id                      |              |                  |
| 6 | medium                       |              |                  |
| 7 | lora_name                    |              |                  |
| 8 | extra_keys                   |              |                  |
| 9 | group_idx                    |              |                  |
| 10 | kv_cache_spec_kind          |              |                  |
| 11 | kv_cache_spec_sliding_window (arrays only) | |                |
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgpack
import zmq

from continuum_router.demo.block_cache import BlockRemoved, BlocksStored, CacheCleared, CacheEvent
from continuum_shared.logs import fields

log = logging.getLogger("continuum_router.demo.sim_events")

_END_SEQ: Final = b"\xff" * 8
_REPLAY_HISTORY: Final = 10_000
_MEDIUM: Final = "GPU"
_KIND: Final = "full_attention"


class Encoding(StrEnum):
    """How each event is written."""

    MAP = "map"
    ARRAY = "array"


class HashForm(StrEnum):
    """How block hashes are written: the low 64 bits as an integer, or all 32 bytes."""

    INT = "int"
    BYTES = "bytes"


class ZmqMode(StrEnum):
    """Whether the publisher binds or connects; `auto` decides by the endpoint as engines do."""

    AUTO = "auto"
    BIND = "bind"
    CONNECT = "connect"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWire:
    """How and where events are published; None as endpoint turns the part off.

    `replay_topic` False leaves the topic frame out of replay answers, as older engines do.
    """

    endpoint: str | None = None
    replay_endpoint: str | None = None
    mode: ZmqMode = ZmqMode.AUTO
    topic: str = "kv-events"
    encoding: Encoding = Encoding.MAP
    hash_form: HashForm = HashForm.INT
    replay_topic: bool = True


def binds(endpoint: str, mode: ZmqMode) -> bool:
    """True when the publisher binds: by the mode or, with `auto`, by the endpoint's form."""
    if mode is not ZmqMode.AUTO:
        return mode is ZmqMode.BIND
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def encode_batch(
    events: Sequence[CacheEvent], *, timestamp: float, encoding: Encoding, hash_form: HashForm
) -> bytes:
    """One payload: the msgpack bytes of a batch of events of rank 0."""
    encode = _as_map if encoding is Encoding.MAP else _as_array
    written = [encode(event, hash_form) for event in events]
    packed: bytes = msgpack.packb([timestamp, written, 0], use_bin_type=True)
    return packed


def _as_map(event: CacheEvent, form: HashForm) -> dict[str, object]:
    match event:
        case BlocksStored():
            return {
                "type": "BlockStored",
                "block_hashes": [_hash(one, form) for one in event.hashes],
                "parent_block_hash": None if event.parent is None else _hash(event.parent, form),
                "token_ids": event.tokens,
                "block_size": event.block_size,
                "lora_id": None,
                "medium": _MEDIUM,
                "lora_name": None,
                "extra_keys": _extra_keys(event),
                "group_idx": 0,
                "kv_cache_spec_kind": _KIND,
            }
        case BlockRemoved():
            return {
                "type": "BlockRemoved",
                "block_hashes": [_hash(event.hash, form)],
                "medium": _MEDIUM,
                "group_idx": 0,
            }
        case CacheCleared():
            return {"type": "AllBlocksCleared"}


def _as_array(event: CacheEvent, form: HashForm) -> list[object]:
    named = _as_map(event, form)
    if isinstance(event, BlocksStored):
        named["kv_cache_spec_sliding_window"] = None
    return list(named.values())


def _extra_keys(event: BlocksStored) -> list[list[str] | None]:
    keys: list[list[str] | None] = [None] * len(event.hashes)
    if event.salt is not None:
        keys[0] = [event.salt]
    return keys


def _hash(full: bytes, form: HashForm) -> int | bytes:
    return full if form is HashForm.BYTES else int.from_bytes(full[-8:])


class SimEventPublisher:
    """Publishes batches and answers replay requests, on the event loop that opened it.

    `wall` gives the batches' timestamps: seconds since the epoch.
    """

    def __init__(self, wire: EventWire, wall: Callable[[], float]) -> None:
        self._wire = wire
        self._wall = wall
        self.topic = wire.topic
        self._topic = wire.topic.encode()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._pub: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._history: deque[tuple[int, bytes]] = deque(maxlen=_REPLAY_HISTORY)
        self._next = 0
        self.endpoint: str | None = None
        self.replay_endpoint: str | None = None

    def open(self) -> None:
        """Open the sockets. `endpoint` and `replay_endpoint` then say where, `*` ports resolved.

        Raises OSError when an address cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._context = context = zmq.Context()
        try:
            if self._wire.endpoint is not None:
                self._pub = context.socket(zmq.PUB)
                self._pub.setsockopt(zmq.SNDHWM, 100_000)
                self.endpoint = _attach(self._pub, self._wire.endpoint, self._wire.mode)
            if self._wire.replay_endpoint is not None:
                self._replay = context.socket(zmq.ROUTER)
                self._replay.setsockopt(zmq.SNDHWM, 0)
                self.replay_endpoint = _attach(
                    self._replay, self._wire.replay_endpoint, ZmqMode.BIND
                )
                self._loop.add_reader(self._replay.fileno(), self._answer_replays)
        except zmq.ZMQError as failure:
            self.close()
            raise OSError(failure.errno, f"ZMQ endpoint: {failure}") from failure

    def close(self) -> None:
        """Close both sockets at once; what was not sent yet is lost, as when a process dies."""
        if self._replay is not None and self._loop is not None:
            self._loop.remove_reader(self._replay.fileno())
        if self._context is not None:
            self._context.destroy(linger=0)
        self._pub = self._replay = self._context = None

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Send one batch under the next sequence number; nothing when `events` is empty."""
        if not events:
            return
        payload = encode_batch(
            events,
            timestamp=self._wall(),
            encoding=self._wire.encoding,
            hash_form=self._wire.hash_form,
        )
        self._history.append((self._next, payload))
        if self._pub is not None:
            self._pub.send_multipart(
                [self._topic, self._next.to_bytes(8), payload], flags=zmq.NOBLOCK
            )
        self._next += 1

    def _answer_replays(self) -> None:
        """Serve every waiting request. The descriptor is edge-triggered: read until empty."""
        socket = self._replay
        while socket is not None and socket.poll(0, zmq.POLLIN):
            frames = socket.recv_multipart()
            if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
                log.warning("replay request dropped", extra=fields(frames=len(frames)))
                continue
            self._send_history(socket, frames[0], int.from_bytes(frames[2]))

    def _send_history(self, socket: "zmq.Socket[bytes]", client: bytes, start: int) -> None:
        head = [client, b"", self._topic] if self._wire.replay_topic else [client, b""]
        end = [client, b"", b""] if self._wire.replay_topic else [client, b""]
        for seq, payload in self._history:
            if seq >= start:
                socket.send_multipart([*head, seq.to_bytes(8), payload])
        socket.send_multipart([*end, _END_SEQ, b""])


def _attach(socket: "zmq.Socket[bytes]", endpoint: str, mode: ZmqMode) -> str:
    if not binds(endpoint, mode):
        socket.connect(endpoint)
        return endpoint
    socket.bind(endpoint)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
