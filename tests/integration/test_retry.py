"""What is tried again, what is not, and what the client sees of it (decisions E10-E16, S2)."""

import asyncio
import time

import pytest

from support.edge import BODY, edge_config, running
from support.faults import dead_port, deaf_port
from support.scripted_backend import (
    Peer,
    answers,
    breaks_after,
    chunk,
    chunked_head,
    closes_idle,
    in_turn,
    reply,
    scripted,
    sse,
    streams,
)

QUICK = "retry: {initial_delay: 10ms, max_delay: 50ms}"
ATTEMPTS = "continuum_upstream_attempts_total"


async def test_a_refused_connection_is_tried_elsewhere() -> None:
    with dead_port() as port:
        async with scripted(answers(reply())) as good:
            urls = [f"http://127.0.0.1:{port}", good.url]
            async with running(edge_config(urls, QUICK)) as edge:
                served = [await edge.post() for _ in range(4)]
                assert [answer.status for answer in served] == [200] * 4
                assert edge.sample(ATTEMPTS, result="failed") == 2
                assert edge.sample(ATTEMPTS, result="ok") == 4


@pytest.mark.parametrize("strategy", ["RoundRobin", "PrefixAwareHash"])
async def test_a_dead_backend_costs_no_request_whatever_the_strategy(strategy: str) -> None:
    more = f"{QUICK}\nselection_strategy: {strategy}\nprefix_routing: {{enabled: true}}"
    with dead_port() as port:
        async with scripted(answers(reply())) as good:
            urls = [f"http://127.0.0.1:{port}", good.url]
            async with running(edge_config(urls, more)) as edge:
                bodies = [
                    {"model": "m", "messages": [{"role": "user", "content": str(n)}]}
                    for n in range(20)
                ]
                found = await asyncio.gather(*map(edge.post, bodies))
                assert [answer.status for answer in found] == [200] * 20
                assert edge.in_flight() == 0


async def test_when_all_are_dead_the_client_gets_502_after_max_attempts() -> None:
    with dead_port() as port:
        async with running(edge_config([f"http://127.0.0.1:{port}"], QUICK)) as edge:
            answer = await edge.post()
            assert answer.status == 502
            assert answer.error["code"] == "upstream_error"
            assert str(port).encode() not in answer.body
            assert answer.headers["x-continuum-backend"] == "b1"
            assert edge.sample(ATTEMPTS, result="failed") == 3
            for stage in ("routing", "admission"):
                name = "request_rejected_total"
                assert edge.sample(name, stage=stage, key_id="unattributed") == 0


async def test_a_connect_that_hangs_ends_by_the_connection_timeout() -> None:
    more = "timeouts: {connection: 100ms}\nretry: {max_attempts: 2, initial_delay: 10ms}"
    with deaf_port() as port:
        async with running(edge_config([f"http://127.0.0.1:{port}"], more)) as edge:
            start = time.monotonic()
            answer = await edge.post()
            assert answer.status == 504
            assert 0.2 <= time.monotonic() - start < 1.5


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_retryable_statuses_are_tried_again(status: int) -> None:
    busy = answers(reply(b"{}", status=f"{status} Busy"))
    async with scripted(busy) as one, scripted(answers(reply(b'{"ok":1}'))) as two:
        async with running(edge_config([one.url, two.url], QUICK)) as edge:
            answer = await edge.post()
    assert (answer.status, answer.body) == (200, b'{"ok":1}')
    assert one.connections == 1


async def test_the_last_retryable_answer_is_passed_on() -> None:
    wire = reply(b'{"error":"full"}', status="503 Full", headers=["X-Mine: 1"])
    async with scripted(answers(wire)) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            answer = await edge.post()
            assert edge.sample(ATTEMPTS, result="busy") == 3
    assert (answer.status, answer.body, answer.headers["X-Mine"]) == (503, b'{"error":"full"}', "1")
    assert len(backend.requests) == 3
    assert backend.connections == 1


async def test_a_long_retry_after_is_passed_on_at_once() -> None:
    wire = reply(b"{}", status="429 Slow", headers=["Retry-After: 60"])
    async with scripted(answers(wire)) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            answer = await edge.post()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "60")
    assert len(backend.requests) == 1


async def test_a_short_retry_after_is_waited_for() -> None:
    script = in_turn(
        answers(reply(b"{}", status="429 Slow", headers=["Retry-After: 1"]), times=1),
        answers(reply()),
    )
    async with scripted(script) as backend:
        async with running(edge_config([backend.url], "retry: {max_delay: 5s}")) as edge:
            start = time.monotonic()
            assert (await edge.post()).status == 200
            assert time.monotonic() - start >= 1.0
    assert len(backend.requests) == 2


@pytest.mark.parametrize("status", [400, 404, 408, 500])
async def test_other_statuses_are_not_tried_again(status: int) -> None:
    async with scripted(answers(reply(b"{}", status=f"{status} X"))) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            assert (await edge.post()).status == status
    assert len(backend.requests) == 1


