"""The demo's workload: tenants with a long system prompt each, and their conversations. Pure.

It is the shape that prefix routing is for: a few system prompts that many users share, turns
that repeat everything said before, and more of both than the caches of the fleet can hold twice.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_NOUNS: Final = (
    "invoice ledger parcel courier warehouse refund ticket schedule boiler pump valve filter "
    "lesson pupil exam library garden orchard tractor harvest clinic patient dosage ward recipe "
    "oven kitchen menu bridge concrete beam survey lens shutter negative print lighthouse harbour"
)
_VERBS: Final = "check explain list compare record repair order cancel measure plan review"
_ADJECTIVES: Final = "late broken empty urgent heavy cheap rare spare annual local quiet open"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadShape:
    """How much of everything. Lengths are words; `think_seconds` is the pause between turns."""

    tenants: int = 24
    conversations: int = 3
    turns: int = 3
    system_words: int = 300
    user_words: int = 18
    think_seconds: tuple[float, float] = (0.02, 0.12)
    answer_tokens: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One user's session: the system prompt, what the user says in each turn, and pauses."""

    tenant: int
    system: str
    turns: tuple[str, ...]
    pauses: tuple[float, ...]


def conversations(seed: int, shape: WorkloadShape) -> list[Conversation]:
    """All conversations in the order in which they begin. One seed always gives the same."""
    rng = random.Random(seed)
    made: list[Conversation] = []
    for tenant in range(shape.tenants):
        system = f"You are assistant {tenant}. " + _prose(rng, shape.system_words)
        for _ in range(shape.conversations):
            turns = tuple(_prose(rng, shape.user_words) for _ in range(shape.turns))
            pauses = tuple(rng.uniform(*shape.think_seconds) for _ in range(shape.turns))
            made.append(Conversation(tenant=tenant, system=system, turns=turns, pauses=pauses))
    rng.shuffle(made)
    return made


def requests_in(workload: Sequence[Conversation]) -> int:
    """How many requests the workload sends."""
    return sum(len(conversation.turns) for conversation in workload)


def _prose(rng: random.Random, words: int) -> str:
    """About `words` words in sentences of four."""
    verbs, adjectives, nouns = _VERBS.split(), _ADJECTIVES.split(), _NOUNS.split()
    sentences = (
        f"{rng.choice(verbs).capitalize()} the {rng.choice(adjectives)} {rng.choice(nouns)}."
        for _ in range(max(1, words // 4))
    )
    return " ".join(sentences)
