import math

import pytest

from continuum_router.routing.work_ledger import (
    FIRST_RATE,
    Lane,
    WorkLedger,
    WorkTicket,
    work_of,
)


def test_work_counts_attention():
    assert work_of(1000, 0) == pytest.approx(1000 * (1 + 4.5e-5 * 500))
    assert work_of(1000, 9000) == pytest.approx(1000 * (1 + 4.5e-5 * 9500))


def test_a_line_and_what_its_head_has_been_reduced_by():
    lane = Lane()
    assert lane.wait(5.0) == 0.0
    lane.sent(1, 60_000.0, 100.0, 10.0)
    lane.sent(2, 5_000.0, 50.0, 10.5)
    assert lane.wait(11.0) == 65_000 - FIRST_RATE
    # the head alone is being worked on
    assert lane.wait(100.0) == 5_000.0
    assert (len(lane), lane.context, lane.last) == (2, 150.0, 10.5)


def test_the_speed_is_learned_from_who_heads_the_line():
    lane = Lane()
    lane.sent(1, 10_000.0, 1.0, 0.0)
    lane.sent(2, 10_000.0, 1.0, 0.0)
    lane.answered(1, 1.0)
    assert lane.rate == pytest.approx(FIRST_RATE + 0.5 * (10_000 - FIRST_RATE))
    lane.answered(2, 3.0)
    assert lane.rate == pytest.approx(20_000 + (5_000 - 20_000) / 3)
    assert lane.wait(3.0) == 0.0
    lane.answered(2, 9.0)
    assert len(lane) == 0


NOT_LEARNED = {
    "not the head": ((1, 2), 2, 1.0),
    "too small to tell": ((1,), 1, 0.02),
}


@pytest.mark.parametrize("case", NOT_LEARNED)
def test_what_teaches_no_speed(case):
    numbers, answered, at = NOT_LEARNED[case]
    lane = Lane()
    for number in numbers:
        lane.sent(number, 10_000.0, 1.0, 0.0)
    lane.answered(answered, at)
    assert lane.rate == FIRST_RATE


def test_small_work_teaches_only_when_it_took_long():
    quick, slow = Lane(), Lane()
    for lane, at in ((quick, 0.2), (slow, 2.0)):
        lane.sent(1, 100.0, 1.0, 0.0)
        lane.answered(1, at)
    assert quick.rate == FIRST_RATE
    assert slow.rate == pytest.approx((FIRST_RATE + 50) / 2)


def test_the_share_of_time_with_work():
    lane = Lane()
    lane.sent(1, 10.0, 1.0, 0.0)
    assert lane.busy(30.0) == pytest.approx(1 - math.exp(-1))
    lane.answered(1, 30.0)
    assert lane.busy(60.0) == pytest.approx((1 - math.exp(-1)) * math.exp(-1))
    assert lane.busy(0.0) == pytest.approx(1 - math.exp(-1))


class TestTicket:
    def make(self):
        now = [0.0]
        ledger = WorkLedger(lambda: now[0])
        lane = ledger.lane("a")
        assert ledger.lane("a") is lane
        return now, lane, lambda: WorkTicket(ledger, lane, work=3000.0, tokens=9.0)

    def test_an_attempt_from_begin_to_end(self):
        now, lane, ticket = self.make()
        one = ticket()
        assert lane.wait(0.0) == 0.0
        one.begun()
        assert (lane.wait(0.0), lane.context) == (3000.0, 9.0)
        now[0] = 1.0
        one.first_token()
        one.usage(5, 5)
        assert (lane.wait(1.0), lane.context) == (0.0, 9.0)
        one.ended()
        one.ended()
        assert lane.context == 0.0

    def test_one_that_came_to_nothing_teaches_nothing(self):
        now, lane, ticket = self.make()
        first, second = ticket(), ticket()
        first.begun()
        second.begun()
        now[0] = 5.0
        first.ended()
        assert (lane.rate, lane.wait(5.0), len(lane)) == (FIRST_RATE, 3000.0, 1)
        second.ended()
        assert (lane.wait(5.0), lane.context) == (0.0, 0.0)

    def test_one_that_never_began_is_not_in_the_books(self):
        _, lane, ticket = self.make()
        one = ticket()
        one.first_token()
        one.ended()
        assert (lane.context, len(lane)) == (0.0, 0)

    def test_a_thousand_in_any_order_leave_nothing(self):
        now, lane, ticket = self.make()
        tickets = [ticket() for _ in range(1000)]
        for one in tickets:
            one.begun()
        for place, one in enumerate(reversed(tickets)):
            now[0] += 0.001
            if place % 3:
                one.first_token()
            one.ended()
        assert (lane.wait(now[0]), lane.context, len(lane)) == (0.0, 0.0, 0)


def test_a_forgotten_lane_starts_anew():
    ledger = WorkLedger(lambda: 0.0)
    old = ledger.lane("a")
    ledger.forget("a")
    ledger.forget("a")
    assert ledger.lane("a") is not old
    assert ledger.next_number() != ledger.next_number()
