"""The block chains of a TensorRT-LLM engine: identified by a verified salt or not kept at all.

S0 "native TensorRT-LLM events", decisions C37, J15. Unlike engines whose prompts can be read back,
this one has no /detokenize: a chain whose first block we see carries a salt that the router issued
for this backend, or the chain is discarded and counted. No question is ever asked and no token id
kept. A block is in one place at a time: it is stored once, moves between levels, and goes.
"""

from collections import OrderedDict
from collections.abc import Sequence

from continuum_kv_listener.attribution_types import PathVerdict, Question
from continuum_kv_listener.block_chains import BlockChains, Run
from continuum_kv_listener.block_graph import Node, NodeKey
from continuum_kv_listener.chain import VerifySalt
from continuum_kv_listener.chain_stats import ChainLimits, ChainStats, TokenCount
from continuum_kv_listener.engine_events import (
    BlockHash,
    DropReason,
    Medium,
    Moved,
    Removed,
    Stored,
)
from continuum_kv_listener.prefix_ledger import PrefixLedger
from continuum_kv_listener.residency import copies
from continuum_kv_listener.scope import Head, Kind, Scope
from continuum_kv_listener.trtllm_decode import TrtllmEvent
from continuum_shared.cache_salt import is_router_salt
from continuum_shared.kv_event import KvEvent
from continuum_shared.prefix_key import PrefixKey

MAX_DISCARDED = 10_000
"""Blocks of discarded chains that are remembered, so that what follows them is discarded too."""

_NOTHING: tuple[DropReason, ...] = ()
_NO_KEYS: frozenset[PrefixKey] = frozenset()


