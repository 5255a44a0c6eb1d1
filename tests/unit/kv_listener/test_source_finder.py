"""A source that is asked for until it is found."""

import asyncio

import pytest

from continuum_kv_listener.config import SourceConfig, parse_config
from continuum_kv_listener.discovery import DiscoveryError, DiscoveryFault, read_answer
from continuum_kv_listener.source_finder import SourceFinder
from continuum_kv_listener.sources.publisher_acl import UnresolvedPublisher
from continuum_kv_listener.sources_page import row
from continuum_shared.backoff import Backoff
from support.virtual_time import now, on_virtual_time

LISTING = read_answer(b'{"0": {"endpoint": "tcp://*:5557"}}')


def source() -> SourceConfig:
    text = "sources:\n- {backend_name: a, model: m, discover: 'http://127.0.0.1:8000/kv_event_sources'}"
    config, report = parse_config(text, path="l.yaml", env={})
    assert config is not None, str(report)
    return config.sources[0]


class Engine:
    """Answers what it is given, in turn."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    async def __call__(self, _url: object):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def finder(engine: Engine) -> SourceFinder:
    loop = asyncio.get_running_loop()
    return SourceFinder(source(), engine, clock=loop.time, backoff=Backoff(2.0, 8.0))


@on_virtual_time
async def test_it_is_asked_for_until_it_is_found():
    absent = DiscoveryError(DiscoveryFault.UNREACHABLE)
    disabled = DiscoveryError(DiscoveryFault.DISABLED)
    made = finder(Engine(absent, disabled, disabled, LISTING))
    found = await made.find()
    assert str(found.source.zmq_endpoint) == "tcp://127.0.0.1:5557"
    assert 3.0 <= now() <= 14.0
    assert made.problem == DiscoveryFault.DISABLED.value


@on_virtual_time
async def test_a_publisher_without_an_address_is_tried_again():
    made = finder(Engine(LISTING, LISTING))
    tries: list[SourceConfig] = []

    async def build(found: SourceConfig, notes: tuple[str, ...]) -> str:
        tries.append(found)
        if len(tries) == 1:
            raise UnresolvedPublisher("engine.invalid")
        return f"{found.backend_name} {notes}"

    assert await made.run(build) == "a ()"
    assert "engine.invalid" in made.problem


@on_virtual_time
async def test_its_row_says_why_it_is_not_there():
    made = finder(Engine())
    said = row(made.facts())
    assert (said["backend_name"], said["connected"], said["prefixes"]) == ("a", False, 0)
    assert said["warnings"] == [
        "http://127.0.0.1:8000/kv_event_sources does not tell where events are published: it does "
        "not answer"
    ]


def test_a_source_without_a_url_has_no_finder():
    with pytest.raises(ValueError, match="discover"):
        SourceFinder(
            source().model_copy(update={"discover": None}),
            Engine(),
            clock=lambda: 0.0,
            backoff=Backoff(1.0, 2.0),
        )
