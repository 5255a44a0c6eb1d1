import logging
from collections import Counter
from dataclasses import replace

import pytest

from continuum_router.backends.holding import Tier
from continuum_router.routing.cost_score import GAIN, KV, SLOW, explained
from continuum_router.routing.strategies import Rule
from continuum_router.routing.work_ledger import FIRST_RATE, work_of
from support.backends import backend, backends
from support.cost_bench import CostBench, prompt

ABC = backends("a", "b", "c")
LONG = prompt("x" * 42)  # 40 pieces of 512 tokens
TOKENS = 40 * 512


def test_the_formula_term_by_term():
    bench = CostBench(ABC)
    bench.rates = {"a": 0.5, "b": 0.01}
    bench.index.sent("a", prompt("x" * 22), 1.0)
    bench.ledger.lane("a").sent(1, 9_000.0, 50_000.0, bench.now)
    bench.now += 0.1
    terms = bench.terms(LONG)
    held = 20 * 512
    a, busy = terms["a"], bench.ledger.lane("a").busy(bench.now)
    assert (a.depth, a.held, a.tokens) == (22, held, TOKENS)
    assert a.wait == pytest.approx(9_000 - 0.1 * FIRST_RATE)
    assert a.own == work_of(TOKENS - held, held)
    assert a.factor == pytest.approx(1 + GAIN * busy**2 / (1.02 - busy))
    assert a.kv_factor == pytest.approx(1 + KV * 50_000 / 2_000_000)
    assert (a.speed, a.success, a.weight) == (1.0, 0.5, 1.0)
    assert a.cost == pytest.approx((a.wait + a.factor * a.own) * a.kv_factor / 0.5)
    # the floor of the success rate
    assert terms["b"].cost == pytest.approx(work_of(TOKENS, 0) / 0.05)
    assert terms["c"].cost == pytest.approx(work_of(TOKENS, 0))


def test_a_crowded_cache_makes_copying_dearer():
    # overlap_weight / load_weight = 2, and a guess counts half
    bench = CostBench(ABC)
    bench.index.set_room("a", 512 * 40)
    for turn in range(200):
        bench.index.sent("a", prompt(f"{turn:03}" + "y" * 39), float(turn))
    assert bench.index.crowding("a") == pytest.approx(1.0, abs=0.03)
    assert bench.terms(LONG)["a"].factor == pytest.approx(2.0, abs=0.03)
    free = CostBench(ABC, overlap_weight=0.9, load_weight=0.0, health_weight=0.1)
    assert free.terms(LONG)["a"].factor == 1.0


def test_the_holder_serves_and_the_choice_says_what_it_holds():
    bench = CostBench(ABC)
    first = bench.serve(LONG)
    choice = bench.choose(prompt("x" * 42 + "q" * 10))
    assert (choice.backend.name, choice.rule, choice.tier) == (first, Rule.KV_AWARE, Tier.GPU_HOT)
    assert (choice.held, choice.score) == (TOKENS, pytest.approx(0.8))
    own = work_of(10 * 512, TOKENS)
    assert choice.route_header() == (
        f"kv_aware; tier=gpu_hot; score=0.800; held={TOKENS}; wait=0; own={own:.4g}; x=1; "
        f"cost={own:.4g}"
    )


def test_a_cold_prompt_goes_to_the_least_work():
    bench = CostBench(ABC)
    choice = bench.choose(LONG)
    assert (choice.rule, choice.scored, choice.score) == (Rule.LEAST_WORK, True, None)
    own = f"{work_of(TOKENS, 0):.4g}"
    assert choice.route_header() == f"least_work; wait=0; own={own}; x=1; cost={own}"


def test_a_choice_is_explained_at_debug_level_with_the_terms_of_all(caplog):
    bench = CostBench(ABC)
    with caplog.at_level(logging.DEBUG, logger="continuum_router.routing"):
        bench.choose(LONG)
    (record,) = caplog.records
    assert record.getMessage() == "Cost mode chose"
    text = explained(list(bench.terms(LONG).values()))
    own = f"{work_of(TOKENS, 0):.0f}"
    assert text.split("; ")[0] == (
        f"a: held 0 of {TOKENS}, wait 0, own {own}, x 1.000, kv 1.000, speed 1.000, "
        f"success 1.000, weight 1, cost {own}"
    )
    assert len(text.split("; ")) == 3
    assert len(explained(list(bench.terms(LONG).values()) * 10).split("; ")) == 16


