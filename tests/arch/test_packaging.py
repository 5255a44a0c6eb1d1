"""Units, images and manifests name programs, flags, files and keys that exist."""

import argparse
import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from continuum_kv_listener.cli import command_line as listener_line
from continuum_kv_listener.config import parse_config as parse_listener
from continuum_router.cli import command_line as router_line
from continuum_router.config.root import parse_config as parse_router
from support.listener_rig import running_listener
from support.source_tree import ROOT

DEPLOY = ROOT / "deploy"
LINES = {"continuum-router": router_line, "continuum-kv-listener": listener_line}
TOKEN = {"KV_LISTENER_TOKEN": "0123456789abcdef0123456789abcdef"}
SOURCE = {
    "backend_name": "a",
    "zmq_endpoint": "tcp://127.0.0.1:9",
    "engine_url": "http://127.0.0.1:9",
    "model": "m",
}


def parsed(program: str, words: list[str]) -> argparse.Namespace:
    """The command line as the program would read it; usage errors fail the test."""
    return LINES[program]().parse_args(words)


def unit(name: str) -> list[tuple[str, str, str]]:
    """(section, key, value) of a unit file; keys may come again."""
    rows, section = [], ""
    for line in (DEPLOY / "systemd" / f"{name}.service").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            rows.append((section, key, value))
    return rows


@pytest.mark.parametrize("program", LINES)
class TestUnit:
    def test_every_command_is_one_that_we_have(self, program):
        commands = [shlex.split(v) for _, key, v in unit(program) if key.startswith("ExecStart")]
        assert commands
        for path, *words in commands:
            assert path == f"/opt/continuum-router/bin/{program}"
            made = parsed(program, words)
            assert made.config.startswith("/etc/continuum/")

    def test_it_is_hardened(self, program):
        rows = {(key, value) for _, key, value in unit(program)}
        for key in (
            "NoNewPrivileges",
            "PrivateDevices",
            "PrivateTmp",
            "ProtectHome",
            "ProtectKernelModules",
            "RestrictNamespaces",
            "MemoryDenyWriteExecute",
        ):
            assert (key, "yes") in rows
        assert ("ProtectSystem", "strict") in rows
        assert ("CapabilityBoundingSet", "") in rows
        assert ("SystemCallFilter", "@system-service") in rows
        assert ("User", "continuum") in rows
        assert ("LimitNOFILE", "65536") in rows

    def test_the_user_is_made_by_the_file_beside_it(self, program):
        text = (DEPLOY / "systemd/continuum.sysusers.conf").read_text()
        assert re.search(r"^u continuum ", text, re.MULTILINE)

    def test_the_manual_that_it_names_exists(self, program):
        named = [value for _, key, value in unit(program) if key == "Documentation"]
        assert named == [f"man:{program}(1)"]
        assert (ROOT / "man" / f"{program}.1").exists()

    def test_there_is_time_to_drain(self, program):
        stop = {key: value for _, key, value in unit(program)}["TimeoutStopSec"]
        assert int(stop.removesuffix("s")) > (30 if program == "continuum-router" else 5)


