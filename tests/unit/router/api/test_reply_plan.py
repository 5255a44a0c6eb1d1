"""What becomes of an answer, by its head."""

import pytest

from continuum_router.api.reply_plan import MEMO_ENTRIES, ReplyPlans
from continuum_router.backends.kinds import BackendType
from continuum_router.backends.pool import Backend
from continuum_router.routing.selector import Choice
from continuum_router.routing.strategies import Rule
from continuum_router.upstream.response_head import HeadReader
from continuum_shared.config.kinds import BackendUrl

JSON = "Content-Type: application/json"
EVENTS = "Content-Type: text/event-stream"
CHUNKED = "Transfer-Encoding: chunked"
LENGTH = "Content-Length: 2"

PLANS = {
    "plain": ("200 OK", [JSON, LENGTH], (True, False)),
    "stream": ("200 OK", [EVENTS, CHUNKED], (False, True)),
    "stream with a charset": ("200 OK", [EVENTS + "; charset=utf-8", CHUNKED], (False, True)),
    "chunked json": ("200 OK", [JSON, CHUNKED], (False, False)),
    "a stream of a length": ("200 OK", [EVENTS, LENGTH], (False, False)),
    "created": ("201 Created", [JSON, LENGTH], (False, False)),
    "an error": ("500 X", [JSON, LENGTH], (False, False)),
    "no type": ("200 OK", [LENGTH], (False, False)),
    "two types": ("200 OK", [JSON, EVENTS, LENGTH], (False, False)),
    "coded": ("200 OK", [JSON, "Content-Encoding: gzip", LENGTH], (False, False)),
    "not ascii": ("200 OK", [JSON, "X-A: \u00e9", LENGTH], (False, False)),
}


def facts(status: str, lines: list[str], reader: HeadReader | None = None):
    wire = "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")
    read = (reader or HeadReader()).read(wire)
    assert read is not None
    return read[0]


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str) -> None:
    status, lines, wanted = PLANS[name]
    plan = ReplyPlans(frozenset({503})).plan(facts(status, lines))
    assert (plan.plain, plan.events) == wanted


def test_a_retryable_200_is_left_to_the_loop() -> None:
    plan = ReplyPlans({200}).plan(facts("200 OK", [JSON, LENGTH]))
    assert (plan.plain, plan.events) == (False, False)


def test_the_clients_head_has_no_hop_by_hop_and_no_private_lines() -> None:
    lines = [JSON, LENGTH, "Server: x", "Set-Cookie: a", "X-Own: 1", "x-continuum-backend: b"]
    plan = ReplyPlans(()).plan(facts("200 Fine", lines))
    assert plan.head == b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Own: 1\r\n"


def test_the_same_head_has_the_same_plan_and_the_memo_is_bounded() -> None:
    plans, reader = ReplyPlans(()), HeadReader()
    first = plans.plan(facts("200 OK", [JSON, LENGTH], reader))
    assert plans.plan(facts("200 OK", [JSON, "Content-Length: 9"], reader)) is first
    for number in range(MEMO_ENTRIES * 2):
        plans.plan(facts("200 OK", [JSON, f"X-N: {number}"]))
    assert len(plans) <= MEMO_ENTRIES


def choice(score: float | None) -> Choice:
    backend = Backend(
        name="b1", type=BackendType.GENERIC, url=BackendUrl.parse("http://127.0.0.1:1")
    )
    return Choice(backend=backend, rule=Rule.PREFIX_HASH, score=score)


def test_lines_about_the_choice() -> None:
    plans = ReplyPlans(())
    lines = b"x-continuum-backend: b1\r\nx-continuum-route: prefix_hash\r\n"
    assert plans.route_lines(choice(None)) == lines
    assert plans.route_lines(choice(None)) is plans.route_lines(choice(None))
