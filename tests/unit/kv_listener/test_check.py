"""``--check``: each endpoint is tried once; the table says what to do."""

import asyncio
import io

import pytest
import yaml

from continuum_kv_listener.check import CheckTimes, check, try_all
from continuum_kv_listener.check_serving import SELF
from continuum_kv_listener.check_table import Outcome
from continuum_kv_listener.config import ListenerConfig, parse_config
from support.kv_publisher import KvPublisher, free_port
from support.tiny_engine import TinyEngine, serving
from support.trtllm_server import created, trtllm_server

QUICK = CheckTimes(connect=0.4, replay=0.3, http=2.0)


def config(**source: object) -> ListenerConfig:
    text = yaml.safe_dump(
        {
            "listen": "127.0.0.1:0",
            "sources": [{"backend_name": "vllm-1", "model": "tiny-chat", **source}],
        }
    )
    made, report = parse_config(text, path="f", env={})
    assert made is not None, str(report)
    return made


@pytest.fixture
async def engine():
    made = TinyEngine()
    async with serving(made):
        yield made


@pytest.fixture
def publisher():
    made = KvPublisher()
    yield made
    made.close()


async def tried(checked: ListenerConfig, times: CheckTimes) -> list[Outcome]:
    """The rows of the sources; those of the listener itself come first and have a test file."""
    outcomes = await try_all(checked, times)
    assert outcomes[0].source == SELF
    return [outcome for outcome in outcomes if outcome.source != SELF]


def results(outcomes: list[Outcome]) -> list[tuple[str, bool | None]]:
    return [(outcome.what, outcome.good) for outcome in outcomes]


async def test_everything_answers(engine, publisher):
    checked = config(
        zmq_endpoint=publisher.endpoint,
        zmq_replay_endpoint=publisher.replay_endpoint,
        engine_url=engine.url,
    )
    assert results(await tried(checked, QUICK)) == [
        ("events (connect)", True),
        ("replay", True),
        ("health", True),
        ("detokenize", True),
        ("template", True),
    ]


async def test_every_rank_is_tried(engine, publisher):
    port = int(publisher.endpoint.rpartition(":")[2])
    dead = next(each for each in iter(free_port, None) if abs(each - port) > 2)
    checked = config(
        zmq_endpoint=publisher.endpoint,
        zmq_replay_endpoint=f"tcp://127.0.0.1:{dead}",
        engine_url=engine.url,
        dp_size=2,
    )
    rows = {(o.what, o.endpoint): o.good for o in await tried(checked, QUICK)}
    assert rows["events (connect) rank 0", f"tcp://127.0.0.1:{port}"] is True
    assert ("events (connect) rank 1", f"tcp://127.0.0.1:{port + 1}") in rows
    assert rows["replay rank 0", f"tcp://127.0.0.1:{dead}"] is False
    assert rows["replay rank 1", f"tcp://127.0.0.1:{dead + 1}"] is False


async def test_ranks_that_connect_one_after_the_other(engine):
    port = next(each for each in iter(free_port, None) if each < 65_000)
    checked = config(
        zmq_endpoint=f"tcp://127.0.0.1:{port}", zmq_mode="bind", dp_size=2, engine_url=engine.url
    )
    first = KvPublisher(connect_to=f"tcp://127.0.0.1:{port}", replay=False)
    try:
        trying = asyncio.create_task(tried(checked, CheckTimes(connect=2.0, replay=0.3, http=2.0)))
        await asyncio.sleep(0.5)
        second = KvPublisher(connect_to=f"tcp://127.0.0.1:{port + 1}", replay=False)
        try:
            outcomes = await trying
        finally:
            second.close()
    finally:
        first.close()
    assert results(outcomes)[:2] == [
        ("events (bind) rank 0", True),
        ("events (bind) rank 1", True),
    ]


