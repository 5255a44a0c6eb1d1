"""A real router follows a real listener over TLS with a token; every wrong wiring says what it is.

The certificates are those of tests/fixtures/tls: a root, a listener, its successor, a reader.
"""

import logging
import shutil
from contextlib import asynccontextmanager

import pytest

from continuum_kv_listener.main import Daemon
from continuum_kv_listener.main import StartFailed as ListenerStartFailed
from continuum_kv_listener.serve_sse import ServeTimes
from continuum_router.main import Router, StartFailed
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import PrefixKey
from support.edge import Edge, edge_config, running
from support.listener_rig import listener_daemon, until
from support.source_tree import ROOT

TLS = ROOT / "tests/fixtures/tls"
RIGHT, NEXT, WRONG = "canary-right-0123456789", "canary-next-0123456789", "canary-wrong-0123456"
SOURCE = {
    "backend_name": "b1",
    "zmq_endpoint": "tcp://127.0.0.1:9",
    "engine_url": "http://127.0.0.1:9",
    "model": "m",
}
CA = f"ca_file: '{TLS / 'ca.pem'}'"


@asynccontextmanager
async def listening(path, **tls: object):
    """A listener with a certificate in ``path`` and two good tokens; gives the daemon."""
    shutil.copy(TLS / "listener.pem", path / "cert.pem")
    shutil.copy(TLS / "listener-key.pem", path / "key.pem")
    daemon = listener_daemon(
        [SOURCE],
        times=ServeTimes(settle=0.0),
        env={"NOW": RIGHT, "SOON": NEXT},
        auth_token_env=["NOW", "SOON"],
        tls={"cert": str(path / "cert.pem"), "key": str(path / "key.pem"), **tls},
    )
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()


@asynccontextmanager
async def following(daemon: Daemon, token: str = RIGHT, tls: str = CA, scheme: str = "https"):
    """A router whose only event source is that listener."""
    source = (
        f"backend_name: b1, endpoint: '{scheme}://{daemon.address}/events/b1', "
        f"auth_token: {token}, tls: {{{tls}}}, reconnect_interval_ms: 20"
    )
    more = (
        "prefix_routing: {enabled: true}\n"
        f"kv_cache_index: {{enabled: true, event_sources: [{{{source}}}]}}"
    )
    async with running(edge_config(["http://127.0.0.1:9"], more)) as edge:
        yield edge


def losses(edge: Edge, reason: str) -> float:
    return edge.sample("continuum_kv_consumer_losses_total", backend="b1", reason=reason)


def connected(edge: Edge) -> bool:
    return edge.sample("continuum_kv_consumer_connected", backend="b1") == 1


async def publish(daemon: Daemon, number: int) -> None:
    """Publish once the router's stream has begun."""
    key = PrefixKey(number.to_bytes(32, "big"))
    stream = daemon.listener.runners["b1"].stream
    await until(lambda: stream.subscribers == 1)
    stream.publish([KvEvent(action=KvAction.CREATED, prefix=key, tokens=number)])


def received(edge: Edge) -> float:
    return edge.sample(
        "continuum_kv_event_received_total", backend="b1", action=KvAction.CREATED.value
    )


def said(caplog: pytest.LogCaptureFixture) -> str:
    """Everything that was logged, fields and arguments included."""
    return repr([vars(record) for record in caplog.records])


@pytest.mark.parametrize("scheme", ["https", "wss"])
@pytest.mark.parametrize("token", [RIGHT, NEXT], ids=["present token", "next token"])
async def test_records_arrive_over_tls_with_either_token(tmp_path, token, scheme, caplog):
    with caplog.at_level(1):
        async with listening(tmp_path) as daemon, following(daemon, token, CA, scheme) as edge:
            await until(lambda: connected(edge))
            await publish(daemon, 1)
            await until(lambda: received(edge) == 1)
            assert losses(edge, "unauthorized") == losses(edge, "tls") == 0
    assert "canary" not in said(caplog)


