"""Block chains with small blocks and made-up scopes, for the tests of their parts."""

from array import array

from continuum_kv_listener.block_chains import BlockChains, Run
from continuum_kv_listener.chain_stats import ChainLimits, TokenCount, Unattributed
from continuum_kv_listener.engine_events import Medium
from continuum_kv_listener.prefix_ledger import PrefixLedger
from continuum_kv_listener.scope import Head, Kind, Scope
from continuum_shared.prefix_key import PrefixKey

A = PrefixKey(b"a" * 32)
KEYED = Scope(Kind.SETTLED, keys=(A,), heads=(Head(0, 2),))
OPEN = Scope(Kind.OPEN, reason=Unattributed.PENDING)
ORPHAN = Scope(Kind.ORPHAN, reason=Unattributed.UNKNOWN_PARENT)
SEALED = Scope(Kind.SEALED, reason=Unattributed.BLOCK_SIZE)


class Fixture:
    def __init__(self, **limits: int) -> None:
        self.ledger = PrefixLedger(TokenCount.LONGEST_CHAIN)
        self.chains = BlockChains(ChainLimits(**limits), self.ledger)

    def store(
        self, keys: list[int], parent: int | None, scope: Scope, *, sealed: bool = False
    ) -> None:
        """Blocks of two tokens, each token the block's key."""
        tokens = array("I", [key for key in keys for _ in range(2)])
        ends = range(2, 2 * len(keys) + 1, 2)
        self.chains.store(Run(keys, parent, ends, tokens, Medium.GPU, scope, sealed), 0.0)

    @property
    def known(self) -> list[object]:
        return list(self.chains.graph.nodes)

    def told(self, now: float) -> list[tuple[str, int | None]]:
        return [(event.action.value, event.tokens) for event in self.ledger.drain(now)]

    def counts(self) -> dict[object, int]:
        return {reason: n for reason, n in self.chains.scopes.counts.items() if n}