async def test_nothing_answers():
    dead = f"127.0.0.1:{free_port()}"
    checked = config(
        zmq_endpoint=f"tcp://{dead}",
        zmq_replay_endpoint=f"tcp://{dead}",
        engine_url=f"http://{dead}",
    )
    outcomes = await tried(checked, QUICK)
    assert results(outcomes) == [
        ("events (connect)", False),
        ("replay", False),
        ("health", False),
        ("detokenize", False),
        ("template", False),
    ]
    assert outcomes[0].note == (
        "connection refused: is the engine up with KV events on? If its endpoint names this host, "
        "it connects: set zmq_mode: bind"
    )
    assert outcomes[1].note == (
        "no_answer: is replay_endpoint in the engine's KV events configuration, and is its port "
        "open to this machine?"
    )
    assert outcomes[2].note == "no answer: is the engine up, and engine_url right?"
    assert outcomes[3].note == ("/detokenize: unreachable: is the engine up, and engine_url right?")


async def test_both_ends_bind(engine, publisher):
    checked = config(zmq_endpoint=publisher.endpoint, zmq_mode="bind", engine_url=engine.url)
    first = (await tried(checked, QUICK))[0]
    assert first.good is False
    assert first.note == (
        "Address already in use: does the engine bind it too? Then set zmq_mode: connect"
    )


async def test_nobody_has_connected_yet_is_no_failure(engine):
    checked = config(
        zmq_endpoint=f"tcp://127.0.0.1:{free_port()}", zmq_mode="bind", engine_url=engine.url
    )
    first = (await tried(checked, QUICK))[0]
    assert first.good is None
    assert first.note == "listening, but no engine connected while we waited"


async def test_an_engine_that_connects(engine):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    publisher = KvPublisher(connect_to=endpoint, replay=False)
    try:
        checked = config(zmq_endpoint=endpoint, zmq_mode="bind", engine_url=engine.url)
        assert (await tried(checked, CheckTimes(connect=5)))[0].good is True
    finally:
        publisher.close()


async def test_a_refused_publisher(engine):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    publisher = KvPublisher(connect_to=endpoint, replay=False)
    try:
        checked = config(
            zmq_endpoint=endpoint,
            zmq_mode="bind",
            engine_url=engine.url,
            allowed_publishers=["10.0.0.0/8"],
        )
        first = (await tried(checked, QUICK))[0]
        assert first.good is False
        assert first.note == "refused a publisher at 127.0.0.1: add it to allowed_publishers"
    finally:
        publisher.close()


async def test_a_wrong_model_name_shows(engine, publisher):
    checked = config(zmq_endpoint=publisher.endpoint, engine_url=engine.url, model="other")
    outcomes = await tried(checked, QUICK)
    assert results(outcomes)[2:] == [("detokenize", False), ("template", False)]
    assert outcomes[2].note == (
        "/detokenize: unsupported (404): is `model` a name that the engine serves, and its "
        "version recent?"
    )


async def test_a_named_format_is_not_probed(engine, publisher):
    checked = config(zmq_endpoint=publisher.endpoint, engine_url=engine.url, prompt_format="chatml")
    assert [outcome.what for outcome in await tried(checked, QUICK)] == [
        "events (connect)",
        "health",
        "detokenize",
    ]


async def test_a_tensorrt_source_is_looked_at_and_not_drained():
    async with trtllm_server() as server:
        server.tell(created())
        urls = [server.url, server.url.replace("kv_cache_events", "nowhere")]
        urls.append(f"http://127.0.0.1:{free_port()}/kv_cache_events")
        seen = []
        for url in urls:
            found = await try_all(config(engine="trtllm", trtllm_endpoint=url), QUICK)
            (outcome,) = [each for each in found if each.what == "events (poll)"]
            assert outcome.endpoint == url
            seen.append((outcome.good, outcome.note))
        assert seen == [
            (True, "events not read: an answer would drain them"),
            (False, "refused (404)"),
            (False, "unreachable"),
        ]
        assert len(server.queue) == 1


def test_the_command_prints_the_table_and_what_is_next():
    dead = f"127.0.0.1:{free_port()}"
    checked = config(zmq_endpoint=f"tcp://{dead}", engine_url=f"http://{dead}")
    out = io.StringIO()
    assert check(checked, out=out, times=QUICK) == 1
    lines = out.getvalue().splitlines()
    assert lines[0].split() == ["SOURCE", "WHAT", "ENDPOINT", "RESULT"]
    assert lines[-1] == (
        "1 ok, 4 failed, 0 not tried. Next: what FAILED, from the top; rows below may fail "
        "because of it."
    )
