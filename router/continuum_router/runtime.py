"""The configuration in force, as one frozen value, and the holder that swaps it.

Two kinds of object and never a third (architecture section 8): a `Snapshot` is made from one
`Config` and never changes; state lives as long as the process, is keyed by backend name, and
snapshots point into it. A request takes `runtime.current` once and uses nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from continuum_router.config.reload import compare
from continuum_router.config.root import Config
from continuum_router.kv_index.lookup import IndexLookup
from continuum_router.models.catalog import Catalog
from continuum_router.providers.key_scope import KeyScoper
from continuum_router.providers.prepare import TrustedProxies
from continuum_router.request import RequestRules
from continuum_router.upstream.attempt import Dispatcher
from continuum_shared.config.kinds import Reload
from continuum_shared.config.report import dotted


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a request needs, made from one configuration.

    `routing_headers` says whether callers see who served them (decisions H6). `max_body_bytes`
    bounds a request body. `lookup` asks the KV index, None without one. `generation` grows with
    each configuration.
    """

    config: Config
    generation: int
    request_rules: RequestRules
    dispatcher: Dispatcher
    lookup: IndexLookup | None
    key_scoper: KeyScoper | None
    catalog: Catalog
    trusted_proxies: TrustedProxies
    routing_headers: bool
    max_body_bytes: int

    @property
    def ready(self) -> bool:
        """True when at least one enabled backend that is not internal is in the pool (S2)."""
        return any(
            backend.enabled and not backend.internal for backend in self.dispatcher.pool.backends
        )


class ReloadRefused(Exception):
    """A new configuration would change keys that are frozen at start (S2 `timeouts.limits`).

    Every way to a new configuration ends in `Runtime.swap`, so none of them can widen the limits.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__("frozen at start, a restart is needed: " + ", ".join(keys))
        self.keys = tuple(keys)


class Runtime:
    """Holds the snapshot in force.

    `draining` is set once, when the process begins to end, `stopping` when what still runs is
    about to be cancelled.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._current = snapshot
        self.draining = False
        self.stopping = False

    @property
    def current(self) -> Snapshot:
        """The snapshot for a request that begins now."""
        return self._current

    def swap(self, snapshot: Snapshot) -> None:
        """Put a new configuration into force; requests in flight keep the one they took.

        Raises ReloadRefused, and changes nothing, when it differs in a key that is frozen at start.
        """
        refused = [
            dotted(change.path)
            for change in compare(self._current.config, snapshot.config)
            if change.reload is Reload.REFUSED
        ]
        if refused:
            raise ReloadRefused(refused)
        self._current = snapshot

    def publish_models(self, discovered: Mapping[str, frozenset[str]]) -> None:
        """Let the pool in force know what the backends' own model lists say (decisions E22).

        Every minute brings the same lists; only a difference makes a new snapshot.
        """
        dispatcher = self._current.dispatcher
        pool = dispatcher.pool.with_discovered(discovered)
        if pool is dispatcher.pool:
            return
        self._current = replace(self._current, dispatcher=replace(dispatcher, pool=pool))
