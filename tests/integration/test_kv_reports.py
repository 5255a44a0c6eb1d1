"""What users of other listeners met in engine events, loss and ranks: each row a test (K1 to K12).

Rows K13 to K19 concern attribution, framing, the index and polling and stand elsewhere; the
router's half of K4 is in test_kv_routing_reports.
"""

import asyncio
import logging
import random
from contextlib import closing

import msgpack
import pytest
import zmq

from continuum_kv_listener.attribution_types import Completion, PathVerdict, Question
from continuum_kv_listener.chain import ChainTracker
from continuum_kv_listener.decode import decode_batch
from continuum_kv_listener.engine_events import DropReason
from continuum_shared.kv_event import KvAction
from continuum_shared.prefix_key import PrefixKey, chat_key_text, derive
from support.kv_publisher import (
    Encoding,
    KvPublisher,
    ReplayLayout,
    cleared,
    free_port,
    removed,
    stored,
)
from support.listener_rig import metric, running_listener, source_row, subscribed, until
from support.tiny_engine import TinyEngine, serving

BLOCK = 16
SYSTEM = "You are the harbour master of a small port. Answer in one sentence, and name the tide."
OTHER = "You translate every sentence into Korean and say nothing else, 안녕하세요 included."


class Known:
    """A tracker fed with bytes; a prompt's key is its first token and its adapter."""

    def __init__(self, engine: str = "vllm") -> None:
        self.tracker = ChainTracker()
        self.engine = engine
        self.drops: list[DropReason] = []

    def feed(self, *events: object) -> None:
        batch = decode_batch(msgpack.packb([0.0, list(events), 0]), self.engine)
        self.drops += batch.drops
        for event in batch.events:
            self.drops += self.tracker.apply(event, 0.0)

    def holds(self) -> dict[bytes, int]:
        """Tokens by key, after everything was asked."""
        for question in self.tracker.questions(99, 0.0):
            self.tracker.answer(question.node, judged(question), 0.0)
        self.tracker.drain(1e9)
        return {key: tokens for key, tokens, _ in self.tracker.snapshot()}


def named(first: int, adapter: str | None = None) -> PrefixKey:
    return PrefixKey(f"{first}/{adapter or ''}".encode().ljust(32, b"."))


def judged(question: Question) -> PathVerdict:
    key = named(question.tokens[0], question.lora_name)
    return PathVerdict(completions=(Completion(block_index=0, keys=(key,)),), done=True)


def tokens(first: int, count: int) -> list[int]:
    return [first] * count


LONG = ["BlockStored", [2**63 + 5, 7], None, tokens(1, 32), 16, None, "GPU", None, None, 0]


@pytest.mark.parametrize(
    "event",
    [
        LONG[:5],
        LONG,
        [*LONG, "full_attention", None, "a field of", {"the": "future"}],
        {"type": "BlockStored", "block_hashes": [2**63 + 5, 7], "parent_block_hash": None,
         "token_ids": tokens(1, 32), "block_size": 16, "locality": "of the future"},
    ],
    ids=["shorter", "as known", "longer", "map with unknown fields"],
)  # fmt: skip
@pytest.mark.parametrize("spelling", [2**63 + 5, -(2**63) + 5], ids=["unsigned", "signed"])
def test_k1_other_fields_and_other_signs_are_the_same_event(event, spelling):
    known = Known()
    known.feed(event)
    assert known.holds() == {named(1): 32}
    known.feed(["BlockRemoved", [7], "GPU"], ["BlockRemoved", [spelling], "GPU", 0, "later field"])
    assert known.holds() == {}
    assert known.drops == []


def test_k2_bytes_and_integers_are_hashes_that_never_meet():
    number = int.from_bytes(b"\x00" * 7 + b"A", "big")
    known = Known()
    known.feed(stored(Encoding.MAP, [number, 2], None, tokens(1, 32)))
    known.feed(stored(Encoding.MAP, [b"A", b"\x02"], None, tokens(2, 32)))
    assert known.holds() == {named(1): 32, named(2): 32}
    known.feed(removed(Encoding.MAP, [b"\x02"]), removed(Encoding.MAP, [b"A"]))
    assert known.holds() == {named(1): 32}