@pytest.mark.parametrize("scheme", ["https", "wss"])
async def test_a_wrong_token_is_an_error_of_its_own(tmp_path, scheme, caplog):
    with caplog.at_level(1):
        async with listening(tmp_path) as daemon, following(daemon, WRONG, CA, scheme) as edge:
            await until(lambda: losses(edge, "unauthorized") >= 2)
            assert not connected(edge)
            text = daemon.listener.metrics.exposition().decode()
            exposed = edge.router.state.metrics.exposition().decode()
            assert "canary" not in text + exposed
            refused = 'continuum_listener_refused_requests_total{reason="wrong_token"}'
            counts = [line for line in text.splitlines() if line.startswith(refused)]
            assert float(counts[0].split()[-1]) >= 2
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    lost = [r.fields for r in warnings if r.getMessage() == "Event stream lost"]
    assert lost == [
        {
            "backend": "b1",
            "reason": "unauthorized 401",
            "hint": "auth_token must be one of the listener's auth_token_env",
        }
    ]
    assert [r.getMessage() for r in warnings].count("Request refused") == 1
    assert "canary" not in said(caplog)


@pytest.mark.parametrize(
    "tls",
    [f"ca_file: '{TLS / 'cert.pem'}'", f"{CA}, server_name: other.example"],
    ids=["another authority", "another name"],
)
async def test_a_listener_that_is_not_trusted_gets_no_token(tmp_path, tls, caplog):
    async with listening(tmp_path) as daemon, following(daemon, tls=tls) as edge:
        await until(lambda: losses(edge, "tls") >= 2)
        assert not connected(edge)
        text = daemon.listener.metrics.exposition().decode()
        assert 'refused_requests_total{reason="no_token"} 0.0' in text
    reasons = {r.fields["reason"] for r in caplog.records if r.getMessage() == "Event stream lost"}
    assert reasons == {"tls certificate_verify_failed"}


async def test_mutual_tls(tmp_path):
    reader = f"{CA}, client_cert: '{TLS / 'reader.pem'}'"
    async with listening(tmp_path, client_ca=str(TLS / "ca.pem")) as daemon:
        async with following(daemon, tls=reader) as edge:
            await until(lambda: connected(edge))
        async with following(daemon) as edge:
            await until(lambda: losses(edge, "tls") + losses(edge, "cut") >= 2)
            assert not connected(edge)


async def test_a_renewed_certificate_disturbs_no_stream(tmp_path):
    async with listening(tmp_path) as daemon, following(daemon) as edge:
        await until(lambda: connected(edge))
        shutil.copy(TLS / "renewed.pem", tmp_path / "cert.pem")
        shutil.copy(TLS / "renewed-key.pem", tmp_path / "key.pem")
        daemon.renew()
        text = daemon.listener.metrics.exposition().decode()
        assert 'certificate_renewals_total{result="renewed"} 1.0' in text
        await publish(daemon, 1)
        await until(lambda: received(edge) == 1)
        assert edge.sample("continuum_kv_consumer_reconnects_total", backend="b1") == 0
        async with following(daemon) as second:
            await until(lambda: connected(second))


async def test_a_missing_authority_file_stops_the_start():
    more = (
        "kv_cache_index: {enabled: true, event_sources: [{backend_name: b1, "
        "endpoint: 'https://127.0.0.1:9/events/b1', tls: {ca_file: /nowhere}}]}\n"
        "prefix_routing: {enabled: true}"
    )
    router = Router(edge_config(["http://127.0.0.1:9"], more))
    with pytest.raises(StartFailed) as failed:
        await router.start()
    assert str(failed.value) == ("tls.ca_file: no such file or directory (event source of b1)")


async def test_a_certificate_that_cannot_be_read_stops_the_listener():
    daemon = listener_daemon([SOURCE], tls={"cert": "/nowhere"})
    with pytest.raises(ListenerStartFailed) as failed:
        await daemon.start()
    assert str(failed.value) == "tls.cert: no such file or directory"