async def test_replay_disabled_stops_after_the_request_may_have_arrived() -> None:
    async with scripted(breaks_after()) as one, scripted(answers(reply())) as two:
        entries = (
            f"backends:\n- {{name: b1, url: '{one.url}', models: [m], replay: disabled}}\n"
            f"- {{name: b2, url: '{two.url}', models: [m]}}\n"
        )
        async with running(edge_config(entries, QUICK)) as edge:
            assert (await edge.post()).status == 502
    assert (len(one.requests), len(two.requests)) == (1, 0)


async def test_replay_disabled_still_tries_elsewhere_when_nothing_was_sent() -> None:
    with dead_port() as port:
        async with scripted(answers(reply())) as two:
            entries = (
                f"backends:\n- {{name: b1, url: 'http://127.0.0.1:{port}', models: [m], "
                f"replay: disabled}}\n- {{name: b2, url: '{two.url}', models: [m]}}\n"
            )
            async with running(edge_config(entries, QUICK)) as edge:
                assert (await edge.post()).status == 200


async def test_a_backend_that_breaks_before_any_byte_is_tried_again() -> None:
    async with scripted(in_turn(breaks_after(reset=True), answers(reply()))) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            assert (await edge.post()).status == 200
    assert len(backend.requests) == 2


async def test_a_backend_that_breaks_inside_its_head_is_not_tried_again() -> None:
    script = in_turn(breaks_after(b"HTTP/1.1 200 OK\r\nContent-"), answers(reply()))
    async with scripted(script) as backend, running(edge_config([backend.url], QUICK)) as edge:
        assert (await edge.post()).status == 502
    assert len(backend.requests) == 1


async def test_a_plain_answer_that_breaks_in_its_body_is_a_clean_502() -> None:
    broken = reply(b"x" * 1000)[:-500]
    async with scripted(breaks_after(broken)) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            answer = await edge.post()
            assert edge.sample(ATTEMPTS, result="failed") == 1
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert len(backend.requests) == 1


async def test_a_long_plain_answer_that_breaks_is_cut_for_the_client_too() -> None:
    broken = reply(b"x" * 3_000_000)[:-500]
    async with scripted(breaks_after(broken)) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            answer = await edge.post()
            assert edge.in_flight() == 0
    assert answer.cut
    assert len(backend.requests) == 1


@pytest.mark.parametrize("reset", [False, True])
async def test_kept_connections_that_die_idle_cost_no_request(reset: bool) -> None:
    """Requests spaced around the backend's idle limit, as it closes (user report S2)."""
    async with scripted(closes_idle(0.03, reply(b'{"ok":1}'), reset=reset)) as backend:
        async with running(edge_config([backend.url], "retry: {max_attempts: 1}")) as edge:
            for number in range(60):
                assert (await edge.post()).status == 200
                await asyncio.sleep(0.026 + (number % 9) * 0.001)
    assert len(backend.requests) == 60


async def test_a_kept_connection_that_dies_on_use_is_replaced_once_and_uncounted() -> None:
    async def dies_on_the_second(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply())
        await peer.request()
        peer.reset()

    script = in_turn(dies_on_the_second, answers(reply()))
    async with scripted(script) as backend:
        async with running(edge_config([backend.url], "retry: {max_attempts: 1}")) as edge:
            assert [(await edge.post()).status for _ in range(2)] == [200, 200]
            assert edge.sample(ATTEMPTS, result="ok") == 2
            assert edge.sample(ATTEMPTS, result="failed") == 0
    assert len(backend.requests) == 3


async def test_nothing_is_tried_again_once_a_byte_was_relayed() -> None:
    pieces = (chunked_head(), chunk(sse('{"a":1}')))
    async with scripted(breaks_after(*pieces, gap=0.01)) as one, scripted(streams("{}")) as two:
        async with running(edge_config([one.url, two.url], QUICK)) as edge:
            answer = await edge.stream()
    assert answer.status == 200
    assert b"upstream_error" in answer.body
    assert (len(one.requests), len(two.requests)) == (1, 0)


async def test_a_garbage_head_is_a_502_without_its_text() -> None:
    async with scripted(breaks_after(b"SECRET-GARBAGE\r\n\r\n")) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            answer = await edge.post()
    assert answer.status == 502
    assert b"SECRET" not in answer.body


async def test_the_total_includes_waiting_between_tries() -> None:
    more = (
        "retry: {max_attempts: 20, initial_delay: 300ms, jitter: false, backoff_multiplier: 1}\n"
        "timeouts: {request: {standard: {first_byte: 100ms, total: 1s}}}"
    )
    async with scripted(answers(reply(b"{}", status="503 X"))) as backend:
        async with running(edge_config([backend.url], more)) as edge:
            start = time.monotonic()
            answer = await edge.post()
            assert time.monotonic() - start < 1.0
    assert answer.status == 503
    assert 3 <= len(backend.requests) <= 4


