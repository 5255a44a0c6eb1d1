"""S2 "timeouts" and "retry", sentence by sentence, on a clock that jumps.

Each test quotes (in our words) the sentence it holds. Nothing here opens a socket or waits.
"""

import asyncio
import collections
import random
from dataclasses import replace

import pytest

from continuum_router.assemble import build_snapshot, build_state
from continuum_router.backends.exchange import UpstreamRequest
from continuum_router.config.retry import RetryConfig
from continuum_router.config.timeouts import TimeoutsConfig
from continuum_router.errors import AttemptFailure, Cause, Stage, UpstreamFailed, UpstreamTimeout
from continuum_router.providers.prepare import sort_headers
from continuum_router.request import ChatRequest, Endpoint, RequestRules, parse_generate
from continuum_router.routing.selector import Selector
from continuum_router.routing.strategies import PrefixAwareHash
from continuum_router.runtime import ReloadRefused, Runtime
from continuum_router.upstream.call_limits import base_limits, model_limits
from continuum_router.upstream.deadlines import Limits
from continuum_router.upstream.outcome import Call, Ended
from continuum_router.upstream.pool import UpstreamPool
from continuum_router.upstream.retry import RetryPolicy
from continuum_router.upstream.retry_budget import BudgetRules
from continuum_shared.config.kinds import BackendUrl
from support.config_files import ROUTER_BASE, good_router, router_lines
from support.dispatch import (
    SSE_HEADERS,
    Answer,
    Bench,
    FakeReply,
    Step,
    backend,
    bench,
    nothing_left,
)
from support.faults import deaf_port
from support.virtual_time import now, on_virtual_time

REFUSED = AttemptFailure(Stage.CONNECTING, Cause.REFUSED)
RESET = AttemptFailure(Stage.AWAITING_HEAD, Cause.RESET)
CUT = AttemptFailure(Stage.STREAMING, Cause.CUT)
PLENTY = BudgetRules(ratio=1.0, min_retries=1000)
EVENT = b'data: {"a":1}\n\n'
PING = b": ping\n\n"
DEFAULTS = base_limits(TimeoutsConfig())


def _with(used: Bench, config: str = "", *, jitter: bool = False, **policy: object) -> Bench:
    """The limits of a file (defaults without one) and the default policy, without jitter."""
    section = good_router(config).timeouts
    limits = base_limits(section)
    used.change(
        standard=limits.standard,
        streaming=limits.streaming,
        image_generation=limits.image_generation,
        model_limits=model_limits(section),
        retry=RetryPolicy(jitter=jitter, **policy),  # type: ignore[arg-type]
    )
    return used


def _stream(*steps: Step) -> FakeReply:
    return FakeReply(200, *steps, headers=SSE_HEADERS)


async def _times_out(used: Bench, *, stream: bool, cause: Cause, model: str = "m") -> float:
    with nothing_left(used), pytest.raises(UpstreamTimeout):
        await used.run(stream=stream, model=model)
    assert (used.outcome.ended, used.outcome.cause) == (Ended.DEADLINE, cause)
    return now()


# -- timeouts -------------------------------------------------------------------------------


def test_the_defaults_of_the_sample() -> None:
    """connection 10 s; standard 30/180 s; streaming 120/30/600 s; the caps are E18's."""
    timeouts = TimeoutsConfig()
    request = timeouts.request
    assert timeouts.connection == 10.0
    assert (request.standard.first_byte, request.standard.total) == (30.0, 180.0)
    streaming = request.streaming
    assert (streaming.first_byte, streaming.chunk_interval, streaming.total) == (120, 30, 600)
    assert request.image_generation.total == 180.0
    limits = timeouts.limits
    assert (limits.max_standard_timeout, limits.max_streaming_timeout) == (540, 1200)
    assert (limits.max_image_timeout, limits.max_first_byte_timeout) == (540, 600)
    assert limits.max_chunk_interval == 300


@on_virtual_time
async def test_a_connection_has_10_seconds_to_come_about() -> None:
    pool = UpstreamPool(clock=asyncio.get_running_loop().time)
    head = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    with deaf_port() as port:
        url = BackendUrl.parse(f"http://127.0.0.1:{port}")
        with pytest.raises(AttemptFailure) as caught:
            await pool.send(
                backend("b1", url=url),
                UpstreamRequest(method="GET", head=head, body=b""),
                connect_timeout=good_router("").timeouts.connection,
            )
    assert (caught.value.stage, caught.value.cause) == (Stage.CONNECTING, Cause.CONNECT_TIMEOUT)
    assert now() == 10.0
    await pool.close()


