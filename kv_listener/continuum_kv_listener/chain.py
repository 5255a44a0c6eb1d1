"""The chain tracker of one source: engine events in, prefix records out (architecture section 5).

Synchronous and deterministic: no I/O, no clock. A caller applies events, hands the questions to an
attributor, brings its verdicts back as proposals, and drains the records that are due.

    tracker.apply(event, now)        -> why parts of it did not become state
    tracker.questions(limit, now)    -> paths to be judged
    tracker.answer(node, verdict, now) / tracker.retry(node, at)
    tracker.drain(now)               -> KvEvents; tracker.next_due(now) says when to come back

The rules are design/chains.md and decisions C8-C16, C19-C21, C25, C41, A18.
"""

from collections.abc import Callable, Sequence

from continuum_kv_listener.attribution_types import PathVerdict, Question, UnattributedReason
from continuum_kv_listener.block_chains import BlockChains, Run
from continuum_kv_listener.block_graph import Node, NodeKey
from continuum_kv_listener.chain_stats import ChainLimits, ChainStats, TokenCount, Unattributed
from continuum_kv_listener.engine_events import (
    BlockHash,
    Cleared,
    DropReason,
    EngineEvent,
    Medium,
    Removed,
    Stored,
)
from continuum_kv_listener.inquiry import question
from continuum_kv_listener.prefix_ledger import PrefixLedger
from continuum_kv_listener.residency import copies
from continuum_kv_listener.scope import Head, Kind, Scope
from continuum_shared.cache_salt import is_router_salt
from continuum_shared.kv_event import KvEvent
from continuum_shared.prefix_key import PrefixKey

VerifySalt = Callable[[str, str | None], tuple[PrefixKey, ...] | None]
"""Reads a router-issued salt of a chain with this adapter's name: the keys it vouches for, or None
when it does not verify (C24)."""

MAX_OTHER_GROUPS = 64
"""How many cache groups without full attention are remembered by number (C19)."""

_NO_KEYS: frozenset[PrefixKey] = frozenset()
_NOTHING: tuple[DropReason, ...] = ()


