"""TensorRT-LLM from its HTTP answers to the event stream: a whole listener, real sockets."""

import pytest

from continuum_shared.cache_salt import SaltIssuer
from continuum_shared.prefix_key import chat_key_text, derive
from support.listener_rig import (
    running_listener,
    source_row,
    subscribed,
    until,
)
from support.trtllm_server import block, created, removed, stored, trtllm_server, updated

SECRET = "salt-secret-canary"
ECHO = {"enabled": True, "secret_env": "SALTS"}
SYSTEM = "You are the harbour master of a small port."
OTHER = "You translate every sentence into Korean."


def key(system: str) -> bytes:
    text = chat_key_text({"messages": [{"role": "system", "content": system}]})
    assert text is not None
    return derive("m", text, 1024)


def salt(system: str, backend: str = "trt-1") -> str:
    return SaltIssuer([SECRET]).issue(key(system), backend=backend, model="m")


def source(server, **more):
    return {
        "backend_name": "trt-1",
        "engine": "trtllm",
        "trtllm_endpoint": server.url,
        "poll_interval_ms": 20,
        "model": "m",
        **more,
    }


def listening(server, **more):
    return running_listener([source(server, **more)], salt_echo=ECHO, env={"SALTS": SECRET})


@pytest.fixture
async def server():
    async with trtllm_server() as made:
        yield made


async def test_the_life_of_a_prefix(server):
    async with listening(server) as base, subscribed(base, "trt-1") as sub:
        server.tell(created(), stored(None, block(1, salt=salt(SYSTEM)), block(2)))
        await until(lambda: sub.index() == {key(SYSTEM): (64, "hot")})
        server.tell(stored(2, block(3, 5)))
        await until(lambda: sub.index() == {key(SYSTEM): (69, "hot")})
        server.tell(updated(3, 1, 0), updated(2, 1, 0), updated(1, 1, 0))
        await until(lambda: sub.index() == {key(SYSTEM): (69, "warm")})
        assert sub.actions()[-1] == "cache_offloaded"
        server.tell(updated(1, 0, 1))
        await until(lambda: sub.index() == {key(SYSTEM): (32, "hot")})
        server.tell(removed(3), removed(2, 1))
        await until(lambda: sub.index() == {})
        assert sub.actions()[-1] == "cache_evicted"
        server.tell(stored(None, block(9, salt=salt(OTHER))))
        await until(lambda: key(OTHER) in sub.index())
        server.tell(created())
        await until(lambda: sub.actions()[-1] == "cache_purged")
        row = await source_row(base, "trt-1")
        assert (row["engine"], row["attribution"], row["calibrated"]) == ("trtllm", "salt", True)
        assert (row["blocks"], row["last_seq"], row["gaps"]) == (0, 10, 0)
        assert row["warnings"] == []
        assert {(method, body) for method, body in server.requests} == {("POST", b"")}
        assert server.most_readers == 1
