"""One reload after another: what changes, what stays, what is refused (decisions H4, J9)."""

import asyncio

import pytest

from continuum_router.config.root import Config
from continuum_router.main import ConfigFile, Router
from continuum_router.reload import Trigger
from continuum_router.reload_report import Result
from continuum_shared.config.report import ConfigError, Problem, Report, Severity
from support.edge import edge_config

BASE = ["http://127.0.0.1:1", "http://127.0.0.1:2"]


class Source:
    """What the file says at the moment."""

    def __init__(self, config: Config) -> None:
        self.config: Config | None = config
        self.warnings: tuple[Problem, ...] = ()

    def read(self) -> tuple[Config, Report]:
        if self.config is None:
            report = Report("r.yaml", problems=(problem(Severity.ERROR),))
            raise ConfigError(report)
        return self.config, Report("r.yaml", problems=self.warnings)


def problem(severity: Severity) -> Problem:
    return Problem(severity=severity, path="x", line=3, message="is odd", hint="mend it")


@pytest.fixture
async def scene(tmp_path):  # type: ignore[no-untyped-def]
    source = Source(edge_config(BASE))
    made = Router(
        source.config, ConfigFile(path=tmp_path / "r.yaml", digest=None, read=source.read)
    )
    await made.start()
    yield made, source
    await made.stop()


async def test_a_hot_key_is_in_force_and_the_generation_grows(scene) -> None:  # type: ignore[no-untyped-def]
    router, source = scene
    source.config = edge_config(BASE, "retry: {max_attempts: 7}")
    source.warnings = (problem(Severity.WARNING),)
    report = await router.reloader.reload(Trigger.ADMIN)
    assert (report.result, report.applied) == (Result.APPLIED, ("retry.max_attempts",))
    assert report.warnings == ("r.yaml:3: warning: x: is odd; mend it",)
    assert router.runtime.current.dispatcher.retry.max_attempts == 7
    assert router.runtime.current.generation == 2


async def test_a_key_that_needs_a_restart_is_told_and_stays(scene) -> None:  # type: ignore[no-untyped-def]
    router, source = scene
    source.config = edge_config(
        BASE, "server: {listen: '127.0.0.1:0', max_body_bytes: 2MiB}\nretry: {jitter: false}"
    )
    report = await router.reloader.reload(Trigger.SIGNAL)
    assert report.requires_restart == ("server.max_body_bytes",)
    assert report.applied == ("retry.jitter",)
    assert router.runtime.current.max_body_bytes == 64 << 20
    # It is told again as long as the file and the process differ.
    again = await router.reloader.reload(Trigger.SIGNAL)
    assert (again.requires_restart, again.applied) == (("server.max_body_bytes",), ())


async def test_a_frozen_key_refuses_the_whole_candidate(scene) -> None:  # type: ignore[no-untyped-def]
    router, source = scene
    source.config = edge_config(
        BASE, "timeouts: {limits: {max_standard_timeout: 900s}}\nretry: {max_attempts: 7}"
    )
    report = await router.reloader.reload(Trigger.FILE)
    assert (report.result, report.applied) == (Result.REFUSED, ())
    assert report.refused == ("timeouts.limits.max_standard_timeout",)
    assert router.runtime.current.dispatcher.retry.max_attempts == 3
    assert router.runtime.current.generation == 1


async def test_a_bad_file_changes_nothing_and_says_where(scene) -> None:  # type: ignore[no-untyped-def]
    router, source = scene
    source.config = None
    report = await router.reloader.reload(Trigger.FILE)
    assert (report.result, report.problems) == (
        Result.INVALID,
        ("r.yaml:3: x: is odd; mend it",),
    )
    assert router.runtime.current.generation == 1


async def test_a_certificate_that_cannot_be_read_is_a_problem_of_the_candidate(scene) -> None:  # type: ignore[no-untyped-def]
    router, source = scene
    source.config = edge_config(
        "backends: [{name: b1, url: 'https://h', tls: {ca_file: /nowhere.pem}}]"
    )
    report = await router.reloader.reload(Trigger.FILE)
    assert report.result is Result.INVALID
    assert report.problems == ("tls.ca_file: no such file or directory (backend b1)",)
    assert router.runtime.current.generation == 1


async def test_without_a_file_there_is_nothing_to_reload() -> None:
    router = Router(edge_config(BASE))
    await router.start()
    report = await router.reloader.reload(Trigger.SIGNAL)
    assert report.result is Result.INVALID
    assert report.problems == ("the router was started without a file; there is nothing to reload",)
    await router.stop()


async def test_state_follows_the_backends_by_name(scene) -> None:  # type: ignore[no-untyped-def]
    router, source = scene
    fleet = router.state.dispatch.fleet
    fleet.observe_latency("b1", 0.5)
    held = fleet.lease("b2").begin()
    source.config = edge_config(
        "backends: [{name: b1, url: 'http://127.0.0.1:9'}, {name: b3, url: 'http://127.0.0.1:3'}]"
    )
    report = await router.reloader.reload(Trigger.ADMIN)
    assert set(report.applied) == {
        "backends.b1.url",
        "backends.b1.models",
        "backends.b2",
        "backends.b3",
    }
    assert fleet.latency("b1") == 0.5
    assert fleet.conditions.names() == ("b1", "b3")
    assert dict(fleet.loads) == {"b1": 0, "b2": 1, "b3": 0}
    held.end()
    assert dict(fleet.loads) == {"b1": 0, "b3": 0}


async def test_reloads_take_turns(scene) -> None:  # type: ignore[no-untyped-def]
    router, source = scene
    source.config = edge_config(BASE, "retry: {max_attempts: 7}")
    reports = await asyncio.gather(*(router.reloader.reload(Trigger.ADMIN) for _ in range(5)))
    assert [report.applied for report in reports] == [("retry.max_attempts",), (), (), (), ()]
    assert router.runtime.current.generation == 6
