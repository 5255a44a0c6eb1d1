"""TensorRT-LLM from its HTTP answers to the event stream: a whole listener, real sockets."""

import asyncio

import aiohttp
import pytest

from continuum_shared.cache_salt import SaltIssuer
from continuum_shared.prefix_key import chat_key_text, derive
from support.kv_publisher import free_port
from support.listener_rig import metric, running_listener, source_row, subscribed, until
from support.trtllm_server import block, created, removed, stored, trtllm_server, updated

SECRET = "a-secret-canary-of-more-than-32-characters"
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


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        ("500", "refused"),
        ("404", "refused"),
        ("redirect", "redirect"),
        ("reset", "unreachable"),
    ],
)
async def test_a_fault_before_the_answer_costs_nothing(server, fault, result):
    server.location = server.url.replace("kv_cache_events", "never")
    async with listening(server) as base, subscribed(base, "trt-1") as sub:
        server.tell(created(), stored(None, block(1, salt=salt(SYSTEM))))
        await until(lambda: key(SYSTEM) in sub.index())
        server.faults.append(fault)
        server.tell(stored(1, block(2)))
        await until(lambda: sub.index() == {key(SYSTEM): (64, "hot")})
        assert "cache_purged" not in sub.actions()
        assert server.elsewhere == 0
        line = f'continuum_listener_polls_total{{result="{result}",source="trt-1"}}'
        assert await metric(base, line) == 1
        row = await source_row(base, "trt-1")
        assert (row["gaps"], row["restarts"], row["connected"]) == (0, 0, True)


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        ("cut", "cut_short"),
        ("half", "bad_answer"),
        ("html", "bad_answer"),
        ("object", "bad_answer"),
        ("gzip", "bad_answer"),
        ("endless", "too_large"),
    ],
)
async def test_a_fault_within_the_answer_is_a_gap_at_the_next_event(server, fault, result):
    """User report K19: what the answer held is drained, and everything known is in doubt."""
    async with (
        listening(server, max_frame_bytes="64KiB") as base,
        subscribed(base, "trt-1") as sub,
    ):
        server.tell(created(), stored(None, block(1, salt=salt(SYSTEM))))
        await until(lambda: key(SYSTEM) in sub.index())
        server.faults.append(fault)
        server.tell(removed(1), removed(7))
        await until(lambda: not server.queue)
        line = f'continuum_listener_polls_total{{result="{result}",source="trt-1"}}'
        async with asyncio.timeout(5):
            while await metric(base, line) != 1:
                await asyncio.sleep(0.01)
        assert set(sub.index()) == {key(SYSTEM)}
        server.tell(stored(None, block(3, salt=salt(OTHER))))
        await until(lambda: sub.index() == {key(OTHER): (32, "hot")})
        assert sub.actions() == ["cache_created", "cache_purged", "cache_created"]
        row = await source_row(base, "trt-1")
        assert (row["gaps"], row["restarts"], row["last_seq"]) == (1, 0, 4)
        assert "2 events were lost" in " ".join(row["warnings"])


async def test_a_killed_engine_comes_back_empty(server):
    async with listening(server) as base, subscribed(base, "trt-1") as sub:
        server.tell(created(), stored(None, block(1, salt=salt(SYSTEM))))
        await until(lambda: key(SYSTEM) in sub.index())
        await server.stop()
        line = 'continuum_listener_polls_total{result="unreachable",source="trt-1"}'
        async with asyncio.timeout(5):
            while not await metric(base, line):
                await asyncio.sleep(0.01)
        row = await source_row(base, "trt-1")
        assert row["connected"] is False
        assert set(sub.index()) == {key(SYSTEM)}
        server.restart()
        await server.start()
        server.tell(created())  # idle since its start
        await until(lambda: sub.index() == {})
        row = await source_row(base, "trt-1")
        assert (row["restarts"], row["connected"], row["last_seq"]) == (1, True, 0)


async def test_a_lost_connection_to_a_living_engine_purges_nothing(server):
    async with listening(server) as base, subscribed(base, "trt-1") as sub:
        server.tell(created(), stored(None, block(1, salt=salt(SYSTEM))))
        await until(lambda: key(SYSTEM) in sub.index())
        await server.stop()
        await asyncio.sleep(0.1)
        await server.start()
        server.tell(stored(1, block(2)))
        await until(lambda: sub.index() == {key(SYSTEM): (64, "hot")})
        assert sub.actions() == ["cache_created", "cache_created"]


