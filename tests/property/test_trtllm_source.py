"""Random engine histories through answers, faults and restarts, against the engine's true cache."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.pipeline import OnGap, Pipeline
from continuum_kv_listener.trtllm_chains import TrtllmChains
from continuum_kv_listener.trtllm_client import PollError, PollFault
from continuum_kv_listener.trtllm_decode import TrtllmAnswer, decode_answer, events_of
from continuum_kv_listener.trtllm_intake import TrtllmIntake
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from support.trtllm_server import block, created, numbered, removed, stored, updated

KEYS = [PrefixKey(bytes([n]) * 32) for n in range(4)]
SALTS = {f"cr1.{n}": (key,) for n, key in enumerate(KEYS)}
SIZE = 8


class Engine:
    """A radix tree of blocks with two levels, and the events that it makes."""

    def __init__(self, rng):
        self.rng = rng
        self.hashes = iter(range(1, 1 << 30))
        self.blocks = {}  # hash -> [parent, owner, depth, level]
        self.events = [created()]
        self.next_id = 0

    def step(self):
        rng = self.rng
        action = rng.choice(["root", "grow", "grow", "remove", "move", "move"])
        if action == "root" or not self.blocks:
            self.store(None, rng.choice([*range(len(KEYS)), None]))
        elif action == "grow":
            above = rng.choice(list(self.blocks))
            self.store(above, self.blocks[above][1])
        elif action == "move":
            moved = rng.choice(list(self.blocks))
            self.blocks[moved][3] = 1 - self.blocks[moved][3]
            self.events.append(updated(moved, self.blocks[moved][3]))
        else:
            parents = {each[0] for each in self.blocks.values()}
            gone = rng.choice([each for each in self.blocks if each not in parents])
            del self.blocks[gone]
            self.events.append(removed(gone))

    def store(self, above, owner):
        made = []
        salt = None if owner is None else f"cr1.{owner}"
        first = above
        for _ in range(self.rng.randint(1, 3)):
            number = next(self.hashes)
            depth = SIZE + (self.blocks[above][2] if above else 0)
            self.blocks[number] = [above, owner, depth, 0]
            made.append(block(number, SIZE, salt=salt))
            above = number
        self.events.append(stored(first, *made))

    def drain(self):
        answer = numbered(self.events, self.next_id)
        self.next_id += len(self.events)
        self.events = []
        return answer

    def truth(self):
        """key -> (tokens, warm): the longest hot path, else the longest at all."""
        best = {}
        for _, owner, depth, level in self.blocks.values():
            if owner is not None:
                rank = (level == 0, depth)
                best[KEYS[owner]] = max(best.get(KEYS[owner], rank), rank)
        return {key: (depth, not hot) for key, (hot, depth) in best.items()}


class Rig:
    url = "http://h/kv_cache_events"

    def __init__(self):
        self.now = 0.0
        families = ListenerMetrics(Metrics())
        self.chains = TrtllmChains(verify_salt=lambda salt, _: SALTS.get(salt))
        pipeline = Pipeline(
            engine="trtllm",
            tracker=self.chains,
            metrics=families.intake("s"),
            clock=self.clock,
            on_restart=lambda _: None,
            on_gap=OnGap.PURGE,
        )
        self.intake = TrtllmIntake(
            self,
            name="s",
            interval=0.5,
            chains=self.chains,
            sink=pipeline,
            metrics=families.intake("s"),
            polls=families.polls_of("s"),
            clock=self.clock,
        )
        self.answer = b""

    def clock(self):
        self.now += 1e-4
        return self.now

    async def poll(self):
        if isinstance(self.answer, PollFault):
            raise PollError(self.answer)
        return self.answer

    async def take(self, answer):
        self.answer = answer
        await self.intake.poll_once()
        self.now += 1.0
        self.chains.drain(self.now)
        return {key: (tokens, warm) for key, tokens, warm in self.chains.snapshot()}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
async def test_what_is_held_is_what_the_engine_has(seed):
    rng = random.Random(seed)
    rig, engine, whole = Rig(), Engine(rng), True
    for _ in range(30):
        for _ in range(rng.randint(0, 6)):
            engine.step()
        fate = rng.choice(["good"] * 8 + ["twice", "cut", "restart", "down"])
        if fate == "restart":
            engine = Engine(rng)
            await rig.take(PollFault.UNREACHABLE)
            whole = True
        elif fate == "down":
            await rig.take(PollFault.REFUSED)
        elif fate == "cut" and engine.events:
            engine.drain()
            await rig.take(rng.choice([PollFault.CUT_SHORT, b"[{", b"<html>"]))
            whole = False
            engine.store(None, 0)
        answer = engine.drain()
        held = await rig.take(answer)
        if fate == "twice":
            assert await rig.take(answer) == held
        truth = engine.truth()
        if whole:
            assert held == truth
        for key, (tokens, warm) in held.items():  # never more than there is
            most, only_warm = truth[key]
            assert warm or not only_warm
            assert tokens <= most or (warm and not only_warm)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_raise(body):
    assert isinstance(decode_answer(body), TrtllmAnswer)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["stored", "removed", "updated", "created", "cr1.0", ""]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "parent_hash",
                    "blocks",
                    "block_hash",
                    "block_hashes",
                    "tokens",
                    "cache_level",
                    "new_value",
                    "cache_salt",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(JSON, max_size=5))
def test_no_shape_raises_and_what_is_read_can_be_applied(datas):
    chains = TrtllmChains(verify_salt=lambda salt, _: SALTS.get(salt))
    for event in events_of(numbered(datas)):
        chains.apply(event, 0.0)
    assert chains.stats.tokens == 0