def test_k7_a_window_group_neither_counts_nor_removes():
    known = Known()
    hashes = list(range(1, 11))
    full = stored(Encoding.MAP, hashes, None, tokens(1, 160))
    window = {**full, "group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    known.feed(full, window)
    assert known.holds() == {named(1): 160}
    known.feed(*({**removed(Encoding.MAP, [each]), "group_idx": 1} for each in reversed(hashes)))
    assert known.holds() == {named(1): 160}
    assert known.drops == []


@pytest.mark.parametrize("size", [1, 7, 64, 400])
def test_k8_the_block_size_is_the_events_own(size):
    known = Known()
    known.feed(stored(Encoding.ARRAY, [1, 2], None, tokens(1, 2 * size), block_size=size))
    assert known.holds() == {named(1): 2 * size}


def test_k9_blocks_that_are_only_loadable_are_told_as_warm():
    known = Known()
    known.feed(stored(Encoding.MAP, [1, 2], None, tokens(1, 32), medium="CPU"))
    known.feed(stored(Encoding.MAP, [5], None, tokens(2, 16)))
    assert known.holds() == {named(1): 32, named(2): 16}
    assert {key: warm for key, _, warm in known.tracker.snapshot()} == {
        named(1): True,
        named(2): False,
    }


def test_k11_base_model_and_adapter_have_keys_of_their_own():
    known = Known()
    known.feed(stored(Encoding.MAP, [1], None, tokens(1, 16)))
    known.feed(stored(Encoding.MAP, [2], None, tokens(1, 16), lora_name="fr", extra_keys=[["fr"]]))
    known.feed(stored(Encoding.MAP, [3], 2, tokens(9, 16), lora_name="fr", extra_keys=[["fr"]]))
    assert known.holds() == {named(1): 16, named(1, "fr"): 32}
    assert known.drops == []


def test_k12_engine_hashes_are_names_and_nothing_else():
    seen = []
    for seed in range(5):
        known = Known()
        made = random.Random(seed)
        one, two, three = (made.getrandbits(64) for _ in range(3))
        known.feed(stored(Encoding.MAP, [one, two], None, tokens(1, 32)))
        known.feed(stored(Encoding.MAP, [three], two, tokens(3, 16)))
        seen.append(known.holds())
    assert seen == [{named(1): 48}] * 5


# -- with real sockets ------------------------------------------------------------------------


def chat(system: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": "When is high tide?"},
    ]


def key(system: str) -> bytes:
    text = chat_key_text({"messages": chat(system)})
    assert text is not None
    return derive("tiny-chat", text, 1024)


@pytest.fixture
async def engine():
    made = TinyEngine()
    async with serving(made):
        yield made


def prompt(engine: TinyEngine, system: str, first: int) -> tuple[object, list[int]]:
    """(event, hashes) of a chat's whole blocks; hashes count from ``first``."""
    ids = engine.encode_chat(chat(system))
    hashes = list(range(first, first + len(ids) // BLOCK))
    return stored(Encoding.MAP, hashes, None, ids[: len(hashes) * BLOCK]), hashes


def source(engine: TinyEngine, publisher: KvPublisher, **more: object) -> dict[str, object]:
    return {
        "backend_name": "b",
        "zmq_endpoint": publisher.endpoint,
        "zmq_replay_endpoint": publisher.replay_endpoint,
        "engine_url": engine.url,
        "model": "tiny-chat",
        **more,
    }


async def follows(base: str) -> None:
    async with asyncio.timeout(10):
        while not (row := await source_row(base, "b"))["connected"] or not row["calibrated"]:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.15)


async def test_k3_one_unreadable_batch_costs_one(engine, caplog):
    with closing(KvPublisher()) as publisher:
        async with (
            running_listener([source(engine, publisher)]) as base,
            subscribed(base, "b") as sub,
        ):
            await follows(base)
            publisher.publish([prompt(engine, SYSTEM, 100)[0]])
            for _ in range(3):
                publisher.publish_payload(b"\xc1 no msgpack")
            publisher.publish([prompt(engine, OTHER, 200)[0]])
            await until(lambda: set(sub.index()) == {key(SYSTEM), key(OTHER)})
            line = 'continuum_listener_dropped_total{reason="undecodable_batch",source="b"}'
            assert await metric(base, line) == 3
            row = await source_row(base, "b")
            assert (row["connected"], row["gaps"], row["restarts"]) == (True, 0, 0)
    said = [r for r in caplog.records if r.levelno >= logging.WARNING and "decoded" in r.message]
    assert len(said) == 1


@pytest.mark.parametrize("late", [False, True], ids=["at once", "with the next store"])
async def test_k4_a_cleared_engine_is_told_by_one_record_and_no_other_is(engine, late):
    """``late``: an idle engine tells of its reset in front of the next thing that it does."""
    with closing(KvPublisher()) as one, closing(KvPublisher()) as two:
        sources = [source(engine, one), source(engine, two, backend_name="c")]
        async with (
            running_listener(sources) as base,
            subscribed(base, "b") as sub,
            subscribed(base, "c") as other,
        ):
            await follows(base)
            for publisher in (one, two):
                publisher.publish([prompt(engine, SYSTEM, 100)[0], prompt(engine, OTHER, 200)[0]])
            both = {key(SYSTEM), key(OTHER)}
            await until(lambda: set(sub.index()) == both == set(other.index()))
            told = len(sub.events)
            said = [cleared(Encoding.MAP)]
            if late:
                said.append(prompt(engine, SYSTEM, 100)[0])
            one.publish(said)
            await until(lambda: len(sub.events) >= told + len(said))
            assert sub.events[told].action is KvAction.PURGED
            assert set(sub.index()) == ({key(SYSTEM)} if late else set())
            assert set(other.index()) == both


async def test_k5_after_a_recovery_the_next_batch_is_no_gap(engine):
    with closing(KvPublisher()) as publisher:
        async with (
            running_listener([source(engine, publisher)]) as base,
            subscribed(base, "b") as sub,
        ):
            await follows(base)
            publisher.publish([prompt(engine, SYSTEM, 100)[0]])
            await until(lambda: key(SYSTEM) in sub.index())
            asked = list(publisher.requests)
            publisher.lose([prompt(engine, OTHER, 200)[0]])
            for first in (300, 400, 500):
                publisher.publish([prompt(engine, f"Number {first}. {SYSTEM}", first)[0]])
            await until(lambda: len(sub.index()) == 5)
            assert publisher.requests == [*asked, 1]
            row = await source_row(base, "b")
            assert (row["gaps"], row["restarts"], row["last_seq"]) == (1, 0, 4)


@pytest.mark.parametrize("layout", list(ReplayLayout))
async def test_k6_a_restarted_listener_has_the_prefixes_before_any_request(engine, layout):
    with closing(KvPublisher(layout=layout)) as publisher:
        publisher.publish([prompt(engine, SYSTEM, 100)[0]])
        for _ in range(2):
            async with (
                running_listener([source(engine, publisher)]) as base,
                subscribed(base, "b") as sub,
            ):
                await until(lambda sub=sub: set(sub.index()) == {key(SYSTEM)})
        assert publisher.requests == [0, 0]


def neighbours() -> tuple[KvPublisher, KvPublisher]:
    """Publishers of ranks 0 and 1: both sockets one port apart."""
    for _ in range(50):
        port, replay = free_port(), free_port()
        if abs(port - replay) < 2:
            continue
        first = KvPublisher(port=port, replay_port=replay)
        try:
            probe = zmq.Context()
            with probe.socket(zmq.PUB) as one, probe.socket(zmq.PUB) as two:
                one.bind(f"tcp://127.0.0.1:{port + 1}")
                two.bind(f"tcp://127.0.0.1:{replay + 1}")
        except zmq.ZMQError:
            first.close()
            continue
        finally:
            probe.destroy(0)
        return first, KvPublisher(port=port + 1, replay_port=replay + 1)
    raise RuntimeError("no two ports beside each other are free")


async def test_k10_ranks_have_sequences_and_copies_of_their_own(engine):
    ranks = neighbours()
    with closing(ranks[0]), closing(ranks[1]):
        async with (
            running_listener([source(engine, ranks[0], dp_size=2)]) as base,
            subscribed(base, "b") as sub,
        ):
            await follows(base)
            assert await metric(base, 'continuum_listener_connected{source="b"}') == 2
            event, hashes = prompt(engine, SYSTEM, 100)
            others = [prompt(engine, f"{n}.", 900 + 99 * n)[0] for n in range(3)]
            for each in (event, *others):  # in turn: numbers 0 to 3 on each of them
                for rank in ranks:
                    rank.publish([each])
            await until(lambda: key(SYSTEM) in sub.index())
            gone = [removed(Encoding.MAP, [each]) for each in hashes]
            counted = 'continuum_listener_events_total{source="b",type="removed"}'
            ranks[0].publish(gone)
            while await metric(base, counted) < len(hashes):
                await asyncio.sleep(0.02)
            assert sub.index()[key(SYSTEM)] == (len(hashes) * BLOCK, "hot")
            ranks[1].publish(gone)
            await until(lambda: key(SYSTEM) not in sub.index())
            row = await source_row(base, "b")
            assert (row["gaps"], row["restarts"], row["last_seq"]) == (0, 0, 4)
            assert row["warnings"] == []
