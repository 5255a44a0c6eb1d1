"""One request's question to the index, and how long it took."""

from collections import OrderedDict
from collections.abc import Callable, Mapping

from continuum_router.backends.holding import Holding
from continuum_router.kv_index.index import KvIndex
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey

SECONDS_BUCKETS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 5e-4, 1e-3, 1e-2, 0.1)
"""In seconds: the index in memory answers in microseconds, one in another process in more."""

MAX_ANSWERS = 4096
"""Answers that are kept at one time."""


class IndexLookup:
    """Asks ``index`` and notes the time (``continuum_kv_index_query_seconds``, decisions G19).

    ``clock`` is monotonic seconds, the one whose times the index is given. An answer serves again
    for ``max_age`` seconds (the source's prepare cache, decisions C6; 0: every question is asked):
    it is set together with ``scoring.load_snapshot_ms``, see docs/decisions/0039.
    """

    def __init__(
        self,
        index: KvIndex,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        max_age: float = 0.0,
    ) -> None:
        self._index = index
        self._clock = clock
        self._max_age = max_age
        self._answers: OrderedDict[PrefixKey, tuple[float, Mapping[str, Holding]]] = OrderedDict()
        self._seconds = metrics.histogram(
            "continuum_kv_index_query_seconds",
            "Time of the KV index to answer one request's question.",
            SECONDS_BUCKETS,
        ).child()

    def holdings(self, prefix: PrefixKey) -> Mapping[str, Holding]:
        """Who holds ``prefix`` now, by backend name."""
        start = self._clock()
        if self._max_age > 0:
            known = self._answers.get(prefix)
            if known is not None and start - known[0] < self._max_age:
                return known[1]
        found = self._index.holdings(prefix, start)
        self._seconds.observe(self._clock() - start)
        if self._max_age > 0:
            self._answers[prefix] = (start, found)
            self._answers.move_to_end(prefix)
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return found
