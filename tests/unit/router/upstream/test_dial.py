"""Connecting: every kind of address, and what each failure is called."""

import asyncio
import ssl

import pytest

from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_router.upstream.connection import Connection
from continuum_router.upstream.dial import default_tls, dial
from continuum_router.upstream.response_head import HeadReader
from continuum_shared.config.kinds import BackendUrl
from support.faults import dead_port, deaf_port
from support.scripted_backend import hangs, scripted
from support.source_tree import ROOT

CERTIFICATE = ROOT / "tests/fixtures/tls/cert.pem"


async def connect(url: str, *, tls: ssl.SSLContext | None = None, within: float = 2) -> Connection:
    deadline = asyncio.get_running_loop().time() + within
    return await dial(BackendUrl.parse(url), HeadReader(), tls=tls, deadline=deadline)


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
