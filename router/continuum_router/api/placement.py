"""From an ordinary request's bytes to the backend that is to serve it: stops 3 to 7, no waiting."""

from collections.abc import Mapping
from dataclasses import dataclass

from continuum_router.backends.holding import Holding
from continuum_router.backends.pool import Backend
from continuum_router.errors import RouterError
from continuum_router.providers.prepare import Inbound
from continuum_router.request import COMPLETING, ChatRequest, Endpoint, parse_generate
from continuum_router.routing.selector import Choice
from continuum_router.routing.strategies import Ask
from continuum_router.runtime import Snapshot
from continuum_router.upstream.deadlines import Limits

MEMO_ENTRIES = 1024


@dataclass(slots=True, kw_only=True)
class Placement:
    """What was asked, what the index said, who was chosen and within which limits, from when."""

    request: ChatRequest
    holdings: Mapping[str, Holding] | None
    choice: Choice
    limits: Limits
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What a snapshot says about one model's requests of one kind. No members: not for here."""

    members: tuple[Backend, ...]
    limits: Limits


_ELSEWHERE = ModelPlan(members=(), limits=Limits(total=0.0))


class Places:
    """Places the requests of one snapshot."""

    __slots__ = ("_plans", "_snap")

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._plans: dict[tuple[str, Endpoint, bool], ModelPlan] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def place(
        self, endpoint: Endpoint, raw: bytes, now: float, inbound: Inbound | None = None
    ) -> Placement | None:
        """Read `raw` and choose a backend. `now` is monotonic seconds.

        None: it is to be refused, or something about it is the general way's. Nothing has been
        counted then; otherwise the request and the choice have been.
        """
        snap = self._snap
        try:
            request = parse_generate(endpoint, raw, snap.request_rules)
        except RouterError:
            return None
        key = (request.model, endpoint, request.stream)
        plan = self._plans.get(key) or self._plan(key, request)
        members = plan.members
        if not members or (
            endpoint is Endpoint.RESPONSES and request.body.get("previous_response_id") is not None
        ):
            return None
        rules = snap.dispatcher
        piecer, pieces = rules.piecer, None
        if piecer is not None:
            if piecer.is_long(request):
                return None
            pieces = piecer.of(request, b"" if inbound is None else piecer.tenant(inbound))
        holdings = None
        if snap.lookup is not None and request.prefix is not None:
            holdings = snap.lookup.holdings(request.prefix)
        ask = Ask(
            model=request.model,
            prefix=request.hash_key,
            candidates=rules.state.fleet.conditions.usable(members),
            ring_members=members,
            loads=rules.state.fleet.loads,
            pieces=pieces,
            size=len(raw),
        )
        choice = rules.selector.select(ask, holdings=holdings, now=now)
        if choice is None:
            return None
        rules.state.budget.request(now)
        rules.state.routing_metrics.count(choice)
        return Placement(
            request=request, holdings=holdings, choice=choice, limits=plan.limits, at=now
        )

    def _plan(self, key: tuple[str, Endpoint, bool], request: ChatRequest) -> ModelPlan:
        if len(self._plans) >= MEMO_ENTRIES:
            self._plans.clear()
        plan = self._plans[key] = self._make(request)
        return plan

    def _make(self, request: ChatRequest) -> ModelPlan:
        """Under another name the body changes, under a keepalive somebody must watch the clock."""
        rules, model = self._snap.dispatcher, request.model
        members = rules.pool.for_model(model)
        unnamed = not model and (request.endpoint in COMPLETING or rules.pool.model_choice)
        renamed = any(member.real_name(model) != model for member in members)
        if unnamed or renamed or (request.stream and rules.sse_keepalive):
            return _ELSEWHERE
        return ModelPlan(members=members, limits=rules.limits_for(request, model))