@on_virtual_time
async def test_a_plain_request_has_180_seconds_in_all() -> None:
    used = _with(bench(asyncio.Event()))
    assert await _times_out(used, stream=False, cause=Cause.TOTAL_TIMEOUT) == 180.0
    assert used.transport.names == ["b1"]


@on_virtual_time
async def test_a_plain_answer_may_take_longer_than_the_deprecated_30_seconds() -> None:
    """standard.first_byte has no effect: the only budget of this path is total."""
    used = _with(bench(FakeReply(200, 179.0, b"{}")))
    await used.run()
    assert (used.sink.status, now()) == (200, 179.0)


@on_virtual_time
async def test_raising_standard_first_byte_changes_nothing() -> None:
    used = _with(
        bench(asyncio.Event()), "timeouts: {request: {standard: {first_byte: 100s, total: 150s}}}"
    )
    assert await _times_out(used, stream=False, cause=Cause.TOTAL_TIMEOUT) == 150.0


async def _run(used: Bench, request: ChatRequest) -> None:
    call = Call(
        request=request,
        inbound=sort_headers([]),
        holdings=None,
        sink=used.sink,
        request_id="r1",
        outcome=used.outcome,
    )
    await used.dispatcher.run(call)


def _image() -> ChatRequest:
    request = parse_generate(Endpoint.IMAGES, b'{"model":"m","prompt":"x"}', RequestRules())
    return replace(request, path="/v1/images/generations")


@on_virtual_time
async def test_an_image_may_take_longer_than_its_deprecated_60_seconds() -> None:
    """image_generation.first_byte has no effect either."""
    used = _with(bench(FakeReply(200, 179.0, b"{}")))
    await _run(used, _image())
    assert (used.sink.status, now()) == (200, 179.0)


@pytest.mark.parametrize(
    ("config", "ends"),
    [
        ("", 180.0),
        ("timeouts: {request: {image_generation: {total: 400s, first_byte: 70s}}}", 400.0),
        ("timeouts: {request: {standard: {total: 400s}}}", 180.0),
    ],
)
@on_virtual_time
async def test_an_image_has_a_total_of_its_own(config: str, ends: float) -> None:
    used = _with(bench(asyncio.Event()), config)
    with nothing_left(used), pytest.raises(UpstreamTimeout):
        await _run(used, _image())
    assert (now(), used.outcome.cause) == (ends, Cause.TOTAL_TIMEOUT)


@on_virtual_time
async def test_a_slow_reasoning_model_is_given_a_larger_first_byte() -> None:
    """What the source advises for streams: raise streaming.first_byte, here to 300 s."""
    used = _with(
        bench(_stream(290.0, EVENT), _stream(asyncio.Event())),
        "timeouts: {request: {streaming: {first_byte: 300s}}}",
    )
    await used.run(stream=True)
    assert (used.outcome.ended, now()) == (Ended.COMPLETE, 290.0)
    again = used.again()
    assert await _times_out(again, stream=True, cause=Cause.FIRST_BYTE_TIMEOUT) == 590.0


@on_virtual_time
async def test_and_a_larger_total_where_it_does_not_stream() -> None:
    """standard.total to 500 s, within its default cap of 540 s."""
    used = _with(
        bench(FakeReply(200, 499.0, b"{}")), "timeouts: {request: {standard: {total: 500s}}}"
    )
    await used.run()
    assert (used.sink.status, now()) == (200, 499.0)


@on_virtual_time
async def test_the_first_event_of_a_stream_has_120_seconds() -> None:
    """The deadline of the first event is real and apart from the total."""
    used = _with(bench(_stream(asyncio.Event())))
    assert await _times_out(used, stream=True, cause=Cause.FIRST_BYTE_TIMEOUT) == 120.0


@on_virtual_time
async def test_reasoning_of_more_than_60_seconds_is_within_it() -> None:
    used = _with(bench(_stream(119.0, EVENT)))
    await used.run(stream=True)
    assert (used.sink.body, used.outcome.ended) == (EVENT, Ended.COMPLETE)


