"""``--check``: each endpoint is tried once; the table says what to do."""

import pytest
import yaml

from continuum_kv_listener.check import CheckTimes, Outcome, table, try_all
from continuum_kv_listener.config import ListenerConfig, parse_config
from support.kv_publisher import KvPublisher, free_port
from support.tiny_engine import TinyEngine, serving
from support.trtllm_server import created, trtllm_server

QUICK = CheckTimes(connect=0.4, replay=0.3, http=2.0)


def config(**source: object) -> ListenerConfig:
    text = yaml.safe_dump({"sources": [{"backend_name": "vllm-1", "model": "tiny-chat", **source}]})
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


def results(outcomes: list[Outcome]) -> list[tuple[str, bool | None]]:
    return [(outcome.what, outcome.good) for outcome in outcomes]


async def test_everything_answers(engine, publisher):
    checked = config(
        zmq_endpoint=publisher.endpoint,
        zmq_replay_endpoint=publisher.replay_endpoint,
        engine_url=engine.url,
    )
    assert results(await try_all(checked, QUICK)) == [
        ("events (connect)", True),
        ("replay", True),
        ("health", True),
        ("detokenize", True),
        ("template", True),
    ]


async def test_nothing_answers():
    dead = f"127.0.0.1:{free_port()}"
    checked = config(
        zmq_endpoint=f"tcp://{dead}",
        zmq_replay_endpoint=f"tcp://{dead}",
        engine_url=f"http://{dead}",
    )
    outcomes = await try_all(checked, QUICK)
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
    assert outcomes[1].note == "no_answer"
    assert outcomes[3].note == "/detokenize: unreachable"


async def test_both_ends_bind(engine, publisher):
    checked = config(zmq_endpoint=publisher.endpoint, zmq_mode="bind", engine_url=engine.url)
    first = (await try_all(checked, QUICK))[0]
    assert first.good is False
    assert first.note == (
        "Address already in use: does the engine bind it too? Then set zmq_mode: connect"
    )


async def test_nobody_has_connected_yet_is_no_failure(engine):
    checked = config(
        zmq_endpoint=f"tcp://127.0.0.1:{free_port()}", zmq_mode="bind", engine_url=engine.url
    )
    first = (await try_all(checked, QUICK))[0]
    assert first.good is None
    assert first.note == "listening, but no engine connected while we waited"


async def test_an_engine_that_connects(engine):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    publisher = KvPublisher(connect_to=endpoint, replay=False)
    try:
        checked = config(zmq_endpoint=endpoint, zmq_mode="bind", engine_url=engine.url)
        assert (await try_all(checked, CheckTimes(connect=5)))[0].good is True
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
        first = (await try_all(checked, QUICK))[0]
        assert first.good is False
        assert first.note == "refused a publisher at 127.0.0.1: add it to allowed_publishers"
    finally:
        publisher.close()


async def test_a_wrong_model_name_shows(engine, publisher):
    checked = config(zmq_endpoint=publisher.endpoint, engine_url=engine.url, model="other")
    outcomes = await try_all(checked, QUICK)
    assert results(outcomes)[2:] == [("detokenize", False), ("template", False)]
    assert outcomes[2].note == "/detokenize: unsupported (404)"


async def test_a_named_format_is_not_probed(engine, publisher):
    checked = config(zmq_endpoint=publisher.endpoint, engine_url=engine.url, prompt_format="chatml")
    assert [outcome.what for outcome in await try_all(checked, QUICK)] == [
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
            (outcome,) = await try_all(config(engine="trtllm", trtllm_endpoint=url), QUICK)
            assert (outcome.what, outcome.endpoint) == ("events (poll)", url)
            seen.append((outcome.good, outcome.note))
        assert seen == [
            (True, "events not read: an answer would drain them"),
            (False, "refused (404)"),
            (False, "unreachable"),
        ]
        assert len(server.queue) == 1


def test_the_table():
    rows = [
        Outcome(source="vllm-1", what="replay", endpoint="tcp://h:1", good=True),
        Outcome(source="b", what="health", endpoint="http://h", good=False, note="why"),
        Outcome(source="c", what="events (bind)", endpoint="tcp://*:5", good=None),
    ]
    assert table(rows) == (
        "SOURCE  WHAT           ENDPOINT   RESULT\n"
        "vllm-1  replay         tcp://h:1  ok\n"
        "b       health         http://h   FAILED  why\n"
        "c       events (bind)  tcp://*:5  -"
    )
