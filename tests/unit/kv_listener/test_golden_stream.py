"""The golden stream: what the listener writes, byte for byte. The router reads the same file.

``GOLDEN=write`` in the environment writes it anew; a change needs a record in docs/decisions.
"""

import json
import os

from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.serve_sse import HEARTBEAT
from continuum_kv_listener.stream import EventStream, Subscription
from continuum_shared.kv_event import KvAction, KvEvent, decode
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import KeyTag, KeyText, PrefixKey, derive
from continuum_shared.sse import SseEvent, SseParser
from support.source_tree import ROOT

STREAM = ROOT / "tests" / "fixtures" / "push_stream_golden.sse"
EVENTS = ROOT / "tests" / "fixtures" / "push_stream_golden.json"

CLERK = derive("tiny-chat", KeyText(tag=KeyTag.SYSTEM, text="You are a clerk."), 1024)
PILOT = derive("tiny-chat", KeyText(tag=KeyTag.SYSTEM, text="You are a pilot."), 1024)
QUESTION = derive("tiny-lora", KeyText(tag=KeyTag.FIRST_MESSAGE, text="안녕?"), 1024)


def event(action: KvAction, prefix: PrefixKey | None, tokens: int | None = None) -> KvEvent:
    return KvEvent(action=action, prefix=prefix, tokens=tokens)


def everything(subscription: Subscription) -> bytes:
    """All that is there for it now."""
    out = b""
    while piece := subscription.take():
        out += piece
    return out


def golden_stream() -> bytes:
    """One subscriber that comes with the id of an earlier listener and stays for a while."""
    live = [event(KvAction.CREATED, CLERK, 512), event(KvAction.OFFLOADED, QUESTION, 64)]
    stream = EventStream(
        epoch="00c0ffee0001",
        max_prefix_length=1024,
        snapshot=lambda: live,
        metrics=ListenerMetrics(Metrics()).stream("vllm-1"),
    )
    stream.publish(
        [
            event(KvAction.CREATED, CLERK, 512),
            event(KvAction.CREATED, QUESTION, 64),
            event(KvAction.OFFLOADED, QUESTION, 64),
        ]
    )
    out = bytearray()
    with stream.subscribe("5eed00000000-41") as subscription:
        out += everything(subscription)
        stream.publish([event(KvAction.CREATED, PILOT, 32)])
        stream.publish([event(KvAction.CREATED, PILOT, 48), event(KvAction.RELOADED, QUESTION, 80)])
        out += everything(subscription)
        out += HEARTBEAT
        stream.reannounce([event(KvAction.CREATED, CLERK, 512)])
        stream.publish([event(KvAction.EVICTED, PILOT)])
        out += everything(subscription)
        stream.publish([event(KvAction.PURGED, None)])
        stream.publish([event(KvAction.CREATED, CLERK, 16)])
        out += everything(subscription)
    return bytes(out)


def readable(data: bytes) -> list[dict[str, object]]:
    """The file's events as plain values: what a reader must make of it."""
    rows: list[dict[str, object]] = []
    for item in SseParser().feed(data):
        if isinstance(item, SseEvent):
            known = decode(item.event, item.data)
            rows.append(
                {
                    "event": known.action.value,
                    "prefix_hash": None if known.prefix is None else known.prefix.hex(),
                    "token_count": known.tokens,
                    "snapshot": known.snapshot,
                    "last_event_id": item.id,
                }
            )
    return rows


def test_the_stream_is_the_golden_one():
    data = golden_stream()
    if os.environ.get("GOLDEN") == "write":
        STREAM.write_bytes(data)
        EVENTS.write_text(json.dumps(readable(data), indent=1) + "\n")
    assert data == STREAM.read_bytes()


def test_the_events_beside_it_are_what_the_stream_says():
    assert readable(STREAM.read_bytes()) == json.loads(EVENTS.read_text())