@on_virtual_time
async def test_comments_before_the_first_event_give_no_new_time() -> None:
    """E10: comments and blank lines are no first event and reset nothing."""
    used = _with(bench(_stream(100.0, PING, 15.0, b"\n\n", 10.0, EVENT)))
    assert await _times_out(used, stream=True, cause=Cause.FIRST_BYTE_TIMEOUT) == 120.0


@on_virtual_time
async def test_from_the_second_chunk_on_30_seconds_between_two() -> None:
    """chunk_interval takes over once the first event has come, and starts anew with each."""
    used = _with(bench(_stream(110.0, EVENT, 29.0, EVENT, 29.0, EVENT, 31.0, EVENT)))
    with nothing_left(used):
        await used.run(stream=True)
    assert now() == 110.0 + 29.0 + 29.0 + 30.0
    assert used.outcome.cause is Cause.CHUNK_INTERVAL_TIMEOUT
    assert used.sink.pieces[:3] == [EVENT] * 3
    assert b'"status":504' in used.sink.pieces[3]
    assert used.sink.end == "closed"


@on_virtual_time
async def test_comments_count_for_the_interval_of_chunks() -> None:
    """E11: any byte counts."""
    steps: list[Step] = [EVENT]
    for _ in range(10):
        steps += [29.0, b": working\n"]
    used = _with(bench(_stream(*steps, EVENT)))
    await used.run(stream=True)
    assert (used.outcome.ended, now()) == (Ended.COMPLETE, 290.0)


@on_virtual_time
async def test_an_interval_of_0_is_none() -> None:
    config = "timeouts: {request: {streaming: {chunk_interval: 0}}}"
    used = _with(bench(_stream(EVENT, 590.0, EVENT)), config)
    await used.run(stream=True)
    assert (used.outcome.ended, now()) == (Ended.COMPLETE, 590.0)


@on_virtual_time
async def test_a_stream_has_600_seconds_in_all() -> None:
    steps: list[Step] = []
    for _ in range(40):
        steps += [20.0, EVENT]
    used = _with(bench(_stream(*steps)))
    with nothing_left(used):
        await used.run(stream=True)
    assert (now(), used.outcome.cause) == (600.0, Cause.TOTAL_TIMEOUT)


OVERRIDES = """
timeouts:
  request:
    model_overrides:
      m: {streaming: {total: 1200s}, standard: {total: 400s}, image_generation: {total: 300s}}
"""


@on_virtual_time
async def test_a_model_may_have_1200_seconds_instead_and_the_others_keep_600() -> None:
    steps: list[Step] = []
    for _ in range(50):
        steps += [25.0, EVENT]
    used = _with(bench(_stream(*steps)), OVERRIDES)
    await used.run(stream=True)
    assert (now(), used.outcome.cause) == (1200.0, Cause.TOTAL_TIMEOUT)


@on_virtual_time
async def test_a_model_without_an_override_keeps_600() -> None:
    steps: list[Step] = []
    for _ in range(50):
        steps += [25.0, EVENT]
    used = _with(
        bench(_stream(*steps), backends=[backend("b1", models=frozenset({"o"}))]), OVERRIDES
    )
    await used.run(stream=True, model="o")
    assert now() == 600.0


@on_virtual_time
async def test_an_override_leaves_the_keys_it_does_not_name() -> None:
    used = _with(bench(_stream(asyncio.Event())), OVERRIDES)
    assert await _times_out(used, stream=True, cause=Cause.FIRST_BYTE_TIMEOUT) == 120.0


@on_virtual_time
async def test_an_override_of_plain_requests() -> None:
    used = _with(bench(asyncio.Event()), OVERRIDES)
    assert await _times_out(used, stream=False, cause=Cause.TOTAL_TIMEOUT) == 400.0