def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """All long options of a parser and those below it, but --help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from flags(child)
        elif not isinstance(action, argparse._HelpAction):
            yield from action.option_strings


@pytest.mark.parametrize("program", LINES)
def test_the_manual_has_the_options_of_the_command(program):
    page = (ROOT / "man" / f"{program}.1").read_text().replace("\\-", "-")
    documented = set(re.findall(r"(?m)^\.B (--[a-z-]+)", page))
    assert set(flags(LINES[program]())) <= documented
    for section in ("NAME", "SYNOPSIS", "CONFIGURATION", "SIGNALS", "EXIT STATUS", "EXAMPLES"):
        assert f'.SH "{section}"' in page


@pytest.mark.parametrize("program", LINES)
def test_the_manual_has_every_key_of_the_example(program):
    page = (ROOT / "man" / f"{program}.1").read_text().replace("\\-", "-")
    name = "config.kv-listener.yaml.example"
    name = name if program == "continuum-kv-listener" else "deploy/config.router.yaml.example"
    for key in yaml.safe_load((ROOT / name).read_text()):
        assert re.search(rf"(?m)^\.B {key}\b", page), key


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each instruction of the Dockerfile, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


class TestImage:
    def test_one_target_for_each_daemon_not_as_root(self):
        stages: dict[str, list[tuple[str, str]]] = {}
        for word, rest in instructions():
            if word == "FROM":
                base, _, name = rest.partition(" AS ")
                stages[name] = list(stages.get(base, []))
            elif word != "ARG" or stages:
                stages[name].append((word, rest))
        for name, program in (("router", "continuum-router"), ("kv-listener", LISTENER)):
            words = dict(stages[name])
            assert words["USER"] == "10001:10001"
            assert words["ENTRYPOINT"] == f'["{program}"]'
            assert "HEALTHCHECK" in words
            assert parsed(program, yaml.safe_load(words["CMD"])).config

    def test_the_base_image_is_an_argument_and_no_registry_is_named(self):
        first = instructions()[0]
        assert first[0] == "ARG"
        assert first[1].startswith("BASE_IMAGE=")
        outside = [rest for word, rest in instructions() if word == "FROM"]
        assert all(rest.startswith("${BASE_IMAGE} AS ") or rest[:4] == "base" for rest in outside)

    def test_what_is_copied_exists_and_is_sent_to_the_builder(self):
        sent = {
            line[1:]
            for line in (ROOT / ".dockerignore").read_text().splitlines()
            if line.startswith("!")
        }
        for word, rest in instructions():
            if word == "COPY" and "--from" not in rest:
                for path in rest.split()[:-1]:
                    assert (ROOT / path).exists(), path
                    assert path in sent, path


LISTENER = "continuum-kv-listener"


def manifest(name: str) -> dict[str, dict]:
    """The documents of one file by kind."""
    text = (DEPLOY / "kubernetes" / f"{name}.yaml").read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.mark.parametrize(
    ("name", "program", "parse"),
    [
        ("router", "continuum-router", parse_router),
        ("kv-listener", LISTENER, parse_listener),
    ],
)
class TestManifest:
    def test_its_file_is_good(self, name, program, parse):
        (text,) = manifest(name)["ConfigMap"]["data"].values()
        config, report = parse(text, path="f", env=TOKEN)
        assert (config is not None, report.lines()) == (True, [])

    def test_its_pod_runs_our_command_without_rights(self, name, program, parse):
        pod = manifest(name)["Deployment"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        config = parsed(program, container["args"]).config
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert config in mounts
        (text,) = manifest(name)["ConfigMap"]["data"].values()
        for path in re.findall(r"/etc/continuum/[^\s}\"]+", text):
            assert any(path.startswith(mount) for mount in mounts), path
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {entry["name"] for entry in container["env"]} == set(TOKEN)

    def test_its_labels_fit_together(self, name, program, parse):
        kinds = manifest(name)
        labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert kinds["Deployment"]["spec"]["selector"]["matchLabels"] == labels
        assert kinds["Service"]["spec"]["selector"] == labels


async def health(url: str) -> int:
    script = str(DEPLOY / "container/healthcheck.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, url, env={}, stdout=subprocess.DEVNULL
    )
    return await process.wait()


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_the_health_check_of_the_image(secure):
    tls = ROOT / "tests/fixtures/tls"
    more = {"tls": {"cert": f"{tls}/listener.pem", "key": f"{tls}/listener-key.pem"}}
    async with running_listener([SOURCE], **(more if secure else {})) as base:
        url = base.replace("http:", "https:") if secure else base
        assert await health(f"{url}/health") == 0
        assert await health(f"{url}/nothing") == 1
    assert await health(f"{url}/health") == 1
