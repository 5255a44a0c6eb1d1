"""From an ordinary request's bytes to the backend that is to serve it: stops 3 to 7, no waiting."""

from collections.abc import Mapping
from dataclasses import dataclass

from continuum_router.backends.holding import Holding
from continuum_router.backends.pool import Backend
from continuum_router.errors import RouterError
from continuum_router.providers.prepare import Inbound
from continuum_router.request import COMPLETING, Endpoint, Reading, read_generate
from continuum_router.routing.selector import Choice
from continuum_router.routing.strategies import Ask
from continuum_router.runtime import Snapshot
from continuum_router.upstream.deadlines import Limits

MEMO_ENTRIES = 1024


Placement = tuple[Reading, Mapping[str, Holding] | None, Choice, Limits]
"""What was asked, what the index said, who was chosen, within which limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What a snapshot says about one model's requests of one kind. No members: not for here."""

    members: tuple[Backend, ...]
    limits: Limits


_ELSEWHERE = ModelPlan(members=(), limits=Limits(total=0.0))


class Places:
    """Places the requests of one snapshot."""

    __slots__ = ("_loads", "_lookup", "_piecer", "_plans", "_rules", "_scoper", "_snap", "_usable")

    def __init__(self, snap: Snapshot) -> None:
        fleet = snap.dispatcher.state.fleet
        self._snap = snap
        self._rules = snap.request_rules
        self._lookup = snap.lookup
        self._scoper = snap.key_scoper
        self._piecer = snap.dispatcher.piecer
        self._loads = fleet.loads
        self._usable = fleet.conditions.usable
        self._plans: dict[tuple[str, Endpoint, bool], ModelPlan] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def place(
        self,
        endpoint: Endpoint,
        raw: bytes,
        now: float,
        client: str | None = None,
        inbound: Inbound | None = None,
    ) -> Placement | None:
        """Read `raw` and choose a backend. `now` is monotonic seconds; `client` is who asks, and
        `inbound` the headers with which.

        None: it is to be refused, or something about it is the general way's. Nothing has been
        counted then; otherwise the request and the choice have been.
        """
        try:
            reading = read_generate(endpoint, raw, self._rules)
        except RouterError:
            return None
        body, model, stream, prefix, hash_key = reading
        key = (model, endpoint, stream)
        plan = self._plans.get(key) or self._plan(key)
        members = plan.members
        if not members or (
            endpoint is Endpoint.RESPONSES and body.get("previous_response_id") is not None
        ):
            return None
        if self._scoper is not None:
            hash_key = self._scoper.widen(hash_key, body, inbound)
            reading = (body, model, stream, prefix, hash_key)
        holdings = None
        if self._lookup is not None and prefix is not None:
            holdings = self._lookup.holdings(prefix)
        pieces = None
        if self._piecer is not None:
            if self._piecer.is_long(raw):
                return None
            tenant = b"" if inbound is None else self._piecer.tenant(inbound)
            pieces = self._piecer.cut(endpoint, body, model, prefix, tenant)
        ask = Ask(
            model=model,
            prefix=hash_key,
            candidates=self._usable(members),
            ring_members=members,
            loads=self._loads,
            client=client,
            pieces=pieces,
            size=len(raw),
        )
        rules = self._snap.dispatcher
        choice = rules.selector.select(ask, holdings=holdings, now=now)
        if choice is None:
            return None
        state = rules.state
        state.budget.request(now)
        state.routing_metrics.count(choice)
        return reading, holdings, choice, plan.limits

    def _plan(self, key: tuple[str, Endpoint, bool]) -> ModelPlan:
        if len(self._plans) >= MEMO_ENTRIES:
            self._plans.clear()
        plan = self._plans[key] = self._make(*key)
        return plan

    def _make(self, model: str, endpoint: Endpoint, stream: bool) -> ModelPlan:
        """Under another name the body changes, under a keepalive somebody must watch the clock."""
        rules = self._snap.dispatcher
        members = rules.pool.for_model(model)
        unnamed = not model and (endpoint in COMPLETING or rules.pool.model_choice)
        renamed = any(member.real_name(model) != model for member in members)
        if unnamed or renamed or (stream and rules.sse_keepalive):
            return _ELSEWHERE
        limits = rules.limits_for(endpoint.path, model, stream=stream)
        return ModelPlan(members=members, limits=limits)