@pytest.mark.parametrize(
    ("key", "cap", "limit"),
    [
        ("standard: {total: %s}", 540, "max_standard_timeout"),
        ("streaming: {total: %s}", 1200, "max_streaming_timeout"),
        ("image_generation: {total: %s}", 540, "max_image_timeout"),
        ("streaming: {first_byte: %s, total: 1200s}", 600, "max_first_byte_timeout"),
        ("streaming: {chunk_interval: %s}", 300, "max_chunk_interval"),
    ],
)
def test_caps_540_and_1200_and_twice_that_at_most(key: str, cap: int, limit: str) -> None:
    """Default caps; each limit may be raised to its absolute cap; beyond it the load fails."""

    def lines(seconds: int, most: int | None = None) -> list[str]:
        limits = "" if most is None else f", limits: {{{limit}: {most}s}}"
        request = key % f"{seconds}s"
        return router_lines(ROUTER_BASE + f"timeouts: {{request: {{{request}}}{limits}}}")

    assert lines(cap) == []
    assert len(lines(cap + 1)) == 1
    assert f"is above the cap of {cap}s" in lines(cap + 1)[0]
    assert lines(cap + 1, most=2 * cap) == []
    assert any(
        f"timeouts.limits.{limit}: must be at most {2 * cap}s" in line
        for line in lines(cap, most=2 * cap + 1)
    )


def test_900_seconds_are_fine_and_1081_fail_the_load_instead_of_being_cut() -> None:
    wide = "timeouts: {request: {standard: {total: 15m}}, limits: {max_standard_timeout: %s}}"
    assert good_router(wide % "900s").timeouts.request.standard.total == 900.0
    assert router_lines(ROUTER_BASE + wide % "1081s") == [
        "r.yaml:2: timeouts.limits.max_standard_timeout: must be at most 1080s; default 540s"
    ]


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("max_standard_timeout", 900),
        ("max_streaming_timeout", 1300),
        ("max_image_timeout", 900),
        ("max_first_byte_timeout", 700),
        ("max_chunk_interval", 400),
    ],
)
async def test_limits_are_frozen_at_the_start(limit: str, value: int) -> None:
    """Every way to another configuration (reload, Admin API, control plane) ends in one swap."""
    config = good_router("")
    state = build_state(config)
    runtime = Runtime(build_snapshot(config, state))
    before = runtime.current
    for changed in (value, 100):
        other = good_router(
            f"timeouts: {{request: {{standard: {{total: 100s}}, image_generation: {{total: 100s}}, "
            f"streaming: {{total: 100s, first_byte: 100s, chunk_interval: 100s}}}}, "
            f"limits: {{{limit}: {changed}s}}}}"
        )
        with pytest.raises(ReloadRefused) as caught:
            runtime.swap(build_snapshot(other, state, generation=2))
        assert caught.value.keys == (f"timeouts.limits.{limit}",)
        assert runtime.current is before


@pytest.mark.parametrize("kind", ["standard", "image_generation"])
def test_a_deprecated_key_warns_when_it_is_written_and_not_the_default(kind: str) -> None:
    """Still parsed, still held against total, warned about only with another value."""
    default = {"standard": "30s", "image_generation": "60s"}[kind]

    def lines(value: str) -> list[str]:
        return router_lines(ROUTER_BASE + f"timeouts: {{request: {{{kind}: {{{value}}}}}}}")

    assert lines("total: 170s") == []
    assert lines(f"first_byte: {default}") == []
    (warning,) = lines("first_byte: 31s")
    assert "warning" in warning
    assert "deprecated" in warning
    assert len(lines("first_byte: 181s")) == 2
    assert "first_byte must not be longer than total" in "".join(lines("first_byte: 181s"))


# -- retries --------------------------------------------------------------------------------


def test_the_defaults_of_the_retry_sample() -> None:
    """3 tries, 100 ms doubling to 30 s, jitter, 429/502/503/504, no preference; E10's budget."""
    retry = RetryConfig()
    assert (retry.max_attempts, retry.initial_delay, retry.max_delay) == (3, 0.1, 30.0)
    assert (retry.backoff_multiplier, retry.jitter) == (2.0, True)
    assert retry.retryable_status_codes == (429, 502, 503, 504)
    assert (retry.prefer_untried_backends, retry.on_timeout) == (False, False)
    assert (retry.budget.ratio, retry.budget.min_retries, retry.budget.window) == (0.2, 10, 10.0)


@on_virtual_time
async def test_3_attempts_are_3_tries_in_all() -> None:
    """E13."""
    used = _with(bench(RESET, RESET, RESET))
    with pytest.raises(UpstreamFailed):
        await used.run()
    assert (len(used.transport.sent), used.outcome.attempts) == (3, 3)


@on_virtual_time
async def test_delays_of_100_200_and_400_milliseconds() -> None:
    used = _with(bench(RESET, RESET, RESET, FakeReply(200, b"{}")), max_attempts=4)
    await used.run()
    assert now() == 0.7


