"""The backends as the configuration gives them: frozen, found by name and by model.

What is true of a backend at this moment (load, success, latency) lives in ``fleet``, keyed by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from continuum_router.config.backends import BackendType, TlsConfig
from continuum_shared.config.kinds import BackendUrl, Secret

NO_ALIASES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One configured backend.

    ``models`` empty means "not listed": its catalogue decides, see :class:`Pool`. ``weight`` is its
    share relative to its peers (decisions A12). ``replay_allowed`` says whether a request that may
    have reached it may be sent again. ``headers`` are pairs that are added to each request; they
    may be secrets, so they are not part of the printed form.
    ``internal`` backends are the router's own tools: no client request is routed to them.
    ``aliases`` map further names of its models to the names it knows; ``auth_scheme`` is
    ``bearer``, ``basic`` or ``header:NAME`` (H12).
    """

    name: str
    type: BackendType
    url: BackendUrl
    models: frozenset[str] = frozenset()
    weight: float = 1.0
    replay_allowed: bool = True
    api_key: Secret | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    max_connections: int = 512
    enabled: bool = True
    internal: bool = False
    aliases: Mapping[str, str] = field(default_factory=lambda: NO_ALIASES, hash=False)
    auth_scheme: str = "bearer"
    organization: str | None = None
    tls: TlsConfig = field(default_factory=TlsConfig)

    def real_name(self, model: str) -> str:
        """The name under which this backend knows ``model`` (decisions H7, A1)."""
        return self.aliases.get(model, model)


class Pool:
    """All backends of one configuration, in its order. Immutable.

    ``discovered`` gives the catalogue of backends that list no models themselves (decisions E22: a
    written list wins). A backend with neither is taken to serve any model. Names in ``discovered``
    that are no backend of this pool are ignored (user report K16).
    """

    __slots__ = ("_any", "_by_model", "_discovered", "backends", "by_name", "routable")

    def __init__(
        self,
        backends: Iterable[Backend],
        discovered: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.backends: tuple[Backend, ...] = tuple(backends)
        self.by_name: Mapping[str, Backend] = MappingProxyType({b.name: b for b in self.backends})
        if len(self.by_name) != len(self.backends):
            raise ValueError("two backends of a pool share a name")
        self._discovered = {name: frozenset(models) for name, models in (discovered or {}).items()}
        routable = [(b, self._serves(b)) for b in self.backends if b.enabled and not b.internal]
        names = frozenset[str]().union(*(models for _, models in routable if models is not None))
        self._any = tuple(b for b, models in routable if models is None)
        self._by_model = {
            model: tuple(b for b, models in routable if models is None or model in models)
            for model in names
        }
        # An alias is a promise of those that have it: no backend is tried on the off chance.
        for alias in frozenset[str]().union(*(b.aliases for b, _ in routable)):
            self._by_model[alias] = tuple(
                b for b, models in routable if alias in b.aliases or alias in (models or ())
            )
        self.routable = tuple(b for b, _ in routable)

    def for_model(self, model: str) -> tuple[Backend, ...]:
        """Backends that client requests for ``model`` may go to, in configuration order.

        The same tuple object each time, so that callers may cache by it. Empty: nobody serves it.
        "" stands for a request that names no model: any backend may take it.
        """
        if not model:
            return self.routable
        return self._by_model.get(model, self._any)

    def models(self) -> tuple[str, ...]:
        """Every model name that is known to be served: by backend order, then name (E19)."""
        seen: dict[str, None] = {}
        for backend in self.backends:
            if backend.enabled and not backend.internal:
                names = {*(self._serves(backend) or ()), *backend.aliases}
                seen.update(dict.fromkeys(sorted(names)))
        return tuple(seen)

    def real_names(self, model: str) -> frozenset[str]:
        """The names under which the backends of ``model`` know it; more than one is unusual."""
        return frozenset(backend.real_name(model) for backend in self.for_model(model))

    @property
    def model_choice(self) -> bool:
        """True when a request without a model could mean more than one (aliases aside)."""
        known = {name for b in self.routable for name in self._serves(b) or ()}
        return len(known) > 1

    def undiscovered(self) -> tuple[Backend, ...]:
        """Routable backends that list no models in the configuration: the ones to ask."""
        return tuple(b for b in self.backends if b.enabled and not b.internal and not b.models)

    def with_discovered(self, discovered: Mapping[str, Iterable[str]]) -> "Pool":
        """The same backends with these catalogues (by backend name) instead of the present ones.

        This very pool when they say nothing new: what is cached by its tuples stays good.
        """
        found = {name: frozenset(models) for name, models in discovered.items()}
        return self if found == self._discovered else Pool(self.backends, found)

    def _serves(self, backend: Backend) -> frozenset[str] | None:
        """Names that it serves; ``None`` when nothing is known and so any may be tried."""
        return backend.models or self._discovered.get(backend.name)
