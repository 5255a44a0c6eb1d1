"""Health checks in a whole router, with backends that fall ill on a real socket."""

import asyncio
import json

import pytest

from continuum_router.config.root import Config
from support.edge import BODY, edge_config, running
from support.faults import dead_port
from support.scripted_backend import Peer, scripted

FAST = (
    "health_checks: {interval: 100ms, timeout: 500ms, warmup_check_interval: 50ms, %s "
    "breaker: {enabled: false}}\nretry: {max_attempts: 1}\n"
)


class Engine:
    """Answers probes with `health` and chats with `chat`; counts both."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.health = 200
        self.chat = 200
        self.probes: list[str] = []
        self.chats = 0

    async def __call__(self, peer: Peer) -> None:
        while (seen := await peer.request()) is not None:
            if seen.line.startswith("GET"):
                self.probes.append(seen.line)
                await peer.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % self.health)
                continue
            self.chats += 1
            body = json.dumps({"object": "chat.completion", "choices": []}).encode()
            head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            await peer.send(head % (self.chat, len(body)) + body)


async def until(what) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(5):
        while not what():
            await asyncio.sleep(0.01)


async def test_only_healthy_backends_receive_traffic_and_they_come_back() -> None:
    one, two = Engine("one"), Engine("two")
    async with scripted(one) as first, scripted(two) as second:
        async with running(edge_config([first.url, second.url], FAST % "")) as edge:
            conditions = edge.router.state.dispatch.fleet.conditions
            assert {conditions.get(name).state.value for name in ("b1", "b2")} == {"ready"}
            one.health = 500
            await until(lambda: conditions.get("b1").state.value == "unhealthy")
            before = one.chats
            for _ in range(6):
                assert (await edge.post(BODY)).headers["x-continuum-backend"] == "b2"
            assert one.chats == before
            one.health = 200
            await until(lambda: conditions.get("b1").state.value == "ready")
            got = {(await edge.post(BODY)).headers["x-continuum-backend"] for _ in range(4)}
            assert got == {"b1", "b2"}
    # User report O2: no probe is a generation call.
    assert set(one.probes + two.probes) <= {
        "GET /health HTTP/1.1",
        "GET /v1/models HTTP/1.1",
    }


async def test_o8_a_backend_that_is_down_at_the_start_does_not_stop_the_router() -> None:
    one = Engine("one")
    async with scripted(one) as first:
        with dead_port() as port:
            checks = (FAST % "").partition("retry:")[0]
            config = edge_config([first.url, f"http://127.0.0.1:{port}"], checks)
            async with running(config) as edge:
                assert (await edge.get("/health/ready")).status == 200
                for _ in range(4):
                    assert (await edge.post(BODY)).status == 200


async def test_o3_all_probes_fail_while_traffic_succeeds() -> None:
    one, two = Engine("one"), Engine("two")
    one.health = two.health = 500
    async with scripted(one) as first, scripted(two) as second:
        async with running(edge_config([first.url, second.url], FAST % "")) as edge:
            conditions = edge.router.state.dispatch.fleet.conditions
            await until(lambda: conditions.get("b1").state.value == "unhealthy")
            await until(lambda: conditions.get("b2").state.value == "unhealthy")
            for _ in range(20):
                assert (await edge.post(BODY)).status == 200


async def test_nobody_answers_is_told_soon_with_retry_after() -> None:
    with dead_port() as one, dead_port() as two:
        dead = [f"http://127.0.0.1:{port}" for port in (one, two)]
        await _nobody_answers(edge_config(dead, FAST % ""))


async def _nobody_answers(config: Config) -> None:
    async with running(config) as edge:
        conditions = edge.router.state.dispatch.fleet.conditions
        await until(lambda: conditions.get("b1").state.value == "unhealthy")
        await until(lambda: conditions.get("b2").state.value == "unhealthy")
        statuses = [(await edge.post(BODY)).status for _ in range(4)]
        assert statuses[:3] == [502, 502, 502]
        answer = await edge.post(BODY)
        while answer.status == 502:
            answer = await edge.post(BODY)
        assert answer.status == 503
        assert answer.error["code"] == "no_backend_available"
        assert answer.headers["Retry-After"] == "1"


async def test_block_startup_false_listens_at_once() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.until_client_leaves()

    async with scripted(silent) as server:
        config = edge_config(
            [server.url], "health_checks: {block_startup: false, timeout: 60s, interval: 60s}"
        )
        async with asyncio.timeout(2), running(config) as edge:
            assert (await edge.get("/health")).status == 200


async def test_block_startup_waits_no_longer_than_its_timeouts() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.until_client_leaves()

    async with scripted(silent) as server:
        config = edge_config(
            [server.url], "health_checks: {prewarm_timeout: 100ms, timeout: 100ms, interval: 60s}"
        )
        began = asyncio.get_running_loop().time()
        async with running(config) as edge:
            took = asyncio.get_running_loop().time() - began
            assert 0.2 <= took < 2
            assert (await edge.get("/health")).status == 200


async def test_r7_fifty_client_errors_leave_a_backend_where_it_was() -> None:
    one = Engine("one")
    one.chat = 400
    async with scripted(one) as first:
        more = "health_checks: {enabled: false, breaker: {failures: 2}}"
        async with running(edge_config([first.url], more)) as edge:
            for _ in range(50):
                assert (await edge.post(BODY)).status == 400
            fleet = edge.router.state.dispatch.fleet
            assert fleet.success_rate("b1") == 1.0
            assert fleet.conditions.get("b1").breaker.closed


async def test_r8_a_full_backend_is_never_taken_out() -> None:
    one, two = Engine("one"), Engine("two")
    async with scripted(one) as first, scripted(two) as second:
        more = "health_checks: {enabled: false, breaker: {failures: 2}}\nretry: {initial_delay: 0s}"
        async with running(edge_config([first.url, second.url], more)) as edge:
            for _ in range(10):
                one.chat = 503
                assert (await edge.post(BODY)).status == 200
                one.chat = 200
                before = one.chats
                for _ in range(2):
                    assert (await edge.post(BODY)).status == 200
                assert one.chats > before
            assert edge.router.state.dispatch.fleet.conditions.get("b1").breaker.closed


@pytest.mark.parametrize("probing", [False, True])
async def test_failing_requests_open_the_breaker_and_a_good_one_closes_it(probing: bool) -> None:
    one, two = Engine("one"), Engine("two")
    one.chat = 500
    checks = "enabled: true, interval: 60s" if probing else "enabled: false"
    more = (
        f"health_checks: {{{checks}, breaker: {{failures: 2, cooldown: 300ms}}}}\n"
        "retry: {max_attempts: 1}"
    )
    async with scripted(one) as first, scripted(two) as second:
        async with running(edge_config([first.url, second.url], more)) as edge:
            statuses = [(await edge.post(BODY)).status for _ in range(12)]
            assert statuses.count(500) == 2
            one.chat = 200
            await asyncio.sleep(0.35)
            before = one.chats
            for _ in range(6):
                assert (await edge.post(BODY)).status == 200
            assert one.chats - before == 3