@on_virtual_time
async def test_a_multiplier_of_3_gives_100_300_and_900() -> None:
    answers: list[Answer] = [RESET, RESET, RESET, FakeReply(200, b"{}")]
    used = _with(bench(*answers), max_attempts=4, backoff_multiplier=3.0)
    await used.run()
    assert now() == 1.3


@on_virtual_time
async def test_no_delay_is_longer_than_30_seconds() -> None:
    answers: list[Answer] = [RESET] * 11
    used = _with(bench(*answers), max_attempts=11)
    used.change(standard=Limits(total=500.0))
    with pytest.raises(UpstreamFailed):
        await used.run()
    # 0.1 * (1 + 2 + ... + 256) = 51.1: eight below 30 s and one of 25.6; then 30 s each.
    assert now() == round(51.1 + 30.0, 6)


@on_virtual_time
async def test_jitter_makes_each_delay_random_and_at_least_half() -> None:
    used = _with(bench(RESET, FakeReply(200, b"{}")), jitter=True)
    await used.run()
    assert 0.05 <= now() < 0.1
    delays = {
        again.delay
        for seed in range(50)
        if (
            again := RetryPolicy().decide(
                RESET,
                attempt=1,
                replay_allowed=True,
                fresh_used=True,
                time_left=9.0,
                rng=random.Random(seed),
            )
        )
    }
    assert len(delays) == 50


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@on_virtual_time
async def test_the_four_statuses_are_tried_again(status: int) -> None:
    used = _with(bench(FakeReply(status, b"x"), FakeReply(200, b"{}")))
    await used.run()
    assert (used.sink.status, len(used.transport.sent)) == (200, 2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 404, 408, 422, 500, 501])
@on_virtual_time
async def test_other_statuses_are_passed_on(status: int, stream: bool) -> None:
    """Also on a stream request: the client gets that status, not an event (user report S4)."""
    used = _with(bench(FakeReply(status, b'{"error":1}')))
    await used.run(stream=stream)
    assert (used.sink.status, used.sink.body) == (status, b'{"error":1}')
    assert len(used.transport.sent) == 1


@pytest.mark.parametrize(
    ("header", "waits"), [("7", 7.0), ("30", 30.0), ("Thu, 01 Jan 1970 00:00:12 GMT", 12.0)]
)
@on_virtual_time
async def test_retry_after_is_kept_up_to_30_seconds(header: str, waits: float) -> None:
    """E15: seconds or a date, up to max_delay."""
    busy = FakeReply(429, b"x", headers=(("Retry-After", header),))
    used = _with(bench(busy, FakeReply(200, b"{}")))
    await used.run()
    assert (used.sink.status, now()) == (200, waits)


@pytest.mark.parametrize("header", ["31", "Thu, 01 Jan 1970 00:00:31 GMT"])
@on_virtual_time
async def test_beyond_30_seconds_the_answer_is_passed_on_at_once(header: str) -> None:
    busy = FakeReply(429, b"x", headers=(("Retry-After", header),))
    used = _with(bench(busy))
    await used.run()
    assert (used.sink.status, used.sink.body, now()) == (429, b"x", 0.0)
    assert ("Retry-After", header) in used.sink.headers


@on_virtual_time
async def test_a_retry_may_meet_the_backend_that_has_just_failed() -> None:
    """Choosing leaves no earlier try out: with one backend all tries go there."""
    used = _with(bench(RESET, RESET, FakeReply(200, b"{}"), backends=[backend("b1")]))
    await used.run()
    assert used.transport.names == ["b1"] * 3


@on_virtual_time
async def test_untried_backends_first_then_all_of_them_again() -> None:
    """prefer_untried_backends is a preference: when all were tried, all are candidates again."""
    used = _with(
        bench(RESET, RESET, RESET, FakeReply(200, b"{}")),
        max_attempts=4,
        prefer_untried_backends=True,
    )
    await used.run()
    assert set(used.transport.names[:2]) == {"b1", "b2"}
    assert len(used.transport.names) == 4


