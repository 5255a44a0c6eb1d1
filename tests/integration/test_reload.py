"""Reload under load: nobody notices, whatever is in the file (O7, R10; decisions H4)."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp

import support.edge
from continuum_router.config.root import load_config
from continuum_router.config_watch import digest_of
from continuum_router.main import ConfigFile, Router
from continuum_router.reload import Trigger
from continuum_router.reload_report import Result
from support.edge import BODY, CHAT, Edge, edge_config, read_answer
from support.scripted_backend import Peer, scripted

OWN_FILE = edge_config
"""These routers read files of their own; the name makes the tests run both ways in."""


async def chats(peer: Peer) -> None:
    while await peer.request() is not None:
        await asyncio.sleep(0.002)
        body = b'{"object":"chat.completion","choices":[]}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        await peer.send(head % len(body) + body)


def text(urls: list[str], *, more: str = "") -> str:
    rows = "".join(f"- {{name: b{n}, url: '{url}', models: [m]}}\n" for n, url in enumerate(urls))
    return (
        f"server: {{listen: '127.0.0.1:0', fast_path: {str(support.edge.fast_path).lower()}}}\n"
        f"backends:\n{rows}health_checks: {{enabled: false}}\n{more}"
    )


@contextlib.asynccontextmanager
async def from_file(path: Path) -> AsyncIterator[Edge]:
    def read():  # type: ignore[no-untyped-def]
        return load_config(str(path), {})

    config, _ = read()
    router = Router(config, ConfigFile(path=path, digest=digest_of(path), read=read))
    await router.start()
    try:
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            yield Edge(router, session)
    finally:
        await router.stop()


class Load:
    """Clients that ask one chat after another; every status and every failure is kept."""

    def __init__(self, edge: Edge, clients: int = 6) -> None:
        self.statuses: list[int] = []
        self.failed: list[str] = []
        self._edge = edge
        self._clients = clients
        self._stop = False

    async def __aenter__(self) -> "Load":
        self._tasks = [
            asyncio.get_running_loop().create_task(self._run()) for _ in range(self._clients)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def _run(self) -> None:
        while not self._stop:
            try:
                self.statuses.append((await self._edge.post(BODY)).status)
            except aiohttp.ClientError as err:
                self.failed.append(type(err).__name__)


async def test_o7_a_hundred_reloads_under_load(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    async with scripted(chats) as one, scripted(chats) as two, scripted(chats) as three:
        good = [
            text([one.url, two.url]),
            text([two.url, three.url], more="retry: {max_attempts: 5}\n"),
            text([three.url, one.url], more="selection_strategy: LeastLatency\n"),
            text(
                [one.url],
                more="selection_strategy: PrefixAwareHash\nprefix_routing: {enabled: true}\n",
            ),
        ]
        bad = ["{ this is: [not yaml", text(["no url"]), good[0][: len(good[0]) // 2] + "\n- {", ""]
        path.write_text(good[0])
        async with from_file(path) as edge:
            results = []
            async with Load(edge) as load:
                for number in range(100):
                    spoilt = number % 4 == 3
                    path.write_text(bad[number // 4 % 4] if spoilt else good[number % 4])
                    report = await edge.router.reloader.reload(Trigger.ADMIN)
                    results.append(report.result)
                    success = edge.sample("continuum_config_last_reload_success")
                    assert success == float(not spoilt), report
                    await asyncio.sleep(0.01)
            assert results.count(Result.APPLIED) == 75
            assert results.count(Result.INVALID) == 25
            assert load.failed == []
            assert set(load.statuses) == {200}
            assert len(load.statuses) > 100
            assert edge.in_flight() == 0
            tasks = edge.router.state.supervisor.names()
            assert tasks == ["model-list", "config-watch"], "no task is left behind"


async def test_a_stream_under_way_goes_on_with_what_it_began(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def streams(peer: Peer) -> None:
        await peer.request()
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            b'data: {"choices":[]}\n\n'
        )
        await release.wait()
        await peer.send(b"data: [DONE]\n\n")
        peer.close()

    path = tmp_path / "r.yaml"
    async with scripted(streams) as old, scripted(chats) as new:
        path.write_text(text([old.url]))
        async with from_file(path) as edge:
            async with edge.session.post(
                edge.url + CHAT, json={**BODY, "stream": True}
            ) as under_way:
                assert under_way.status == 200
                await under_way.content.readany()
                path.write_text(text([new.url]).replace("b0", "n0"))
                report = await edge.router.reloader.reload(Trigger.ADMIN)
                assert report.applied == ("backends.b0", "backends.n0")
                assert (await edge.post(BODY)).headers["x-continuum-backend"] == "n0"
                release.set()
                assert (await read_answer(under_way)).body.endswith(b"data: [DONE]\n\n")
            await edge.settled()
            assert dict(edge.router.state.dispatch.fleet.loads) == {"n0": 0}


async def test_r10_a_removed_backend_gets_no_new_request(tmp_path: Path) -> None:
    """Its host blackholes: those under way end by their own time, nobody else goes there."""

    async def blackhole(peer: Peer) -> None:
        await peer.request()
        await peer.until_client_leaves()

    path = tmp_path / "r.yaml"
    limits = "timeouts: {request: {standard: {total: 400ms}}}\nretry: {max_attempts: 1}\n"
    async with scripted(blackhole) as dead, scripted(chats) as alive:
        path.write_text(text([dead.url, alive.url], more=limits))
        async with from_file(path) as edge:
            first = [edge.post(BODY) for _ in range(4)]
            waiting = asyncio.gather(*first)
            async with asyncio.timeout(2):
                while len(dead.requests) < 2:
                    await asyncio.sleep(0.005)
            path.write_text(text([alive.url], more=limits).replace("b0", "b1"))
            await edge.router.reloader.reload(Trigger.ADMIN)
            for _ in range(10):
                assert (await edge.post(BODY)).headers["x-continuum-backend"] == "b1"
            assert sorted(answer.status for answer in await waiting) == [200, 200, 504, 504]
            assert len(dead.requests) == 2


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(8):
        while not what():
            await asyncio.sleep(0.02)


def reloads(edge: Edge, result: str) -> float:
    return edge.sample("continuum_config_reloads_total", result=result)


async def test_a_swapped_link_is_noticed_and_a_bad_one_is_survived(tmp_path: Path) -> None:
    async with scripted(chats) as one, scripted(chats) as two:
        versions = {
            "v1": text([one.url]),
            "v2": "nonsense: [",
            "v3": text([two.url], more="retry: {max_attempts: 9}\n"),
        }
        for name, content in versions.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "r.yaml").write_text(content)
        path = tmp_path / "r.yaml"
        (tmp_path / "..data").symlink_to("v1")
        path.symlink_to("..data/r.yaml")

        def swap(name: str) -> None:
            (tmp_path / "next").symlink_to(name)
            (tmp_path / "next").replace(tmp_path / "..data")

        async with from_file(path) as edge:
            swap("v2")
            await until(lambda: reloads(edge, "invalid") == 1)
            assert (await edge.post(BODY)).status == 200
            assert edge.sample("continuum_config_last_reload_success") == 0
            swap("v3")
            await until(lambda: reloads(edge, "applied") == 1)
            assert edge.router.runtime.current.dispatcher.retry.max_attempts == 9
            assert edge.sample("continuum_config_last_reload_success") == 1


async def test_sighup_reloads_the_process(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text(["http://127.0.0.1:1"]).replace("listen", "watch_config: false, listen"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "continuum_router.cli", "serve", "--config", str(path)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ},
    )
    assert process.stdout is not None

    async def line(message: str) -> dict[str, object]:
        async with asyncio.timeout(20):
            while True:
                found = json.loads(await process.stdout.readline())["fields"]  # type: ignore
                if found["message"] == message:
                    return found

    try:
        await line("Router started")
        path.write_text(path.read_text() + "retry: {max_attempts: 2}\n")
        process.send_signal(signal.SIGHUP)
        told = await line("Configuration reloaded")
        assert (told["trigger"], told["applied"]) == ("signal", ["retry.max_attempts"])
        process.terminate()
        assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
