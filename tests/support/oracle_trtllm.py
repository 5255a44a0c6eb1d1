"""The oracle's engine behind ``/kv_cache_events``: numbered JSON that is read once."""

import random
from collections import deque

import orjson

from continuum_kv_listener.chain_stats import ChainLimits
from continuum_kv_listener.engine_events import Medium
from continuum_kv_listener.lane import Lane
from continuum_kv_listener.pipeline import OnGap, Pipeline
from continuum_kv_listener.reannounce import Vouching
from continuum_kv_listener.salt_reader import SaltReader
from continuum_kv_listener.trtllm_chains import TrtllmChains
from continuum_kv_listener.trtllm_client import PollError, PollFault
from continuum_kv_listener.trtllm_intake import TrtllmIntake
from continuum_shared.cache_salt import SaltIssuer, SaltVerifier
from continuum_shared.prefix_key import PrefixKey
from support.oracle_engine import (
    BLOCK,
    MODEL,
    Block,
    Cleared,
    Event,
    Moved,
    OracleEngine,
    Removed,
    Stored,
    key_of,
)
from support.oracle_rig import INTERVAL, Feed, Parts, Weather

SECRET = "a secret of the oracle"
POLL_SECONDS = 0.1


class TrtllmFeed:
    """An engine with its buffer of events. Without ``buffer`` in the weather the buffer is small;
    what it drops, and an answer that breaks off, is lost for good."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.url = "http://h/kv_cache_events"
        self.up = False
        self._rng = rng
        self._weather = weather
        self._covered = weather.buffer >= 1_000 and not weather.fails
        self._salts: dict[str, PrefixKey] = {}
        self._issuer = SaltIssuer([SECRET])
        self._buffer: deque[bytes] = deque(maxlen=None if self._covered else 40)
        self._last: bytes | None = None
        self._again = False
        self._lose_next = 0
        self.restart()

    def restart(self) -> None:
        self.engine = OracleEngine(
            self._rng, self._weather.capacity, self._weather.lower, moves=True, salts=self._salts
        )
        self.engine.pending.append(Cleared())
        self._buffer.clear()
        self._next_id = 0
        self._again = False
        self._loading = True
        """An engine takes longer to start than a poller to come by: it is missed at least once."""

    def connect(self) -> None:
        self.up = True

    def disconnect(self) -> None:
        self.up = self._again = False
        self._last = None  # nothing is delivered twice over an interruption

    def lose(self, batches: int) -> None:
        self._lose_next = 0 if self._covered else batches

    def repeat(self) -> None:
        self._again = self._last is not None

    def salt(self, prompt: list[int], rng: random.Random) -> str | None:
        found = key_of(tuple(prompt), MODEL)
        if found is None or rng.random() < 0.2:
            return rng.choice(("someone", None))
        salt = self._issuer.issue(found[1], backend="s", model=MODEL)
        self._salts[salt] = found[1]
        return salt

    def lora(self, rng: random.Random) -> str | None:
        return None

    def publish(self) -> bool:
        events, self.engine.pending = self.engine.pending, []
        for event in events:
            data = _data(event)
            self._buffer.append(orjson.dumps({"event_id": self._next_id, "data": data}))
            self._next_id += 1
        return not self._lose_next

    async def poll(self) -> bytes:
        if not self.up or self._loading:
            self._loading = self._loading and not self.up
            raise PollError(PollFault.UNREACHABLE)
        if self._again and self._last is not None:
            self._again = False
            return self._last
        answer = b"[" + b",".join(self._buffer) + b"]"
        self._buffer.clear()
        if self._lose_next:
            self._lose_next -= 1
            raise PollError(PollFault.CUT_SHORT)
        self._last = answer
        return answer


def _hash(block: Block) -> int:
    return int.from_bytes(block.hash[:8], "big")


def _data(event: Event) -> dict[str, object]:
    if isinstance(event, Cleared):
        return {"type": "created", "num_blocks_per_cache_level": [30, 6]}
    if isinstance(event, Removed):
        return {"type": "removed", "block_hashes": [_hash(block) for block in event.blocks]}
    if isinstance(event, Moved):
        new = 0 if event.medium is Medium.GPU else 1
        return {
            "type": "updated",
            "block_hash": _hash(event.block),
            "cache_level": {"old_value": 1 - new, "new_value": new},
            "priority": None,
        }
    assert isinstance(event, Stored)
    parent = event.blocks[0].parent
    return {
        "type": "stored",
        "parent_hash": None if parent is None else _hash(parent),
        "blocks": [
            {
                "block_hash": _hash(block),
                "tokens": [
                    {"token_id": token, "token_extra_id": 0} for token in block.tokens[-BLOCK:]
                ],
                "cache_level": 0,
                "priority": 35,
                "cache_salt": block.salt if block.parent is None else None,
            }
            for block in event.blocks
        ],
    }


class TrtllmKind:
    """TensorRT-LLM over HTTP: one engine, prompts identified by the router's salts."""

    engine = "trtllm"

    def feeds(self, weather: Weather, rng: random.Random) -> list[Feed]:
        return [TrtllmFeed(rng, weather)]

    def lane(self, rank: int, feed: Feed, parts: Parts) -> Lane:
        assert isinstance(feed, TrtllmFeed)
        verifier = SaltVerifier([SECRET], backend="s")
        chains = TrtllmChains(
            ChainLimits(), verify_salt=SaltReader(verifier, models=(MODEL,), expected=True)
        )
        pipeline = Pipeline(
            engine=self.engine,
            tracker=chains,
            metrics=parts.metrics,
            clock=parts.clock,
            on_restart=lambda _: None,
            on_gap=OnGap.PURGE,
        )
        intake = TrtllmIntake(
            feed,
            name="s",
            interval=POLL_SECONDS,
            chains=chains,
            sink=pipeline,
            metrics=parts.metrics,
            polls=parts.families.polls_of("s"),
            clock=parts.clock,
        )
        return Lane(
            rank=rank,
            link=intake,
            intake=intake,
            pipeline=pipeline,
            vouching=Vouching(INTERVAL, parts.clock()),
        )