@on_virtual_time
async def test_in_a_weighted_pool_the_heavy_backend_keeps_getting_the_retries() -> None:
    """Weights 9 and 1: no try is left out of the choice, so the heavy one gets most retries too."""
    members = [backend("heavy", weight=9.0), backend("light", weight=1.0)]
    used = _with(bench(backends=members), initial_delay=0.0)
    strategy = PrefixAwareHash(load_factor_epsilon=0.25, load_floor=1, virtual_nodes=100)
    selector = Selector(strategy=strategy, scorer=None, success_rate=used.fleet.success_rate)
    used.change(selector=selector, retry=replace(used.dispatcher.retry, budget=PLENTY))
    retried: collections.Counter[str] = collections.Counter()
    for number in range(100):
        used.transport.answers.extend([RESET, RESET, FakeReply(200, b"{}")])
        before = len(used.transport.sent)
        raw = b'{"model":"m","messages":[{"role":"user","content":"%d"}]}' % number
        await _run(used.again(), parse_generate(Endpoint.CHAT, raw, RequestRules()))
        names = used.transport.names[before:]
        assert len(set(names)) == 1
        retried.update(names[1:])
    assert retried["heavy"] + retried["light"] == 200
    assert 150 < retried["heavy"] < 200


@on_virtual_time
async def test_prefer_untried_with_one_backend_makes_all_3_tries() -> None:
    used = _with(
        bench(RESET, RESET, FakeReply(200, b"{}"), backends=[backend("b1")]),
        prefer_untried_backends=True,
    )
    await used.run()
    assert (used.sink.status, used.transport.names) == (200, ["b1"] * 3)


@on_virtual_time
async def test_replay_disabled_ends_a_request_that_may_have_arrived() -> None:
    """No retry and no fallback."""
    members = [
        backend("b1", replay_allowed=False),
        backend("b2", models=frozenset({"n"}), replay_allowed=False),
    ]
    for failure in (RESET, FakeReply(503, b"x"), FakeReply(500, b"x")):
        used = _with(bench(failure, backends=members))
        used.change(fallbacks={"m": ("n",)})
        if isinstance(failure, AttemptFailure):
            with pytest.raises(UpstreamFailed):
                await used.run()
        else:
            await used.run()
        assert used.transport.names == ["b1"]


@on_virtual_time
async def test_replay_disabled_does_not_matter_before_anything_was_sent() -> None:
    used = _with(
        bench(REFUSED, FakeReply(200, b"{}"), backends=[backend("b1", replay_allowed=False)])
    )
    await used.run()
    assert used.sink.status == 200


@on_virtual_time
async def test_the_total_of_180_seconds_includes_retries_and_their_delays() -> None:
    """E12: what would end behind the total is not begun."""
    late = FakeReply(503, b"x", headers=(("Retry-After", "25"),))
    answers = [FakeReply(503, b"x", headers=late.headers) for _ in range(20)]
    used = _with(bench(*answers), max_attempts=20)
    await used.run()
    assert (used.sink.status, now(), len(used.transport.sent)) == (503, 175.0, 8)


# -- first_byte and retries (E10) -----------------------------------------------------------


@on_virtual_time
async def test_a_first_byte_that_passed_is_not_tried_again() -> None:
    used = _with(bench(asyncio.Event()))
    assert await _times_out(used, stream=True, cause=Cause.FIRST_BYTE_TIMEOUT) == 120.0
    assert used.transport.names == ["b1"]


@pytest.mark.parametrize("head", [False, True])
@on_virtual_time
async def test_with_on_timeout_it_is(head: bool) -> None:
    """Whether the backend sent no head or a head and then nothing."""
    stuck = _stream(PING, asyncio.Event())
    first: Answer = stuck if head else asyncio.Event()
    used = _with(bench(first, _stream(50.0, EVENT)), on_timeout=True)
    with nothing_left(used, stuck) if head else nothing_left(used):
        await used.run(stream=True)
    assert (used.sink.body, used.outcome.ended) == (EVENT, Ended.COMPLETE)
    assert (used.transport.names, now()) == (["b1", "b2"], 170.1)
    assert used.results == {"failed": 1, "ok": 1}


@on_virtual_time
async def test_with_on_timeout_the_tries_and_the_total_still_end_it() -> None:
    used = _with(bench(*[asyncio.Event() for _ in range(3)]), on_timeout=True)
    assert await _times_out(used, stream=True, cause=Cause.FIRST_BYTE_TIMEOUT) == 360.3
    assert len(used.transport.sent) == 3
    used = _with(bench(*[asyncio.Event() for _ in range(9)]), on_timeout=True, max_attempts=9)
    begun = now()
    ended = await _times_out(used, stream=True, cause=Cause.TOTAL_TIMEOUT)
    assert ended - begun == pytest.approx(600.0)


