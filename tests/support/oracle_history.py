"""Random histories of an engine, and what a reader of its stream must know after each.

Requests, copies, evictions, offloads, resets, restarts, broken connections, lost batches, repeated
batches and replays, on virtual time, through the real decoder, tracker and stream. A history is its
seed: even ones are recoverable by replay, odd ones are not always.
"""

import asyncio
import random
from dataclasses import dataclass

from continuum_kv_listener.pipeline import OnGap
from support.oracle_codecs import Encode, sglang, vllm_array, vllm_map
from support.oracle_engine import END, MASKED, NOISE, Held
from support.oracle_rig import TTL, Feed, OracleRig, Reader, Weather, choose
from support.virtual_time import VirtualLoop


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of source: how its engine is named and how it encodes. A further kind is a further
    row of ``KINDS``."""

    engine: str
    encode: Encode


KINDS = {
    "vllm_array": Kind("vllm", vllm_array),
    "vllm_map": Kind("vllm", vllm_map),
    "sglang": Kind("sglang", sglang),
}
STEPS = 40
SYSTEMS = [
    [1, 2, 3, END],
    [1, 2, 3, 4, 5, END],
    [1, 2, 3, 4, 5, 6, 7, 8, 9, END],
    [2] * 11 + [END],
    [1, 2, 3, 4, 7, END],
]


def request(rig: OracleRig, feed: Feed, rng: random.Random) -> None:
    """A prompt under a system text, or one that fits nothing, or too short to tell."""
    tail = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rng.randrange(14))]
    prompt = [*rng.choice(SYSTEMS), *tail]
    if rng.random() < 0.1:
        prompt = [NOISE, *prompt]
    if rng.random() < 0.1:
        prompt = prompt[: rng.randrange(1, len(prompt))]
    lora = "adapter" if rng.random() < 0.15 else None
    salt = rng.choice(("someone", "someone", MASKED)) if rng.random() < 0.15 else None
    feed.engine.serve(prompt, rng.choice((0, 0, 1, 3)), lora, salt)
    if rng.random() < 0.8:  # else its events ride with the next ones
        feed.publish()


def reset(rig: OracleRig, feed: Feed, rng: random.Random) -> None:
    feed.engine.reset()


def restart(rig: OracleRig, feed: Feed, rng: random.Random) -> None:
    rig.restart(feed)


def hang_up(rig: OracleRig, feed: Feed, rng: random.Random) -> None:
    (feed.disconnect if feed.up else feed.connect)()


def lose(rig: OracleRig, feed: Feed, rng: random.Random) -> None:
    feed.lose(rng.randrange(1, 5))


def repeat(rig: OracleRig, feed: Feed, rng: random.Random) -> None:
    feed.repeat()


STEP_TABLE = [
    (30, request),
    (1, reset),
    (1, restart),
    (2, hang_up),
    (3, lose),
    (2, repeat),
]


def weather(rng: random.Random, *, covered: bool) -> Weather:
    """``covered``: replay brings everything back."""
    if covered:
        buffer, fails = 10_000, 0.0
    else:
        buffer, fails = rng.choice(((0, 0.0), (2, 0.0), (5, 0.3), (10_000, 0.5)))
    return Weather(
        buffer=buffer,
        fails=fails,
        on_gap=rng.choice((OnGap.SUSPECT, OnGap.SUSPECT, OnGap.PURGE)),
        ranks=rng.choice((1, 1, 1, 2)),
        capacity=rng.choice((8, 12, 30)),
        lower=rng.choice((0, 0, 6)),
        tells_blocks=rng.random() < 0.5,
    )


async def pass_time(rig: OracleRig, seconds: float, reader: Reader) -> None:
    """Let it pass, the reader reading."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(min(0.5, end - loop.time()))
        reader.read(loop.time())


def run(kind: str, seed: int) -> None:
    """Play one history on a virtual clock of its own. Raises AssertionError with its name."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            runner.run(history(KINDS[kind], seed))
        except AssertionError as error:
            error.add_note(f"history {seed} of {kind}")
            raise


async def history(kind: Kind, seed: int) -> None:
    """Play one history and compare."""
    rng = random.Random(seed)
    covered = seed % 2 == 0
    async with OracleRig(weather(rng, covered=covered), kind.engine, kind.encode, rng) as rig:
        loop = asyncio.get_running_loop()
        reader = rig.reader()
        for feed in rig.feeds:
            if rng.random() < 0.8:
                feed.connect()
        for _ in range(STEPS):
            choose(rng, STEP_TABLE)(rig, rng.choice(rig.feeds), rng)
            if rng.random() < 0.6:
                await asyncio.sleep(rng.choice((0.0, 0.001, 0.02, 0.15, 1.2)))
                reader.read(loop.time())
        for feed in rig.feeds:  # a batch that arrives shows that others did not
            feed.lose(0)
            if not feed.up:
                feed.connect()
            while not feed.engine.pending or not feed.publish():
                request(rig, feed, rng)
        await pass_time(rig, 3.0 if covered else TTL + 3.0, reader)
        seen, truth = rig.reader().read(loop.time()), rig.truth()
        told = reader.read(loop.time())
        if covered:
            assert seen == truth
            assert told == truth
            await pass_time(rig, 2 * TTL, reader)  # quiet prefixes are told again in time
            assert reader.read(loop.time()) == truth
        else:
            for known in (seen, told):
                assert_no_more(known, truth)


def assert_no_more(known: Held, truth: Held) -> None:
    """Nothing is claimed that is not held, and no more or hotter than it is."""
    for key, (tokens, warm) in known.items():
        assert key in truth
        held, cold = truth[key]
        assert warm or not cold
        assert warm != cold or tokens <= held