class ChainTracker:
    """Block chains of one engine (one rank of it), and what they are worth by prefix key."""

    def __init__(
        self,
        limits: ChainLimits | None = None,
        *,
        token_count: TokenCount = TokenCount.LONGEST_CHAIN,
        verify_salt: VerifySalt | None = None,
        doubt_seconds: float = 600.0,
    ) -> None:
        self._ledger = PrefixLedger(token_count)
        self._chains = BlockChains(
            limits or ChainLimits(), self._ledger, doubt_seconds=doubt_seconds
        )
        self._verify_salt = verify_salt
        self._other_groups: set[int] = set()
        self._mismatches = 0
        self._drifted = 0
        self._ignored_group_events = 0

    def apply(self, event: EngineEvent, now: float) -> tuple[DropReason, ...]:
        """Update the chains. Each returned reason is one thing that did not become state (J5)."""
        if isinstance(event, Stored):
            return self._stored(event, now)
        if isinstance(event, Removed):
            return self._removed(event)
        self._wipe()
        return _NOTHING

    def purge(self, now: float) -> None:
        """The engine restarted, or nothing known can be trusted: drop all and say so."""
        self.apply(Cleared(), now)

    def suspect(self, now: float) -> None:
        """Events were lost: what is known by now is suspect until a store proves it (C17)."""
        self._chains.doubts.begin(now)

    def fit(self, gpu_blocks: int) -> int:
        """The engine has this many blocks: drop the oldest of what is counted beyond it (C16)."""
        dropped = self._chains.shed(gpu_blocks)
        self._drifted += dropped
        return dropped

    def doubted(self) -> frozenset[PrefixKey]:
        """Prefixes that rest on suspect blocks alone: live as yet, but not to be told again."""
        doubts = self._chains.doubts
        return self._ledger.doubted(doubts.age) if doubts.open else _NO_KEYS

    def questions(self, limit: int, now: float) -> list[Question]:
        """Claim up to ``limit`` paths whose text is to be judged; each is owed one
        :meth:`answer` or :meth:`retry`."""
        claimed: list[Question] = []
        while len(claimed) < limit:
            taken = self._chains.inquiry.claim(now)
            if taken is None:
                break
            handle, path = taken
            asked = question(handle, path)
            if asked is None:
                self._chains.inquiry.abandon(handle)
                self._chains.scopes.lose_text(next(node for node in path if node.tokens is None))
                continue
            for node in path:  # in use: among the last to go when a limit is hit
                self._chains.graph.touch(node)
                self._chains.shelf.touch(node)
            claimed.append(asked)
        return claimed

    def answer(self, node: int, verdict: PathVerdict, now: float) -> None:
        """Apply a verdict as a proposal: whatever of its path has gone meanwhile is left alone."""
        if self._chains.inquiry.outdated(node):
            self.retry(node, now)
            return
        tip = self._chains.inquiry.land(node)
        if tip is None:
            return
        end = tip.node
        path = end.path()  # whole: a path that lost a block has lost its flight too
        found = [
            each
            for each in sorted(verdict.completions, key=lambda each: each.block_index)
            if each.keys and 0 <= each.block_index < len(path)
        ]
        target = path[found[-1].block_index] if found else None
        for completion in found:
            block = path[completion.block_index]
            self._complete(block, completion.keys, final=verdict.done and block is target)
        if verdict.done:
            if target is None:
                self._settle(end, verdict.reason)
            above = (target or end).parent
            if isinstance(above, Node):
                self._chains.inquiry.cover(above)
                if target is None:
                    self._mark(above, Unattributed.of(verdict.reason or _HOPELESS))
        else:
            self._mark(end, Unattributed.of(verdict.reason))
            curable = verdict.reason is not None and not verdict.completions
            self._chains.inquiry.insufficient(tip, now, curable=curable)

    def retry(self, node: int, at: float) -> None:
        """The question was not answered (engine down, time-out): ask again at ``at``."""
        tip = self._chains.inquiry.land(node)
        if tip is not None:
            self._chains.inquiry.failed(tip, at)

    def ask_again(self, now: float) -> int:
        """Texts are read in another way as of ``now`` (a new calibration): every path without a key
        is asked about anew, and so is what is in the air. Returns about how many paths that are."""
        return self._chains.scopes.ask_again(now)

    def drain(self, now: float) -> list[KvEvent]:
        """The records that are due now, at most one a prefix (C9)."""
        self._chains.retire(now)
        return self._ledger.drain(now)

    def next_due(self, now: float) -> float | None:
        """When to call :meth:`drain` and :meth:`questions` again without a new event; None: never.

        Questions that are ready and only wait for room in the air are not counted.
        """
        dues = [
            due
            for due in (
                self._ledger.next_due(now),
                self._chains.inquiry.next_due(),
                self._chains.doubts.next_due(),
            )
            if due is not None
        ]
        return min(dues, default=None)

    def snapshot(self) -> list[tuple[PrefixKey, int, bool]]:
        """(key, tokens, warm) of each prefix, as the records drained so far left it."""
        return self._ledger.snapshot()

    @property
    def pending(self) -> int:
        """Blocks whose text was not judged yet, or not to its end."""
        return self._chains.scopes.counts[Unattributed.PENDING]

    @property
    def stats(self) -> ChainStats:
        """Counts as of now."""
        chains = self._chains
        reasons = {
            reason: blocks
            for reason, blocks in chains.scopes.counts.items()
            if reason is not None and blocks
        }
        return ChainStats(
            blocks=len(chains.graph.nodes),
            tokens=chains.shelf.used,
            prefixes=self._ledger.announced,
            pending=reasons.get(Unattributed.PENDING, 0),
            unattributed=reasons,
            questions_open=chains.inquiry.in_flight,
            block_size_mismatches_total=self._mismatches,
            blocks_evicted_total=chains.evicted_total,
            texts_dropped_total=chains.shelf.dropped_total,
            ignored_group_events_total=self._ignored_group_events,
            doubted_prefixes=len(self.doubted()),
            drifted_copies_total=self._drifted,
        )

    # -- events ---------------------------------------------------------------------------------

    def _stored(self, event: Stored, now: float) -> tuple[DropReason, ...]:
        if not event.full_attention:
            if len(self._other_groups) < MAX_OTHER_GROUPS:
                self._other_groups.add(event.group)
            self._ignored_group_events += 1
            return _NOTHING
        if not event.hashes:
            return (DropReason.MALFORMED_EVENT,)
        keys = _keys(event.group, event.hashes)
        if not event.tokens:
            return self._stored_again(keys, event)
        if (
            len(keys) == 1
            and event.parent is not None
            and event.block_size == len(event.tokens)
            and event.medium is Medium.GPU
            and not event.group
            and self._chains.append(event.parent, keys[0], event.block_size)
        ):
            return _NOTHING
        ends, fits = _block_ends(event)
        if not fits:
            self._mismatches += 1
        parent = None if event.parent is None else _keys(event.group, (event.parent,))[0]
        drops = _NOTHING
        if not fits:
            scope = _SEALED
        elif parent is None or parent not in self._chains.graph.nodes:
            scope, drops = self._first_scope(event, root=parent is None)
            if keys[0] in self._chains.graph.nodes:
                drops = _NOTHING  # counted once a chain
        else:
            scope = _SEALED  # not used: the blocks inherit their parent's
        run = Run(keys, parent, ends, event.tokens, event.medium, scope, not fits)
        self._chains.store(run, now)
        return drops

    def _stored_again(self, keys: Sequence[NodeKey], event: Stored) -> tuple[DropReason, ...]:
        """Copies told without text, as lower tiers do: known blocks only (C14)."""
        drops = []
        for key in keys:
            node = self._chains.graph.nodes.get(key)
            if node is None:
                drops.append(DropReason.UNKNOWN_BLOCK)
            else:
                self._chains.hold(node, event.medium)
        return tuple(drops)

    def _removed(self, event: Removed) -> tuple[DropReason, ...]:
        if event.group in self._other_groups:
            self._ignored_group_events += 1
            return _NOTHING
        drops: list[DropReason] = []
        find = self._chains.graph.nodes.get
        release = self._chains.release
        medium = event.medium
        hot = medium is Medium.GPU
        for key in event.hashes if not event.group else _keys(event.group, event.hashes):
            node = find(key)
            if node is None or not (node.gpu if hot else copies(node, medium)):
                drops.append(DropReason.UNKNOWN_BLOCK)
            else:
                release(node, medium)
        return tuple(drops) if drops else _NOTHING

    def _wipe(self) -> None:
        self._chains.clear()
        self._ledger.purge()
        self._other_groups.clear()

    # -- what a chain's beginning says ------------------------------------------------------------

    def _first_scope(self, event: Stored, *, root: bool) -> tuple[Scope, tuple[DropReason, ...]]:
        """The scope of a chain that starts here, and what is to be counted once for it.

        Only a chain's first block carries its salt (wire/README.md, 5), beside its adapter's name;
        SGLang names the salt in a field of its own.
        """
        extras: list[object] = [event.cache_salt] if event.cache_salt else []
        if root and event.extra_keys:
            extras.extend(_without_adapter(event.extra_keys[0] or (), event.lora_name))
        if not extras:
            if root:
                return _open(event.lora_name), _NOTHING
            return _orphan(event.lora_name), _NOTHING
        salts = [value for value in extras if is_router_salt(value)]
        if not salts or self._verify_salt is None:
            return _FOREIGN, (DropReason.FOREIGN_SALT,)
        # Beside a good salt a media hash says nothing that the key does not (C25, A3).
        keys = self._verified(salts, event.lora_name)
        if keys is None:
            return _BAD_SALT, (DropReason.BAD_SALT,)
        head_end = _block_ends(event)[0][0]
        heads = tuple(Head(0, head_end) for _ in keys)
        return Scope(Kind.SETTLED, keys=keys, heads=heads, lora_name=event.lora_name), _NOTHING

    def _verified(
        self, salts: Sequence[object], lora_name: str | None
    ) -> tuple[PrefixKey, ...] | None:
        found: dict[PrefixKey, None] = {}
        for salt in salts:
            verify = self._verify_salt
            keys = verify(salt, lora_name) if verify and isinstance(salt, str) else None
            if keys is None:
                return None
            found.update(dict.fromkeys(keys))
        return tuple(found)

    # -- verdicts ---------------------------------------------------------------------------------

    def _complete(self, target: Node, keys: tuple[PrefixKey, ...], *, final: bool) -> None:
        """``final``: nothing more is to be asked about what lies below."""
        base = target.depth - target.size
        heads = {key: Head(base, target.depth) for key in keys}

        def completed(old: Scope) -> Scope:
            new = old.completed(heads)
            return new.turned(Kind.SETTLED, None) if final and old.kind is not Kind.SETTLED else new

        self._chains.scopes.rescope(target, completed)
        above = target.parent
        if isinstance(above, Node):  # the shared head of a prefix that is attributed
            self._mark(above, None)

    def _settle(self, top: Node, reason: UnattributedReason | None) -> None:
        why = Unattributed.of(reason or _HOPELESS)

        def settled(old: Scope) -> Scope:
            if old.kind is Kind.SETTLED:
                return old
            return old.turned(Kind.SETTLED, why)

        self._chains.scopes.rescope(top, settled)

    def _mark(self, end: Node, reason: Unattributed | None) -> None:
        """Count an open path under what its judgement said; None: its text leads to a key."""
        node: object = end
        while isinstance(node, Node) and node.scope.kind is Kind.OPEN:
            if node.reason is None or node.reason is reason:
                return  # so are its ancestors
            self._chains.scopes.count_as(node, reason)
            node = node.parent