async def test_prefer_untried_backends() -> None:
    more = QUICK.replace("}", ", prefer_untried_backends: true}")
    more += "\nselection_strategy: PrefixAwareHash\nprefix_routing: {enabled: true}"
    busy = reply(b"{}", status="503 X")
    async with scripted(answers(busy)) as one, scripted(answers(busy)) as two:
        async with scripted(answers(busy)) as three:
            urls = [one.url, two.url, three.url]
            async with running(edge_config(urls, more)) as edge:
                assert (await edge.post(BODY)).status == 503
            assert [len(b.requests) for b in (one, two, three)] == [1, 1, 1]


def _models(*entries: tuple[str, str, str]) -> str:
    """YAML of backends: name, URL, model."""
    lines = [f"- {{name: {name}, url: '{url}', models: [{m}]}}\n" for name, url, m in entries]
    return "backends:\n" + "".join(lines)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_fails_is_replaced_by_the_next_of_its_chain(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """J11: the body's other bytes are the client's, and the log tells which model served."""
    raw = (
        b'{ "messages":[{"role":"user","content":"\xec\x95\x88 \\u00e9"}],\n "model" : "m",'
        b' "temperature":0.70, "stream":%s}' % (b"true" if stream else b"false")
    )
    good = streams("{}") if stream else answers(reply(b'{"ok":1}'))
    async with scripted(answers(reply(b"{}", status="503 X"))) as one, scripted(good) as two:
        entries = _models(("b1", one.url, "m"), ("b2", two.url, "n"))
        more = f"{QUICK}\nfallbacks: {{m: [gone, n]}}"
        async with running(edge_config(entries, more)) as edge:
            with caplog.at_level("INFO", logger="continuum_router.access"):
                answer = await edge.post(raw=raw)
            assert answer.status == 200
            assert answer.headers["x-continuum-backend"] == "b2"
            assert answer.headers["x-continuum-route"] == "round_robin"
    assert [seen.body for seen in one.requests] == [raw] * 3
    assert [seen.body for seen in two.requests] == [raw.replace(b'"m"', b'"n"')]
    (line,) = [row for row in caplog.records if row.getMessage() == "Request completed"]
    told = line.__dict__["fields"]
    assert (told["model"], told["model_used"], told["attempts"]) == ("m", "n", 4)


async def test_a_model_without_backends_is_served_by_its_chain() -> None:
    async with scripted(answers(reply(b'{"ok":1}'))) as two:
        more = "fallbacks: {m: [n]}"
        async with running(edge_config(_models(("b2", two.url, "n")), more)) as edge:
            assert (await edge.post()).status == 200
            assert (await edge.post({**BODY, "model": "x"})).status == 404


async def test_a_model_has_its_own_time() -> None:
    """S2 model_overrides; user report S13: a wedged backend costs its own requests only."""
    more = (
        "timeouts: {request: {model_overrides: {m: {standard: {total: 200ms}, "
        "streaming: {first_byte: 150ms}}}}}"
    )
    async with scripted(answers(reply(), delay=30)) as one, scripted(answers(reply())) as two:
        entries = _models(("b1", one.url, "m"), ("b2", two.url, "n"))
        async with running(edge_config(entries, more)) as edge:
            start = time.monotonic()
            slow = [edge.post(), edge.stream()]
            quick = [edge.post({**BODY, "model": "n"}) for _ in range(5)]
            answered = await asyncio.gather(*slow, *quick)
            assert [answer.status for answer in answered] == [504, 504, *[200] * 5]
            assert 0.15 <= time.monotonic() - start < 2.0
            assert (await edge.get("/health")).status == 200
    assert len(one.requests) == 2


async def test_an_empty_budget_passes_the_failure_on() -> None:
    """E10: 20 % of the requests of the last 10 s, at least 10; counted."""
    async with scripted(answers(reply(b"{}", status="503 X"))) as backend:
        async with running(edge_config([backend.url], QUICK)) as edge:
            found = [(await edge.post()).status for _ in range(60)]
            assert found == [503] * 60
            assert edge.sample("continuum_retry_budget_exhausted_total") > 40
    assert len(backend.requests) == 60 + 12


async def test_a_wedged_backend_is_left_with_on_timeout() -> None:
    more = (
        "timeouts: {request: {streaming: {first_byte: 100ms}}}\n"
        "retry: {on_timeout: true, initial_delay: 1ms}"
    )
    async with scripted(in_turn(answers(reply(), delay=30), streams("{}"))) as backend:
        async with running(edge_config([backend.url], more)) as edge:
            answer = await edge.stream()
            assert (answer.status, answer.body.endswith(b"data: [DONE]\n\n")) == (200, True)
            assert edge.sample(ATTEMPTS, result="failed") == 1
    assert len(backend.requests) == 2