def test_a_short_prompt_without_a_whole_piece_is_placed_too():
    bench = CostBench(ABC)
    short = replace(prompt(""), size=300)
    assert [bench.serve(short, took=0.01) for _ in range(6)] == list("abcabc")


def test_without_pieces_the_strategy_chooses():
    assert CostBench(ABC).choose(None).rule is Rule.ROUND_ROBIN


def test_a_burst_of_identical_cold_requests_spreads():
    # nothing is answered yet, so each copy weighs against the line it would join
    bench = CostBench(backends("a", "b", "c", "d"))
    placed = Counter(bench.send(LONG)[0] for _ in range(64))
    assert len(placed) == 4
    assert max(placed.values()) <= 2 * min(placed.values())


def test_a_burst_of_different_cold_requests_spreads_evenly():
    # user reports R3, R4
    bench = CostBench(backends("a", "b", "c", "d"))
    placed = Counter(bench.send(prompt(f"{turn:02}" + "z" * 40))[0] for turn in range(64))
    assert set(placed.values()) == {16}


def test_a_hot_prefix_is_copied_only_when_waiting_costs_more():
    bench = CostBench(ABC)
    home = bench.serve(LONG)
    hot = [prompt("x" * 42 + f"{turn:02}") for turn in range(90)]
    # one at a time: nobody waits, nothing is copied
    assert {bench.serve(one, took=0.04) for one in hot[:30]} == {home}
    # a line as long as half a copy: still waiting is cheaper
    bench.ledger.lane(home).sent(10**6, work_of(TOKENS, 0) / 2, 0.0, bench.now)
    assert bench.choose(hot[30]).backend.name == home
    # a line as long as two copies: another one takes it, and is a holder from then on
    bench.ledger.lane(home).sent(10**6 + 1, 2 * work_of(TOKENS, 0), 0.0, bench.now)
    second, lease = bench.send(hot[31])
    assert second != home
    lease.ticket.first_token()
    assert bench.choose(hot[32]).backend.name == second
    assert bench.choose(hot[32]).rule is Rule.KV_AWARE


def test_sessions_with_one_system_prompt_stay_apart_and_at_home():
    # user report R5: 40 sessions, 4 backends, a shared system prompt
    bench = CostBench(backends("a", "b", "c", "d"))
    home, moved, turns = {}, 0, 0
    # they begin within the same minute and go on one by one
    opened = []
    for session in range(40):
        text = "s" * 10 + chr(0x100 + session) * 20
        home[session], lease = bench.send(prompt(text))
        opened.append(lease)
    for lease in opened:
        bench.now += 0.05
        lease.ticket.first_token()
        lease.end()
    for turn in range(5):
        for session in range(40):
            text = "s" * 10 + chr(0x100 + session) * (24 + 4 * turn)
            moved += bench.serve(prompt(text), took=0.05) != home[session]
            turns += 1
    assert moved <= turns / 10
    spread = Counter(home.values())
    assert max(spread.values()) <= 1.25 * 10


def test_a_slow_backend_gets_less():
    # user report R1: ten times the latency, every prompt new
    bench, free, placed, running = CostBench(ABC), dict.fromkeys("abc", 0.0), Counter(), []
    end = 100.0
    for turn in range(300):
        end += 0.2
        for done, lease in [entry for entry in running if entry[0] <= end]:
            bench.now = done
            lease.ticket.first_token()
            lease.end()
        running = [entry for entry in running if entry[0] > end]
        bench.now = end
        name, lease = bench.send(prompt(f"{turn:03}" + "z" * 39))
        free[name] = max(free[name], end) + (4.0 if name == "a" else 0.4)
        running.append((free[name], lease))
        running.sort(key=lambda entry: entry[0])
        placed[name] += 1
    assert placed["a"] < 300 / 3 / 3


