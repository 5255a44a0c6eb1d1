"""One probe on real sockets: what the backend sees, what becomes of each kind of failure."""

import asyncio
import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from continuum_router.backends.health import Observation, ProbeError, ProbeOutcome
from continuum_router.backends.pool import Backend
from continuum_router.backends.probe import VERDICT_SECONDS, Prober
from continuum_router.backends.probe_plan import ProbePlan, plan_for
from continuum_router.config.backends import BackendType
from continuum_router.config.health_checks import HealthChecksConfig
from continuum_shared.config.kinds import BackendUrl, Secret
from support.faults import dead_port
from support.scripted_backend import Peer, Script, scripted

PLAN = ProbePlan(method="GET", paths=("/health",), timeout=2.0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def answering(*raw: bytes) -> Script:
    """One answer for each request, on one connection as long as it lives."""
    left = list(raw)

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(left.pop(0))

    return script


def status(code: int, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\n%sContent-Length: 0\r\n\r\n" % (code, more)


async def probed(
    backend: Backend, plan: ProbePlan = PLAN, times: int = 1, clock: Clock | None = None
) -> list[Observation]:
    prober = Prober(backend, plan, clock or Clock())
    try:
        return [await prober.probe() for _ in range(times)]
    finally:
        await prober.close()


async def test_what_the_backend_sees() -> None:
    async with scripted(answering(status(200), status(200))) as server:
        backend = server.backend(api_key=Secret("k"), type=BackendType.VLLM)
        plan = plan_for(backend, None, HealthChecksConfig())
        seen = await probed(backend, plan, times=2)
    assert [one.outcome for one in seen] == [ProbeOutcome.OK, ProbeOutcome.OK]
    assert server.connections == 2
    first = server.requests[0]
    assert first.line == "GET /health HTTP/1.1"
    assert first.header("authorization") == "Bearer k"
    assert first.header("accept-encoding") == "gzip"
    assert first.header("cookie") is None


async def test_404_goes_on_to_the_catalogue_whose_verdict_is_kept_for_five_minutes() -> None:
    clock = Clock()
    rest = [status(404), status(200, b"Set-Cookie: a=b\r\n"), *[status(404)] * 3, status(500)]
    async with scripted(answering(*rest)) as server:
        backend = server.backend(type=BackendType.VLLM)
        prober = Prober(backend, plan_for(backend, None, HealthChecksConfig()), clock)
        first = await prober.probe()
        second = await prober.probe()
        clock.now = VERDICT_SECONDS - 1
        third = await prober.probe()
        clock.now = VERDICT_SECONDS
        fourth = await prober.probe()
        await prober.close()
    assert [one.fresh for one in (first, second, third, fourth)] == [True, False, False, True]
    assert [one.status for one in (first, second, third, fourth)] == [200, 200, 200, 500]
    assert [seen.line.split()[1] for seen in server.requests] == [
        "/health",
        "/v1/models",
        "/health",
        "/health",
        "/health",
        "/v1/models",
    ]


async def test_the_start_s_rounds_ask_the_catalogue_anew() -> None:
    async with scripted(answering(*[status(404), status(200)] * 2)) as server:
        backend = server.backend(type=BackendType.VLLM)
        prober = Prober(backend, plan_for(backend, None, HealthChecksConfig()), Clock())
        seen = [await prober.probe(anew=True) for _ in range(2)]
        await prober.close()
    assert [one.fresh for one in seen] == [True, True]
    assert len(server.requests) == 4


async def test_a_catalogue_s_failure_is_kept_as_it_was() -> None:
    async def script(peer: Peer) -> None:
        while (seen := await peer.request()) is not None:
            if "/v1/models" in seen.line:
                peer.reset()
                return
            await peer.send(status(404))

    async with scripted(script) as server:
        backend = server.backend(type=BackendType.VLLM)
        prober = Prober(backend, plan_for(backend, None, HealthChecksConfig()), Clock())
        first = await prober.probe()
        asked = sum("/v1/models" in one.line for one in server.requests)
        second = await prober.probe()
        await prober.close()
    assert [first.error, second.error] == [ProbeError.CONNECT, ProbeError.CONNECT]
    assert [first.fresh, second.fresh] == [True, False]
    assert sum("/v1/models" in one.line for one in server.requests) == asked > 0


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
async def test_other_answers_do_not_ask_the_catalogue(code: int) -> None:
    async with scripted(answering(status(code))) as server:
        backend = server.backend(type=BackendType.VLLM)
        (seen,) = await probed(backend, plan_for(backend, None, HealthChecksConfig()))
    assert seen.status == code
    assert len(server.requests) == 1


async def test_a_redirect_is_not_followed() -> None:
    async with scripted(answering(status(302, b"Location: /v1/models\r\n"))) as server:
        (seen,) = await probed(server.backend())
    assert (seen.outcome, seen.error) == (ProbeOutcome.FAILED, ProbeError.REDIRECT)
    assert len(server.requests) == 1


async def test_nobody_listens() -> None:
    with dead_port() as port:
        url = BackendUrl.parse(f"http://127.0.0.1:{port}")
        (seen,) = await probed(Backend(name="b", type=BackendType.VLLM, url=url))
    assert (seen.outcome, seen.error, seen.status) == (
        ProbeOutcome.FAILED,
        ProbeError.CONNECT,
        None,
    )


async def test_silence_is_a_timeout() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.until_client_leaves()

    async with scripted(script) as server:
        (seen,) = await probed(server.backend(), replace(PLAN, timeout=0.1))
    assert (seen.outcome, seen.error) == (ProbeOutcome.FAILED, ProbeError.TIMEOUT)


@pytest.mark.parametrize(
    "raw",
    [b"\x16\x03\x01 garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000 + b"\r\n\r\n"],
    ids=["no http", "an endless header"],
)
async def test_what_is_no_answer(raw: bytes) -> None:
    async with scripted(answering(raw)) as server:
        (seen,) = await probed(server.backend())
    assert (seen.outcome, seen.error) == (ProbeOutcome.FAILED, ProbeError.PROTOCOL)


async def test_a_head_over_64_kib_in_many_lines() -> None:
    lines = b"".join(b"A%d: %s\r\n" % (number, b"x" * 900) for number in range(80))
    async with scripted(answering(status(200, lines))) as server:
        (seen,) = await probed(server.backend())
    assert (seen.outcome, seen.error) == (ProbeOutcome.FAILED, ProbeError.PROTOCOL)


async def test_the_body_of_a_catalogue_is_not_waited_for() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 1000)
        await peer.until_client_leaves()

    async with scripted(script) as server:
        async with asyncio.timeout(1.5):
            (seen,) = await probed(server.backend())
        assert seen.outcome is ProbeOutcome.OK


async def test_a_compressed_answer() -> None:
    body = gzip.compress(b"{}")
    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with scripted(answering(raw + body)) as server:
        (seen,) = await probed(server.backend())
    assert seen.outcome is ProbeOutcome.OK


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "b.sock")
    async with scripted(answering(status(200)), unix_path=path) as server:
        backend = Backend(name="b", type=BackendType.VLLM, url=BackendUrl.parse(f"unix:{path}"))
        (seen,) = await probed(backend)
    assert seen.outcome is ProbeOutcome.OK
    assert server.requests[0].line == "GET /health HTTP/1.1"
    assert server.requests[0].header("host") == "localhost"


async def test_a_post_with_a_body() -> None:
    async with scripted(answering(status(204))) as server:
        plan = replace(PLAN, method="POST", body=b'{"check":true}')
        (seen,) = await probed(server.backend(), plan)
    assert seen.outcome is ProbeOutcome.OK
    assert server.requests[0].line == "POST /health HTTP/1.1"
    assert server.requests[0].body == b'{"check":true}'


async def test_a_cancelled_probe_leaves_no_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.until_client_leaves()

    async with scripted(script) as server:
        prober = Prober(server.backend(), PLAN, Clock())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await prober.probe()
        async with asyncio.timeout(1):
            while server.open:
                await asyncio.sleep(0.01)
        await prober.close()
