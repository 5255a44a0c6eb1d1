"""A scripted engine publisher: a real PUB socket and a real replay ROUTER.

Frames, encodings and both replay layouts are those of wire/README.md. The PUB socket belongs to
the caller's thread; the ROUTER is served by a thread of its own, as engines do.
"""

import threading
import time
from collections.abc import Sequence
from enum import StrEnum

import msgpack
import zmq

END = b"\xff" * 8


class Encoding(StrEnum):
    """How an event is written: vLLM up to 0.23 and SGLang up to 0.5.16, or later."""

    ARRAY = "array"
    MAP = "map"


class ReplayLayout(StrEnum):
    """Whether a replay answer holds the topic (vLLM 0.32) or not (0.23)."""

    WITH_TOPIC = "with_topic"
    WITHOUT_TOPIC = "without_topic"


def stored(
    encoding: Encoding,
    hashes: Sequence[int | bytes],
    parent: int | bytes | None,
    tokens: Sequence[int],
    *,
    block_size: int = 16,
    medium: str | None = "GPU",
    lora_name: str | None = None,
    extra_keys: Sequence[Sequence[object] | None] | None = None,
) -> object:
    """One vLLM BlockStored event."""
    keys = list(extra_keys) if extra_keys is not None else [None] * len(hashes)
    if encoding is Encoding.ARRAY:
        fields = [list(hashes), parent, list(tokens), block_size, None, medium, lora_name, keys]
        return ["BlockStored", *fields, 0, "full_attention", None]
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        "lora_id": None,
        "medium": medium,
        "lora_name": lora_name,
        "extra_keys": keys,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def removed(
    encoding: Encoding, hashes: Sequence[int | bytes], *, medium: str | None = "GPU"
) -> object:
    """One BlockRemoved event."""
    if encoding is Encoding.ARRAY:
        return ["BlockRemoved", list(hashes), medium, 0]
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium, "group_idx": 0}


def cleared(encoding: Encoding) -> object:
    """One AllBlocksCleared event."""
    return ["AllBlocksCleared"] if encoding is Encoding.ARRAY else {"type": "AllBlocksCleared"}


def batch(events: Sequence[object], rank: int = 0) -> bytes:
    """The msgpack payload of one message."""
    return bytes(msgpack.packb([time.time(), list(events), rank]))


def free_port() -> int:
    """A port that was free a moment ago."""
    context = zmq.Context()
    probe = context.socket(zmq.PUB)
    port = probe.bind_to_random_port("tcp://127.0.0.1")
    probe.close(0)
    context.term()
    return int(port)


class KvPublisher:
    """Publishes numbered batches from 0 on and answers replay requests.

    ``connect_to`` makes the PUB socket connect (the listener binds); otherwise it binds
    ``tcp://127.0.0.1:port``. A new object on the same ports is a restarted engine.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        replay_port: int | None = None,
        connect_to: str | None = None,
        topic: str = "kv-events",
        layout: ReplayLayout = ReplayLayout.WITH_TOPIC,
        replay: bool = True,
        buffer: int = 10_000,
    ) -> None:
        self.topic = topic.encode()
        self.layout = layout
        self.next_seq = 0
        self.requests: list[int] = []
        self.answers_until: int | None = None
        self.silent = False
        self._buffer_limit = buffer
        self._buffer: dict[int, bytes] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self.port = 0
        if connect_to is not None:
            self._pub.setsockopt(zmq.IPV6, "[" in connect_to)
            self._pub.connect(connect_to)
        else:
            self.port = _bind(self._pub, port)
        self.replay_port = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if replay:
            router = self._context.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            self.replay_port = _bind(router, replay_port)
            self._thread = threading.Thread(target=self._serve, args=(router,), daemon=True)
            self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where to subscribe."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def replay_endpoint(self) -> str:
        """Where to ask for a replay."""
        return f"tcp://127.0.0.1:{self.replay_port}"

    def publish(self, events: Sequence[object]) -> int:
        """Send one batch; returns its number."""
        return self.publish_payload(batch(events))

    def publish_payload(self, payload: bytes) -> int:
        """Send these bytes as the next batch."""
        seq = self.lose_payload(payload)
        self._pub.send_multipart([self.topic, seq.to_bytes(8, "big"), payload])
        return seq

    def lose(self, events: Sequence[object]) -> int:
        """A batch that happened but did not reach the subscriber; a replay still has it."""
        return self.lose_payload(batch(events))

    def lose_payload(self, payload: bytes) -> int:
        """The same for raw bytes."""
        seq = self.next_seq
        self.next_seq += 1
        self._buffer[seq] = payload
        self._buffer.pop(seq - self._buffer_limit, None)
        return seq

    def inherit(self, other: "KvPublisher") -> None:
        """Go on as the same engine process: its numbers and its buffer."""
        self.next_seq = other.next_seq
        self._buffer = dict(other._buffer)

    def forget(self, seq: int) -> None:
        """Leave one batch out of every replay (a ROUTER drops what a full pipe does not take)."""
        self._buffer.pop(seq, None)

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Send any message."""
        self._pub.send_multipart(list(frames))

    def close(self) -> None:
        """Die: sockets close at once, nothing is flushed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        self._context.destroy(0)

    def _serve(self, router: "zmq.Socket[bytes]") -> None:
        while not self._stop.is_set():
            if not router.poll(10):
                continue
            identity, *rest = router.recv_multipart()
            if len(rest) != 2 or rest[0] or len(rest[1]) != 8:
                continue
            start = int.from_bytes(rest[1], "big")
            self.requests.append(start)
            if not self.silent:
                self._answer(router, identity, start)
        router.close(0)

    def _answer(self, router: "zmq.Socket[bytes]", identity: bytes, start: int) -> None:
        topic = [self.topic] if self.layout is ReplayLayout.WITH_TOPIC else []
        for seq, payload in sorted(self._buffer.items()):
            if seq >= start and (self.answers_until is None or seq <= self.answers_until):
                router.send_multipart([identity, b"", *topic, seq.to_bytes(8, "big"), payload])
        end = [b""] if self.layout is ReplayLayout.WITH_TOPIC else []
        router.send_multipart([identity, b"", *end, END, b""])


def _bind(socket: "zmq.Socket[bytes]", port: int | None) -> int:
    """Bind a port of loopback; one that a dead publisher has just left may take a moment."""
    if port is None:
        return int(socket.bind_to_random_port("tcp://127.0.0.1"))
    for _ in range(200):
        try:
            socket.bind(f"tcp://127.0.0.1:{port}")
        except zmq.ZMQError:
            time.sleep(0.01)
        else:
            return port
    raise RuntimeError(f"port {port} stays in use")