def test_failures_cost_and_can_be_made_not_to():
    bench = CostBench(ABC)
    home = bench.serve(LONG)
    bench.rates = {home: 0.05}
    bench.now += SLOW
    assert bench.choose(LONG).backend.name == home
    half = prompt("x" * 42 + "y" * 40)
    assert bench.choose(half).backend.name != home
    careless = CostBench(ABC, overlap_weight=0.7, load_weight=0.3, health_weight=0.0)
    home = careless.serve(LONG)
    careless.rates = {home: 0.05}
    careless.now += SLOW
    assert careless.choose(half).backend.name == home


def test_who_may_not_serve_is_not_asked():
    bench = CostBench(ABC)
    home = bench.serve(LONG)
    others = tuple(member for member in ABC if member.name != home)
    assert bench.choose(LONG, candidates=others).backend.name != home
    bench.rates = {}
    assert bench.choose(LONG).backend.name == home


def test_storage_counts_less():
    bench = CostBench(ABC, storage_tier_weight=0.5)
    home = bench.serve(LONG)
    bench.index.resident(home, b"G", Tier.STORAGE_WARM)
    choice = bench.choose(LONG)
    assert (choice.held, choice.tier) == (TOKENS // 2, Tier.STORAGE_WARM)
    other = next(member.name for member in ABC if member.name != home)
    bench.index.sent(other, LONG, bench.now)
    assert bench.choose(LONG).backend.name == other


def test_a_share_that_is_too_small_counts_as_nothing():
    bench = CostBench(ABC)
    bench.scorer._min_overlap = 0.3
    bench.index.sent("c", prompt("x" * 12), 1.0)
    assert bench.terms(LONG)["c"].held == 0.0
    bench.index.sent("c", prompt("x" * 14), 1.0)
    assert bench.terms(LONG)["c"].held == 12 * 512


def test_media_count_for_what_they_are():
    bench = CostBench(ABC, media_tokens=1000)
    picture = prompt("x" * 12, media=(600, 30_000))
    assert bench.terms(picture)["a"].tokens == 10 * 512 + 2000
    bench.index.sent("a", prompt("x" * 5), 1.0)
    assert bench.terms(picture)["a"].held == 3 * 512 + 1000


def test_weight_makes_cheaper_and_nought_is_the_last_resort():
    members = (backend("a", weight=0), backend("b", weight=1), backend("c", weight=2))
    bench = CostBench(members)
    placed = Counter(bench.send(prompt(f"{turn:02}" + "z" * 40))[0] for turn in range(60))
    assert placed["a"] == 0
    assert 1.7 <= placed["c"] / placed["b"] <= 2.3
    assert bench.choose(LONG, candidates=members[:1]).backend.name == "a"


def test_usage_teaches_tokens_and_room():
    bench = CostBench(ABC)
    name, lease = bench.send(LONG)
    size = LONG.size
    lease.ticket.usage(size // 2, 0)
    assert bench.terms(LONG)["a"].tokens == pytest.approx(size / 2)
    lease.ticket.first_token()
    lease.end()
    room = bench.index.room(name)
    _, again = bench.send(LONG)
    again.ticket.usage(size // 2, size // 2)
    assert bench.index.room(name) == room
    again.ticket.usage(size // 2, 0)
    assert bench.index.room(name) == pytest.approx(room * 0.97)
    again.ticket.usage(None, 0)
    again.ticket.usage(size // 2, None)
    assert bench.index.room(name) == pytest.approx(room * 0.97)


def test_an_attempt_that_failed_leaves_nothing_behind():
    bench = CostBench(ABC)
    name, lease = bench.send(LONG)
    lease.end()
    assert bench.index.depths(LONG, (name,)) == [0]
    assert bench.ledger.lane(name).context == 0.0


def test_explaining_changes_nothing():
    bench = CostBench(ABC)
    bench.serve(LONG)
    before = bench.terms(LONG)
    assert bench.terms(LONG) == before
    assert list(before) == ["a", "b", "c"]


def test_models_do_not_disturb_each_other():
    bench = CostBench(ABC)
    home = bench.serve(prompt("x" * 42, group=b"G"), model="m")
    for turn in range(20):
        bench.serve(prompt(chr(0x400 + turn) * 42, group=b"H"), model="other")
    assert bench.choose(LONG, model="m").backend.name == home
