"""Which paths are to be asked about, when, and which questions are in the air.

One question at a time per path, always from the root (design/chains.md, "Asking for text"). A path
is represented by a *tip*: the deepest block with tokens whose text was not judged yet. While a
path grows its tip moves along, so that a burst of blocks is one question. After an answer that was
not enough the tip asks again when the path has grown by a step that doubles each time, or a little
later if it grew less: never token by token, never block by block.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count

from continuum_kv_listener.attribution_types import Question
from continuum_kv_listener.block_graph import Node, Phase, Tip, TipState
from continuum_kv_listener.scope import Kind

PATIENCE_S = 1.0
"""A path that grew by less than its step is asked about after this time."""
MAX_BACKOFF_S = 60.0
"""Longest wait before a question that has found nothing for a curable reason is asked again."""

_WAITING = (TipState.SLOW, TipState.BACKOFF, TipState.DORMANT)
_SWEEP = 64
"""Queues of tips are swept of dead ones when they have doubled since, from this length on."""


class Inquiry:
    """Owns ``Node.phase`` and ``Node.tip``. Knows blocks, not verdicts."""

    def __init__(self) -> None:
        self._ready: deque[Tip] = deque()
        self._timers: list[tuple[float, int, Tip]] = []
        self._flights: dict[int, Tip] = {}
        self._outdated: set[int] = set()
        self._order = count()
        self._handles = count(1)
        self._sweep_ready_at = _SWEEP
        self._sweep_timers_at = _SWEEP

    @property
    def in_flight(self) -> int:
        """How many questions await their answer."""
        return len(self._flights)

    def begin(self, node: Node) -> None:
        """A new node whose text may complete a key was linked below its parent."""
        parent = node.parent
        flying = isinstance(parent, Node) and parent.phase is Phase.FLYING
        node.phase = Phase.FLYING if flying else Phase.ASKABLE

    def grown(self, parent: Node | None, last: Node, now: float) -> None:
        """A run of begun nodes under ``parent`` ends at ``last``."""
        if last.phase is not Phase.ASKABLE:
            return  # part of what is in the air, or lost again meanwhile
        tip = parent.tip if parent is not None else None
        if any(kid.phase is Phase.ASKABLE for kid in last.children()):
            if tip is not None:  # orphans joined below: they have tips of their own
                self._kill(tip)
            return
        if tip is None:
            tip = Tip(last, parent.depth if parent is not None else 0)
            last.tip = tip
            self._make_ready(tip)
            return
        self._move(tip, last)
        self._weigh(tip, now)

    def lead(self, node: Node) -> None:
        """Ask about the path that ends here as soon as possible."""
        tip = Tip(node, 0)
        node.tip = tip
        self._make_ready(tip)

    def forget(self, node: Node) -> None:
        """Nothing is to be asked about this node any more."""
        node.phase = Phase.NONE
        if node.tip is not None:
            self._kill(node.tip)

    def fallen(self, parent: Node) -> None:
        """A child of ``parent`` left: the path may now end at ``parent``, never judged yet."""
        if parent.phase is not Phase.ASKABLE or parent.tip is not None:
            return
        if not any(kid.phase in (Phase.ASKABLE, Phase.FLYING) for kid in parent.children()):
            self.lead(parent)

    def claim(self, now: float) -> tuple[int, list[Node]] | None:
        """Take the next path that is due: its handle and blocks, root first. None: nothing is."""
        self._ring(now)
        while self._ready:
            tip = self._ready.popleft()
            if tip.state is not TipState.READY:
                continue
            path = tip.node.path()
            tip.state = TipState.FLYING
            tip.node.phase = Phase.FLYING
            handle = next(self._handles)
            self._flights[handle] = tip
            return handle, path
        return None

    def abandon(self, handle: int) -> None:
        """The claimed path cannot be asked about after all."""
        self._flights.pop(handle, None)

    def land(self, handle: int) -> Tip | None:
        """The answer to a question came: its tip, or None if the path went meanwhile."""
        tip = self._flights.pop(handle, None)
        return tip if tip is not None and tip.state is TipState.FLYING else None

    def insufficient(self, tip: Tip, now: float, *, curable: bool) -> None:
        """The path's text was not enough. ``curable``: not for want of tokens, so ask again in
        time even if it does not grow."""
        node = tip.node
        tip.base = node.depth
        tip.step = max(tip.step * 2, node.size, 1)
        self.cover(node)
        if curable:
            wait = min(PATIENCE_S * tip.step / max(node.size, 1), MAX_BACKOFF_S)
            self._again(tip, now + wait, TipState.BACKOFF)
        else:
            tip.state = TipState.DORMANT
        self._resume(tip, now)

    def failed(self, tip: Tip, at: float) -> None:
        """Nobody answered: ask again at ``at``."""
        tip.node.phase = Phase.ASKABLE
        self._again(tip, at, TipState.BACKOFF)
        self._resume(tip, at)

    def cover(self, node: Node) -> None:
        """A question through this node was answered: so it was through its ancestors."""
        above: object = node
        while isinstance(above, Node) and above.phase is not Phase.COVERED:
            if above.phase is Phase.NONE:
                return
            above.phase = Phase.COVERED
            above = above.parent

    def next_due(self) -> float | None:
        """When the earliest timed question becomes due."""
        while self._timers:
            if _rings(self._timers[0]):
                return self._timers[0][0]
            heappop(self._timers)
        return None

    def ask_again(self, nodes: Iterable[Node], now: float) -> int:
        """No answer so far counts: every path among ``nodes`` that waits, for whatever, is to be
        asked about at once, and answers still to come are outdated. How many paths that are."""
        self._outdated = set(self._flights)
        covered = []
        waiting = len(self._flights)
        for node in nodes:
            if node.phase is Phase.COVERED:
                node.phase = Phase.ASKABLE
                covered.append(node)
            tip = node.tip
            if tip is not None and tip.state in _WAITING:
                tip.base = tip.step = 0
                tip.due = now
                self._make_ready(tip)
                waiting += 1
        for node in covered:
            self.fallen(node)
        return waiting

    def outdated(self, handle: int) -> bool:
        """Whether the question was put before the last :meth:`ask_again`; says so once."""
        outdated = handle in self._outdated
        self._outdated.discard(handle)
        return outdated

    def clear(self) -> None:
        """Forget everything; answers still to come find no flight."""
        self._ready.clear()
        self._timers.clear()
        self._flights.clear()
        self._outdated.clear()

    def _resume(self, tip: Tip, now: float) -> None:
        """Blocks that came while the question was in the air continue its path."""
        below = [kid for kid in tip.node.children() if kid.phase is Phase.FLYING]
        ends: list[Node] = []
        while below:
            node = below.pop()
            node.phase = Phase.ASKABLE
            deeper = [kid for kid in node.children() if kid.phase is Phase.FLYING]
            if not deeper:
                ends.append(node)
            below.extend(deeper)
        if not ends:
            return
        base, step, state, due = tip.base, tip.step, tip.state, tip.due
        self._move(tip, ends[0])
        for end in ends[1:]:
            other = Tip(end, base)
            other.step = step
            end.tip = other
            if state is TipState.BACKOFF:
                self._again(other, due, state)
            else:
                self._weigh(other, now)
        self._weigh(tip, now)

    def _weigh(self, tip: Tip, now: float) -> None:
        """Has this path grown enough to be asked about at once?"""
        if tip.state in (TipState.READY, TipState.BACKOFF):
            return
        if tip.node.depth - tip.base >= tip.step:
            self._make_ready(tip)
        elif tip.state is TipState.DORMANT:
            self._again(tip, now + PATIENCE_S, TipState.SLOW)

    def _move(self, tip: Tip, node: Node) -> None:
        tip.node.tip = None
        tip.node = node
        node.tip = tip

    def _make_ready(self, tip: Tip) -> None:
        tip.state = TipState.READY
        self._ready.append(tip)
        if len(self._ready) > self._sweep_ready_at:  # nobody claims, while paths come and go
            self._ready = deque(tip for tip in self._ready if tip.state is TipState.READY)
            self._sweep_ready_at = 2 * len(self._ready) + _SWEEP

    def _again(self, tip: Tip, due: float, state: TipState) -> None:
        tip.state = state
        tip.due = due
        heappush(self._timers, (due, next(self._order), tip))
        if len(self._timers) > self._sweep_timers_at:
            self._timers = [timer for timer in self._timers if _rings(timer)]
            heapify(self._timers)
            self._sweep_timers_at = 2 * len(self._timers) + _SWEEP

    def _ring(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            timer = heappop(self._timers)
            if _rings(timer):
                self._make_ready(timer[2])

    @staticmethod
    def _kill(tip: Tip) -> None:
        tip.state = TipState.DEAD
        tip.node.tip = None


def _rings(timer: tuple[float, int, Tip]) -> bool:
    """Whether this entry is the one its tip waits for now."""
    due, _, tip = timer
    return tip.due == due and tip.state in (TipState.SLOW, TipState.BACKOFF)


def question(handle: int, path: list[Node]) -> Question | None:
    """The question about a path; None when a block of it has lost its tokens."""
    tokens = array("I")
    for node in path:
        if node.tokens is None:
            return None
        tokens.frombytes(node.tokens)
    assert path[0].scope.kind is Kind.OPEN
    return Question(
        node=handle,
        tokens=tokens,
        block_ends=tuple(node.depth for node in path),
        lora_name=path[-1].scope.lora_name,
    )