def _without_adapter(values: Sequence[object], lora_name: str | None) -> list[object]:
    """The adapter's name stands there once; a client's salt may be the same word (C25, C41)."""
    rest = [value for value in values if value is not None]
    if lora_name in rest:
        rest.remove(lora_name)
    return rest


_HOPELESS = UnattributedReason.NO_MATCH
"""What a verdict means that ends the asking without a key and without a reason."""
_SEALED = Scope(Kind.SEALED, reason=Unattributed.BLOCK_SIZE)
_FOREIGN = Scope(Kind.SETTLED, reason=Unattributed.FOREIGN_SALT)
_BAD_SALT = Scope(Kind.SETTLED, reason=Unattributed.BAD_SALT)


def _open(lora_name: str | None) -> Scope:
    return Scope(Kind.OPEN, lora_name=lora_name, reason=Unattributed.PENDING)


def _orphan(lora_name: str | None) -> Scope:
    return Scope(Kind.ORPHAN, lora_name=lora_name, reason=Unattributed.UNKNOWN_PARENT)


def _keys(group: int, hashes: Sequence[BlockHash]) -> Sequence[NodeKey]:
    return hashes if not group else [(group, each) for each in hashes]


def _block_ends(event: Stored) -> tuple[Sequence[int], bool]:
    """Where each block's tokens end, and whether the event's sizes agree (decisions C20).

    One hash with block size 0 takes all tokens. Where they do not agree the blocks share the length
    evenly: it counts as length only.
    """
    length = len(event.tokens)
    blocks = len(event.hashes)
    size = event.block_size
    if size * blocks == length:
        return range(size, length + 1, size), True
    if blocks == 1:
        return (length,), size == 0
    return [length * index // blocks for index in range(1, blocks + 1)], False