class TrtllmChains:
    """All ranks of one engine; a prefix is worth the most that any of them holds (C18)."""

    def __init__(
        self,
        limits: ChainLimits | None = None,
        *,
        token_count: TokenCount = TokenCount.LONGEST_CHAIN,
        verify_salt: VerifySalt,
    ) -> None:
        self._ledger = PrefixLedger(token_count)
        self._chains = BlockChains(limits or ChainLimits(), self._ledger)
        self._verify_salt = verify_salt
        self._discarded: OrderedDict[NodeKey, DropReason] = OrderedDict()
        self.ignored = 0
        """Events of other windows than the widest (decisions C19)."""

    def apply(self, event: TrtllmEvent, now: float) -> tuple[DropReason, ...]:
        """Update the chains. Each returned reason is one thing that did not become state (J5)."""
        if isinstance(event, Stored):
            return self._stored(event, now)
        if isinstance(event, Removed):
            return self._removed(event)
        if isinstance(event, Moved):
            return self._moved(event)
        self.purge(now)
        return _NOTHING

    def purge(self, _now: float) -> None:
        """Drop all and say so."""
        self._chains.clear()
        self._discarded.clear()
        self._ledger.purge()

    def suspect(self, now: float) -> None:
        """Lost events purge: there is no later proof of a block (decisions C17)."""
        self.purge(now)

    def drain(self, now: float) -> list[KvEvent]:
        """The records that are due now, at most one a prefix (C9)."""
        return self._ledger.drain(now)

    def next_due(self, now: float) -> float | None:
        """When to call :meth:`drain` again without a new event; None: never."""
        return self._ledger.next_due(now)

    def snapshot(self) -> list[tuple[PrefixKey, int, bool]]:
        """(key, tokens, warm) of each prefix, as the records drained so far left it."""
        return self._ledger.snapshot()

    def questions(self, limit: int, now: float) -> list[Question]:  # noqa: ARG002
        """None: salts have said it all."""
        return []

    def answer(self, node: int, verdict: PathVerdict, now: float) -> None:
        """Never called: nothing is asked."""

    def retry(self, node: int, at: float) -> None:
        """Never called: nothing is asked."""

    def ask_again(self, now: float) -> int:  # noqa: ARG002
        """Nothing is asked."""
        return 0

    def doubted(self) -> frozenset[PrefixKey]:
        """Nothing is suspect: lost events purge."""
        return _NO_KEYS

    def fit(self, gpu_blocks: int) -> int:  # noqa: ARG002
        """A block has one copy: counts cannot drift."""
        return 0

    @property
    def stats(self) -> ChainStats:
        """Counts as of now."""
        return ChainStats(
            blocks=len(self._chains.graph.nodes),
            tokens=0,
            prefixes=self._ledger.announced,
            pending=0,
            unattributed={},
            questions_open=0,
            block_size_mismatches_total=0,
            blocks_evicted_total=self._chains.evicted_total,
            texts_dropped_total=0,
            ignored_group_events_total=self.ignored,
        )

    def _stored(self, event: Stored, now: float) -> tuple[DropReason, ...]:
        nodes = self._chains.graph.nodes
        keys = _keys(event.group, event.hashes)
        above = None if event.parent is None else _keys(event.group, (event.parent,))[0]
        known = nodes.get(above) if above is not None else None
        known = known or nodes.get(keys[0])
        found = known.scope if known is not None else self._identified(event, above)
        if isinstance(found, DropReason):
            self._discard(keys, found)
            return (found,)
        size = event.block_size
        at = 0
        while at < len(keys):
            node = nodes.get(keys[at])
            if node is not None:
                self._put(node, event.medium)
                above = keys[at]
                at += 1
                continue
            end = at + 1
            while end < len(keys) and keys[end] not in nodes:
                end += 1
            ends = range(size, size * (end - at) + 1, size)
            run = Run(keys[at:end], above, ends, event.tokens, event.medium, found, False)
            self._chains.store(run, now)
            above = keys[end - 1]
            at = end
        return _NOTHING

    def _identified(self, event: Stored, above: NodeKey | None) -> Scope | DropReason:
        """Whose prompt a chain begins whose first known block this is."""
        if above is not None and above in self._discarded:
            return self._discarded[above]
        salt = event.cache_salt
        if salt is None or not is_router_salt(salt):
            return DropReason.FOREIGN_SALT if above is None else DropReason.UNKNOWN_BLOCK
        keys = self._verify_salt(salt, event.lora_name)
        if keys is None:
            return DropReason.BAD_SALT
        heads = tuple(Head(0, event.block_size) for _ in keys)
        return Scope(Kind.SETTLED, keys=keys, heads=heads, lora_name=event.lora_name)

    def _discard(self, keys: Sequence[NodeKey], reason: DropReason) -> None:
        for key in keys:
            self._discarded[key] = reason
            self._discarded.move_to_end(key)
        while len(self._discarded) > MAX_DISCARDED:
            self._discarded.popitem(last=False)

    def _removed(self, event: Removed) -> tuple[DropReason, ...]:
        drops = _NOTHING
        for key in _keys(event.group, event.hashes):
            node = self._chains.graph.nodes.get(key)
            place = None if node is None else _place(node)
            if node is None or place is None:
                drops = (*drops, self._discarded.pop(key, DropReason.UNKNOWN_BLOCK))
            else:
                self._chains.release(node, place)
        return drops

    def _moved(self, event: Moved) -> tuple[DropReason, ...]:
        drops = _NOTHING
        for key in _keys(event.group, event.hashes):
            node = self._chains.graph.nodes.get(key)
            if node is None or _place(node) is None:
                drops = (*drops, self._discarded.get(key, DropReason.UNKNOWN_BLOCK))
            else:
                self._put(node, event.medium)
        return drops

    def _put(self, node: Node, medium: Medium) -> None:
        """The block is there now and nowhere else."""
        before = _place(node)
        if before is medium:
            self._chains.graph.touch(node)
            return
        self._chains.hold(node, medium)
        if before is not None:
            self._chains.release(node, before)


def _place(node: Node) -> Medium | None:
    """Where the block is; None when it is gone and only its descendants are known."""
    return next((medium for medium in Medium if copies(node, medium)), None)


def _keys(group: int, hashes: Sequence[BlockHash]) -> Sequence[NodeKey]:
    return hashes if not group else [(group, each) for each in hashes]