@on_virtual_time
async def test_with_on_timeout_never_after_a_byte_was_relayed() -> None:
    big = b": " + b"x" * 9000  # longer than what is held back: relayed before any event
    used = _with(bench(_stream(big, asyncio.Event())), on_timeout=True)
    with nothing_left(used):
        await used.run(stream=True)
    assert (now(), len(used.transport.sent)) == (120.0, 1)
    assert used.sink.end == "cut" or b'"status":504' in used.sink.body


@on_virtual_time
async def test_with_on_timeout_replay_disabled_still_forbids_it() -> None:
    used = _with(
        bench(asyncio.Event(), backends=[backend("b1", replay_allowed=False), backend("b2")]),
        on_timeout=True,
    )
    await _times_out(used, stream=True, cause=Cause.FIRST_BYTE_TIMEOUT)
    assert used.transport.names == ["b1"]


@on_virtual_time
async def test_a_client_that_leaves_in_the_same_moment_is_not_kept() -> None:
    """The cancellation of the deadline is taken back; one from elsewhere goes on."""
    used = _with(bench(asyncio.Event(), _stream(EVENT)), on_timeout=True)
    task = asyncio.get_running_loop().create_task(used.run(stream=True))
    asyncio.get_running_loop().call_at(120.0, task.cancel)
    with nothing_left(used), pytest.raises(asyncio.CancelledError):
        await task
    assert used.transport.names == ["b1"]
    assert used.results == {"client_gone": 1}


# -- the budget (E10) -----------------------------------------------------------------------


def _exhausted(used: Bench) -> float:
    return used.dispatcher.state.metrics.budget_exhausted.value


async def _many(used: Bench, count: int) -> int:
    """`count` requests whose backends all answer 503; how many calls that made."""
    before = len(used.transport.sent)
    for _ in range(count):
        used.transport.answers.extend(FakeReply(503, b"x") for _ in range(3))
        await used.again().run()
        assert used.sink.status == 503
        used.transport.answers.clear()
    return len(used.transport.sent) - before


@on_virtual_time
async def test_retries_are_20_percent_of_the_requests_of_the_last_10_seconds() -> None:
    used = _with(bench(), initial_delay=0.0)
    assert await _many(used, 100) == 120
    assert _exhausted(used) > 0
    await asyncio.sleep(10.2)
    assert await _many(used, 3) == 9


@on_virtual_time
async def test_and_at_least_10() -> None:
    used = _with(bench(), initial_delay=0.0)
    assert await _many(used, 5) == 15
    assert _exhausted(used) == 0
    assert await _many(used, 5) == 5
    assert _exhausted(used) == 5


@on_virtual_time
async def test_a_kept_connection_that_died_unused_does_not_draw_on_it() -> None:
    """E14: one retry on a fresh connection, not counted."""
    used = _with(bench())
    for _ in range(50):
        lost = AttemptFailure(Stage.AWAITING_HEAD, Cause.CLOSED, reused=True)
        used.transport.answers.extend([lost, FakeReply(200, b"{}")])
        await used.again().run()
        assert (used.sink.status, used.outcome.attempts) == (200, 1)
    assert _exhausted(used) == 0


@on_virtual_time
async def test_one_dead_backend_of_two_costs_nobody_a_request() -> None:
    """Nothing was sent, another backend is left: nobody's load grows (docs/decisions/0017)."""
    used = _with(bench())
    for _ in range(50):
        used.transport.answers.extend([REFUSED, FakeReply(200, b"{}")])
        await used.again().run()
        assert used.sink.status == 200
    assert _exhausted(used) == 0


@on_virtual_time
async def test_when_all_are_dead_the_budget_bounds_the_tries() -> None:
    used = _with(bench(), initial_delay=0.0)
    for _ in range(50):
        used.transport.answers.extend([REFUSED] * 3)
        with pytest.raises(UpstreamFailed):
            await used.again().run()
        used.transport.answers.clear()
    assert len(used.transport.sent) == 50 + 50 + 10
    assert _exhausted(used) == 40
