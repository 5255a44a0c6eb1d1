"""Connecting: every kind of address, and what each failure is called."""

import asyncio
import gc
import socket
import ssl

import pytest

from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.dial import AddressInfo, Resolve, default_tls, dial
from continuum_router.upstream.response_head import HeadReader
from continuum_shared.config.kinds import BackendUrl
from support.faults import dead_port, deaf_port
from support.scripted_backend import hangs, scripted
from support.source_tree import ROOT

CERTIFICATE = ROOT / "tests/fixtures/tls/cert.pem"


async def connect(
    url: str,
    *,
    tls: ssl.SSLContext | None = None,
    within: float = 2,
    resolve: Resolve | None = None,
) -> Connection:
    deadline = asyncio.get_running_loop().time() + within
    heads = HeadReader()
    return await dial(BackendUrl.parse(url), heads, tls=tls, deadline=deadline, resolve=resolve)


def named(*ports: int) -> Resolve:
    """A resolver that knows every name by these ports of loopback, the first one preferred."""

    async def resolve(host: str, port: int) -> list[AddressInfo]:
        assert (host, port) == ("engines", 80)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in ports]

    return resolve


async def failure(url: str, **options: object) -> AttemptFailure:
    with pytest.raises(AttemptFailure) as caught:
        await connect(url, **options)  # type: ignore[arg-type]
    assert caught.value.stage is Stage.CONNECTING
    return caught.value


def server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    return context


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_tcp(host):
    listen = "127.0.0.1" if host == "localhost" else host
    async with scripted(hangs(), host=listen) as backend:
        connection = await connect(backend.url.replace(listen, host))
        assert connection.usable
        connection.abort()
        assert not connection.usable


async def test_unix_socket(tmp_path):
    async with scripted(hangs(), unix_path=str(tmp_path / "s")) as backend:
        connection = await connect(backend.url)
        assert connection.usable
        connection.abort()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_tls_with_a_trusted_certificate(host):
    trusting = default_tls()
    trusting.load_verify_locations(CERTIFICATE)
    async with scripted(hangs(), tls=server_tls()) as backend:
        connection = await connect(backend.url.replace("127.0.0.1", host), tls=trusting)
        assert connection.usable
        connection.abort()


async def test_tls_with_an_unknown_certificate():
    async with scripted(hangs(), tls=server_tls()) as backend:
        found = await failure(backend.url, tls=default_tls())
    assert (found.cause, found.detail) == (Cause.TLS, "CERTIFICATE_VERIFY_FAILED")


async def test_tls_to_a_port_without_it():
    async def script(peer):
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.until_client_leaves()

    async with scripted(script) as backend:
        found = await failure(backend.url.replace("http:", "https:"), tls=default_tls())
    assert found.cause is Cause.TLS


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_refused(host):
    # localhost has an IPv6 address too on most machines: both refuse.
    with dead_port() as port:
        found = await failure(f"http://{host}:{port}")
    assert (found.cause, found.detail) == (Cause.REFUSED, "ECONNREFUSED")


async def test_no_answer_in_time():
    with deaf_port() as port:
        started = asyncio.get_running_loop().time()
        found = await failure(f"http://127.0.0.1:{port}", within=0.2)
        took = asyncio.get_running_loop().time() - started
    assert found.cause is Cause.CONNECT_TIMEOUT
    assert 0.19 <= took < 2


async def test_a_name_that_does_not_exist():
    found = await failure("http://no-such-host.invalid:80")
    assert found.cause is Cause.DNS
    assert "invalid" not in str(found)


async def test_a_missing_socket_file(tmp_path):
    found = await failure(f"unix://{tmp_path}/none")
    assert (found.cause, found.detail) == (Cause.UNREACHABLE, "ENOENT")


async def test_cancelling_leaves_nothing_open():
    with deaf_port() as port:
        task = asyncio.create_task(connect(f"http://127.0.0.1:{port}"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_address_that_leads_nowhere_costs_a_moment_and_not_the_deadline():
    with deaf_port() as port:
        async with scripted(hangs()) as backend:
            good = int(backend.url.rpartition(":")[2])
            started = asyncio.get_running_loop().time()
            connection = await connect("http://engines:80", resolve=named(port, good), within=5)
            took = asyncio.get_running_loop().time() - started
            assert connection.usable
            connection.abort()
    assert 0.2 <= took < 2


async def test_the_preferred_address_is_the_only_one_tried_when_it_answers():
    async with scripted(hangs()) as one, scripted(hangs()) as two:
        ports = [int(backend.url.rpartition(":")[2]) for backend in (one, two)]
        connection = await connect("http://engines:80", resolve=named(*ports))
        await asyncio.sleep(0.3)
        assert (one.connections, two.connections) == (1, 0)
        connection.abort()


async def test_one_that_refuses_is_passed_over_at_once():
    with dead_port() as port:
        async with scripted(hangs()) as backend:
            good = int(backend.url.rpartition(":")[2])
            started = asyncio.get_running_loop().time()
            connection = await connect("http://engines:80", resolve=named(port, good))
            assert asyncio.get_running_loop().time() - started < 0.2
            connection.abort()


async def test_all_refuse():
    with dead_port() as one, dead_port() as two:
        found = await failure("http://engines:80", resolve=named(one, two))
    assert (found.cause, found.detail) == (Cause.REFUSED, "ECONNREFUSED")


async def test_all_lead_nowhere():
    with deaf_port() as one, deaf_port() as two:
        found = await failure("http://engines:80", resolve=named(one, two), within=0.5)
    assert found.cause is Cause.CONNECT_TIMEOUT


async def test_a_name_without_addresses():
    assert (await failure("http://engines:80", resolve=named())).cause is Cause.DNS


async def test_leaving_in_a_race_leaves_nothing_open():
    with deaf_port() as one, deaf_port() as two:
        task = asyncio.create_task(connect("http://engines:80", resolve=named(one, two)))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    gc.collect()  # an open socket would be told now