async def test_k19_null_fields_unknown_types_repeated_ids_and_empty_lists(server):
    """User report K19: each costs itself; nothing stops the poller."""
    async with listening(server) as base, subscribed(base, "trt-1") as sub:
        first = server.tell(created(), stored(None, block(1, salt=salt(SYSTEM), priority=None)))
        await until(lambda: key(SYSTEM) in sub.index())
        server.queue.extend([*first, {}, None, {"event_id": None, "data": None}])
        server.tell(
            {"type": "evicted_somehow", "block_hashes": []},
            {"type": "stored", "parent_hash": None, "blocks": []},
            {"type": "removed", "block_hashes": []},
            {"type": "updated", "block_hash": 1, "cache_level": None, "priority": None},
            {"type": "updated", "block_hash": None, "cache_level": {"new_value": 1}},
            stored(1, block(2, mm_keys=None, cache_level=None), block(3, tokens=0)),
        )
        await until(lambda: sub.index() == {key(SYSTEM): (64, "hot")})
        for reason, count in (("duplicate", 2), ("malformed_event", 6), ("unknown_tag", 1)):
            line = f'continuum_listener_dropped_total{{reason="{reason}",source="trt-1"}}'
            assert await metric(base, line) == count
        row = await source_row(base, "trt-1")
        assert (row["gaps"], row["restarts"], row["connected"]) == (0, 0, True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [(None, "foreign_salt"), ("tenant-a", "foreign_salt"), ("other", "bad_salt")],
)
async def test_a_chain_without_a_good_salt_is_discarded_and_counted(server, given, reason):
    bad = salt(SYSTEM, backend="trt-2") if given == "other" else given
    async with listening(server) as base, subscribed(base, "trt-1") as sub:
        server.tell(created(), stored(None, block(1, salt=bad)), stored(1, block(2)))
        server.tell(stored(None, block(9, salt=salt(OTHER))))
        await until(lambda: sub.index() == {key(OTHER): (32, "hot")})
        line = f'continuum_listener_dropped_total{{reason="{reason}",source="trt-1"}}'
        assert await metric(base, line) == 2
        row = await source_row(base, "trt-1")
        assert (row["blocks"], row["tokens"], row["unattributed"]) == (1, 0, {})


async def test_o9_no_token_id_and_no_salt_leaves_the_listener(server, caplog):
    """User report O9: hashes and counts only, in records, metrics, pages and logs of any level."""
    caplog.set_level(1)
    good = salt(SYSTEM)
    async with listening(server) as base, subscribed(base, "trt-1") as sub:
        server.tell(created(), stored(None, block(1, salt=good), block(2, 7)))
        server.tell(stored(None, block(3, salt="tenant-canary")), {"type": "odd", "token": 987_654})
        server.faults.append("")
        await until(lambda: key(SYSTEM) in sub.index())
        server.faults.append("half")
        server.tell(stored(None, block(4, salt=good)))
        await until(lambda: not server.queue)
        await asyncio.sleep(0.1)
        async with aiohttp.ClientSession() as session:
            pages = [
                await (await session.get(base + path)).text() for path in ("/sources", "/metrics")
            ]
    said = "\n".join(
        [*pages, bytes(sub.raw).decode(), *(repr(record.__dict__) for record in caplog.records)]
    )
    assert len(sub.raw) > 0
    assert caplog.records
    for secret in ("987654", good, good[4:40], "tenant-canary", SECRET):
        assert secret not in said


async def test_a_tensorrt_and_a_vllm_source_in_one_listener(server):
    """What one floods the other does not feel (more in test_source_stress)."""
    zmq = {
        "backend_name": "v",
        "zmq_endpoint": f"tcp://127.0.0.1:{free_port()}",
        "engine_url": "http://127.0.0.1:9",
        "model": "m",
    }
    sources = [source(server), zmq]
    async with (
        running_listener(sources, salt_echo=ECHO, env={"SALTS": SECRET}) as base,
        subscribed(base, "trt-1") as sub,
    ):
        server.tell(created(), stored(None, block(1, salt=salt(SYSTEM))))
        await until(lambda: key(SYSTEM) in sub.index())
        assert (await source_row(base, "v"))["connected"] is False
