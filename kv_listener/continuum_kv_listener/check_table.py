"""What ``--check`` prints: one row a thing that was tried, then what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass

from continuum_kv_listener.engine_client import EngineFault
from continuum_kv_listener.replay import ReplayFault

REPLAY_HINTS = {
    ReplayFault.NO_ANSWER: "is replay_endpoint in the engine's KV events configuration, and is "
    "its port open to this machine?",
    ReplayFault.CUT_SHORT: "is this the replay endpoint, and not the one that publishes?",
    ReplayFault.BAD_ENDPOINT: "correct zmq_replay_endpoint",
}
ENGINE_HINTS = {
    EngineFault.UNREACHABLE: "is the engine up, and engine_url right?",
    EngineFault.UNSUPPORTED: "is `model` a name that the engine serves, and its version recent?",
}
HEALTH_HINT = "no answer: is the engine up, and engine_url right?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row of the table. ``good`` None means: could not be tried, which is no failure."""

    source: str
    what: str
    endpoint: str
    good: bool | None
    note: str = ""


def table(outcomes: Sequence[Outcome]) -> str:
    """The rows as aligned text."""
    words = {True: "ok", False: "FAILED", None: "-"}
    rows = [("SOURCE", "WHAT", "ENDPOINT", "RESULT", "")]
    rows += [(o.source, o.what, o.endpoint, words[o.good], o.note) for o in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def next_step(outcomes: Sequence[Outcome]) -> str:
    """One sentence under the table."""
    good = sum(outcome.good is True for outcome in outcomes)
    failed = sum(outcome.good is False for outcome in outcomes)
    untried = len(outcomes) - good - failed
    counts = f"{good} ok, {failed} failed, {untried} not tried."
    if failed:
        return f"{counts} Next: what FAILED, from the top; rows below may fail because of it."
    if untried:
        return f"{counts} Next: start the listener; GET /sources says when the rest is there."
    return f"{counts} Next: start the listener."
