"""The life of the daemon: start, stop, and starts that fail."""

import io
import logging
import resource
import socket

import aiohttp
import pytest
import yaml

from continuum_kv_listener.config import ListenerConfig, parse_config
from continuum_kv_listener.main import FILES, StartFailed, raise_file_limit, run
from continuum_shared.config.report import Report
from support.listener_rig import listener_daemon, subscribed, until

SOURCE = {
    "backend_name": "vllm-1",
    "zmq_endpoint": "tcp://127.0.0.1:5557",
    "engine_url": "http://127.0.0.1:9",
    "model": "m",
}


def config(listen: str) -> tuple[ListenerConfig, Report]:
    text = yaml.safe_dump({"listen": listen, "sources": [SOURCE]})
    made, report = parse_config(text, path="f", env={})
    assert made is not None
    return made, report


async def test_start_and_stop():
    daemon = listener_daemon([SOURCE])
    await daemon.start()
    assert daemon.address.port > 0
    async with subscribed(f"http://{daemon.address}", "vllm-1") as sub:
        await daemon.stop()
        await until(lambda: sub.ended)
        assert not sub.broken
    await daemon.stop()


async def test_a_unix_socket(tmp_path):
    path = str(tmp_path / "l.sock")
    daemon = listener_daemon([SOURCE], listen=f"unix:{path}")
    await daemon.start()
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=path)) as session,
            session.get("http://x/health") as response,
        ):
            assert response.status == 200
    finally:
        await daemon.stop()


async def test_an_address_in_use_is_said_in_plain_words():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = listener_daemon([SOURCE], listen=listen)
        with pytest.raises(StartFailed) as caught:
            await daemon.start()
    assert str(caught.value) == f"cannot listen on {listen}: address already in use"


@pytest.fixture
def _own_logging():
    """``run`` takes the root logger over; give it back."""
    root = logging.getLogger()
    handlers, level, raises = list(root.handlers), root.level, logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raises


@pytest.mark.usefixtures("_own_logging")
def test_run_gives_one_and_a_sentence_when_the_start_fails(capsysbinary):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        err = io.StringIO()
        made, report = config(listen)
        assert run(made, report, env={"CONTINUUM_LOG_LEVEL": "error"}, err=err) == 1
    assert err.getvalue() == (
        f"continuum-kv-listener: cannot listen on {listen}: address already in use\n"
    )
    assert capsysbinary.readouterr().out == b""


def test_the_process_takes_the_files_that_the_system_gives():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(512, before[1])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(FILES, before[1]), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
