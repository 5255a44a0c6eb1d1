"""What the fast path does with an answer, worked out once for each head that backends send."""

from collections.abc import Collection
from dataclasses import dataclass

from continuum_router.api.answer_head import header_lines, status_line
from continuum_router.providers.prepare import headers_for_client
from continuum_router.routing.selector import Choice
from continuum_router.upstream.relay import EVENT_STREAM
from continuum_router.upstream.response_head import HeadFacts

MEMO_ENTRIES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """`plain`: an ordinary whole answer, if its length is known. `events`: an ordinary stream.

    Neither: the general loop decides. `head` is the start of the client's head.
    """

    plain: bool
    events: bool
    head: bytes


_ODD = ReplyPlan(plain=False, events=False, head=b"")


class ReplyPlans:
    """The plans under one configuration. `retryable` are the statuses that may be tried again."""

    __slots__ = ("_retryable", "_routes", "known")

    # `known` may be looked into; what is not there `plan` makes.

    def __init__(self, retryable: Collection[int]) -> None:
        self._retryable = retryable
        self.known: dict[HeadFacts, ReplyPlan] = {}
        self._routes: dict[tuple[str, str], bytes] = {}

    def __len__(self) -> int:
        return len(self.known)

    def plan(self, facts: HeadFacts) -> ReplyPlan:
        """The plan for an answer with this head."""
        plan = self.known.get(facts)
        if plan is None:
            if len(self.known) >= MEMO_ENTRIES:
                self.known.clear()
            plan = self.known[facts] = self._make(facts)
        return plan

    def route_lines(self, choice: Choice) -> bytes:
        """The header lines that tell the client who serves it, and why (decisions J7)."""
        if choice.score is not None or choice.terms:
            return _route_lines(choice)
        key = (choice.backend.name, choice.rule)
        lines = self._routes.get(key)
        if lines is None:
            lines = self._routes[key] = _route_lines(choice)
        return lines

    def _make(self, facts: HeadFacts) -> ReplyPlan:
        named = [name.lower() for name, _ in facts.headers]
        types = [value for name, value in facts.headers if name.lower() == "content-type"]
        if (
            facts.status != 200
            or facts.status in self._retryable
            or len(types) != 1
            or "content-encoding" in named
            or not all(value.isascii() for _, value in facts.headers)
        ):
            return _ODD
        events = types[0].partition(";")[0].strip().lower() == EVENT_STREAM
        headers = headers_for_client(facts.headers, decoded=False)
        return ReplyPlan(
            plain=not events and not facts.chunked,
            events=events and facts.chunked,
            head=status_line(facts.status) + header_lines(headers),
        )


def _route_lines(choice: Choice) -> bytes:
    return header_lines(
        (
            ("x-continuum-backend", choice.backend.name),
            ("x-continuum-route", choice.route_header()),
        )
    )
