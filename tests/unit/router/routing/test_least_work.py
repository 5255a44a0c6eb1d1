from collections import Counter

from continuum_router.routing.least_work import LeastWork, WorkBook
from continuum_router.routing.strategies import Rule
from continuum_router.routing.work_ledger import WorkLedger
from support.backends import ask, backend, backends

ABC = backends("a", "b", "c")


class Bench:
    def __init__(self):
        self.now = 0.0
        self.ledger = WorkLedger(lambda: self.now)
        self.strategy, self.book = LeastWork(self.ledger), WorkBook(self.ledger)
        self.loads = Counter()

    def place(self, members=ABC, size=40_000, held=0):
        """Choose, send, and keep the ticket."""
        request = ask(members, loads=self.loads, size=size)
        pick = self.strategy.pick(request)
        ticket = self.book.ticket(request, pick.backend, held)
        ticket.begun()
        self.now += 0.001
        self.loads[pick.backend.name] += 1
        return pick.backend.name, ticket


def test_a_burst_of_cold_requests_spreads():
    bench = Bench()
    placed = Counter(bench.place()[0] for _ in range(64))
    assert max(placed.values()) - min(placed.values()) <= 1


def test_the_long_line_is_avoided_however_few_stand_in_it():
    bench = Bench()
    bench.place(members=ABC[:1], size=4_000_000)
    assert {bench.place(size=4_000)[0] for _ in range(12)} == {"b", "c"}


def test_what_is_held_is_no_work():
    bench = Bench()
    bench.place(members=ABC[:1], held=9_990)
    bench.place(members=ABC[1:2])
    assert bench.ledger.lane("a").wait(1e-9) < bench.ledger.lane("b").wait(1e-9) / 100
    # more than the whole is as much as the whole
    bench.place(members=ABC[2:], held=10**9)
    assert bench.ledger.lane("c").wait(0) > 0


def test_a_slow_backend_gets_less():
    # user report R1: one backend ten times as slow, every prompt new
    bench = Bench()
    placed, tickets, free = Counter(), [], dict.fromkeys("abc", 0.0)
    for _ in range(300):
        bench.now += 0.2
        for done, ticket, name in [entry for entry in tickets if entry[0] <= bench.now]:
            bench.now, now = done, bench.now
            ticket.first_token()
            ticket.ended()
            bench.now = now
            bench.loads[name] -= 1
        tickets = [entry for entry in tickets if entry[0] > bench.now]
        name, ticket = bench.place()
        took = 4.0 if name == "a" else 0.4
        free[name] = max(free[name], bench.now) + took
        tickets.append((free[name], ticket, name))
        tickets.sort(key=lambda entry: entry[0])
        placed[name] += 1
    assert placed["a"] < 300 / 3 / 3


def test_weight_is_speed():
    bench = Bench()
    members = (backend("a", weight=3), backend("b"), backend("c", weight=0))
    placed = Counter(bench.place(members)[0] for _ in range(80))
    assert placed["c"] == 0
    assert 55 <= placed["a"] <= 65


def test_says_its_name_and_when_there_is_nobody():
    strategy = Bench().strategy
    assert strategy.pick(ask(ABC)).rule is Rule.LEAST_WORK
    assert strategy.pick(ask(())) is None
