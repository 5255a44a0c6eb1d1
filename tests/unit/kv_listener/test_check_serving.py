"""``--check`` about the listener itself: is its address free, its certificate good, who reads."""

import socket

import pytest
import yaml
from aiohttp import web

from continuum_kv_listener.check_serving import DAY, try_serving, wall_clock
from continuum_kv_listener.config import ListenerConfig, parse_config
from continuum_kv_listener.server_certificate import expiry
from support.kv_publisher import free_port
from support.listener_rig import running_listener
from support.source_tree import ROOT

TLS = ROOT / "tests/fixtures/tls"
PAIR = {"cert": f"{TLS}/listener.pem", "key": f"{TLS}/listener-key.pem"}
END = expiry((TLS / "listener.pem").read_text())
SOURCE = {
    "backend_name": "a",
    "zmq_endpoint": "tcp://127.0.0.1:9",
    "engine_url": "http://127.0.0.1:9",
    "model": "m",
}
ENV = {"T": "0123456789abcdef0123"}


def config(listen: str = "127.0.0.1:0", **top: object) -> ListenerConfig:
    text = yaml.safe_dump({"listen": listen, "sources": [SOURCE], **top})
    made, report = parse_config(text, path="f", env=ENV)
    assert made is not None, str(report)
    return made


async def rows(made: ListenerConfig, wall: float = 0.0) -> list[tuple[str, bool | None, str]]:
    return [(o.what, o.good, o.note) for o in await try_serving(made, 2.0, wall)]


async def test_a_free_address_and_nothing_else_to_say():
    assert await rows(config()) == [("listen", True, "")]


async def test_a_listener_that_runs_already_is_no_failure():
    for more in ({}, {"tls": PAIR}):
        async with running_listener([SOURCE], **more) as base:
            found = await rows(config(base.removeprefix("http://"), **more))
        assert found[0] == (
            "listen",
            None,
            "in use by a listener that runs already; bound ZMQ endpoints are then its too",
        )


async def test_another_program_has_the_port():
    async def hello(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/health", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found = await rows(config(f"127.0.0.1:{runner.addresses[0][1]}"))
    finally:
        await runner.cleanup()
    assert found == [("listen", False, "in use by another program: end it, or choose another port")]


@pytest.mark.parametrize(
    ("listen", "note"),
    [
        ("192.0.2.1:7817", "this machine has no such address: use one of its own, or 0.0.0.0"),
        ("unix:/nowhere/l.sock", "the socket's directory does not exist: make it"),
    ],
)
async def test_an_address_that_cannot_be_used(listen, note):
    assert (await rows(config(listen)))[0] == ("listen", False, note)


async def test_a_socket_path(tmp_path):
    path = tmp_path / "l.sock"
    checked = config(f"unix:{path}")
    assert await rows(checked) == [("listen", True, "")]
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert await rows(checked) == [("listen", True, "")], "what a dead process left"
    async with running_listener([SOURCE], listen=f"unix:{path}"):
        assert (await rows(checked))[0][1] is None


@pytest.mark.parametrize(
    ("wall", "good", "note"),
    [
        (END - 100 * DAY, True, "good until 2049-12-31, 100 days"),
        (END - 13 * DAY, True, "good until 2049-12-31, 13 days: renew it now"),
        (END + 1, False, "ended on 2049-12-31: renew it"),
    ],
)
async def test_the_certificate(wall, good, note):
    assert (await rows(config(tls=PAIR), wall))[1] == ("certificate", good, note)


async def test_a_certificate_without_its_key():
    found = await rows(config(tls={**PAIR, "key": f"{TLS}/renewed-key.pem"}))
    assert found[1] == ("certificate", False, "tls.key: does not belong to the certificate")


async def test_who_may_read():
    port = free_port()
    assert (await rows(config(f"0.0.0.0:{port}")))[1:] == [
        (
            "token",
            None,
            "none is asked for: whoever reaches the port may read. Set auth_token_env",
        )
    ]
    assert (await rows(config(auth_token_env="T")))[1:] == [
        ("token", True, "asked for by everything but /health")
    ]


def test_the_clock():
    assert wall_clock() > 1.6e9
