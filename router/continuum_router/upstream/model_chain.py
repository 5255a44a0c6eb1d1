"""The model of a request, and the models that stand in for it one after the other (J11).

Each has its own body (the client's bytes with another name in it), keys, holdings and backends.
"""

from collections.abc import Callable, Mapping, Sequence

from continuum_router.backends.holding import Holding
from continuum_router.backends.pieces import Pieces
from continuum_router.backends.pool import Backend, Pool
from continuum_router.providers.model_splice import splice_model
from continuum_router.providers.piecer import Piecer
from continuum_router.request import ChatRequest, RequestRules, for_model
from continuum_router.upstream.outcome import Call
from continuum_shared.prefix_key import PrefixKey

Holdings = Mapping[str, Holding] | None


class ModelChain:
    """Stands at one model: `request`, `holdings`, `pieces` and `members` are of that one.

    `fallbacks` are the names that follow. Names that no backend serves are passed over, and so are
    all when the body is no JSON object, because only that can be given another model.
    """

    __slots__ = (
        "_call",
        "_names",
        "_piecer",
        "_pool",
        "_rules",
        "holdings",
        "members",
        "pieces",
        "request",
    )

    def __init__(
        self,
        call: Call,
        pool: Pool,
        fallbacks: Sequence[str],
        rules: RequestRules,
        piecer: Piecer | None = None,
    ) -> None:
        self._piecer = piecer
        self._call = call
        self._pool = pool
        self._rules = rules
        self._names: list[str] = []
        if fallbacks and call.request.raw.lstrip().startswith(b"{"):
            self._names = [name for name in fallbacks if pool.for_model(name)]
        self.request: ChatRequest = call.request
        self.holdings: Holdings = call.holdings
        self.pieces: Pieces | None = call.pieces or self._cut()
        self.members: tuple[Backend, ...] = (
            pool.for_model(call.request.model) if call.only is None else (call.only,)
        )

    @property
    def more(self) -> bool:
        """True while another model follows."""
        return bool(self._names)

    def advance(self, holdings_of: Callable[[PrefixKey], Holdings]) -> bool:
        """Go to the next model; False at the end. `holdings_of` asks the index, if it was asked."""
        if not self._names:
            return False
        name = self._names.pop(0)
        asked = self._call.request
        raw = splice_model(asked.raw, name)
        self.request = for_model(asked, name, raw, self._rules)
        self.members = self._pool.for_model(name)
        prefix = self.request.prefix
        indexed = prefix is not None and self._call.holdings is not None
        self.holdings = holdings_of(prefix) if prefix is not None and indexed else None
        self.pieces = self._cut()
        self._call.outcome.model_used = name
        return True

    def _cut(self) -> Pieces | None:
        """The pieces of a request that is short enough; a long one's come with the call."""
        if self._piecer is None or self._piecer.is_long(self.request.raw):
            return None
        return self._piecer.of(self.request, self._piecer.tenant(self._call.inbound))
