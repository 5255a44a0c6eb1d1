"""A real router in the test's own loop, on a free port, and clients that see raw bytes."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from continuum_router.config.root import Config, parse_config
from continuum_router.main import Router

CHAT = "/v1/chat/completions"
fast_path = True
"""Whether the routers of `edge_config` have the fast path; conftest runs tests both ways."""

BODY: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def edge_config(backends: Sequence[str] | str, more: str = "") -> Config:
    """A configuration on a free port; `backends` are URLs (named b1, b2, ...) or YAML text."""
    if isinstance(backends, str):
        entries = backends
    else:
        entries = "backends:\n" + "".join(
            f"- {{name: b{number}, url: '{url}', models: [m]}}\n"
            for number, url in enumerate(backends, start=1)
        )
    text = f"{entries}\n{more}\n"
    if "server:" not in text:
        text += "server: {listen: '127.0.0.1:0'}\n"
    # Scripted backends answer what a test says, probes included: only tests of probes want them.
    if "health_checks:" not in text:
        text += "health_checks: {enabled: false}\n"
    config, report = parse_config(text, path="test.yaml", env={})
    assert config is not None, str(report)
    if "fast_path" in text:
        return config
    server = config.server.model_copy(update={"fast_path": fast_path})
    return config.model_copy(update={"server": server})


@dataclass(slots=True)
class Answer:
    """What a client got. `cut`: the connection broke before the body was complete."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool = False
    pieces: list[bytes] = field(default_factory=list)

    @property
    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> dict[str, object]:
        found = self.json["error"]
        assert isinstance(found, dict)
        return found


@dataclass(slots=True)
class Edge:
    """A running router and a client session."""

    router: Router
    session: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return self.router.address.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def post(
        self,
        body: object = None,
        *,
        path: str = CHAT,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """Send one request and read everything that comes back."""
        data = json.dumps(BODY if body is None else body).encode() if raw is None else raw
        sent = {"Content-Type": "application/json", **(headers or {})}
        source = io.BytesIO(data) if len(data) > 1_000_000 else data
        async with self.session.post(self.url + path, data=source, headers=sent) as response:
            return await read_answer(response)

    async def get(self, path: str) -> Answer:
        async with self.session.get(self.url + path) as response:
            return await read_answer(response)

    async def stream(self, **more: object) -> Answer:
        return await self.post({**BODY, "stream": True, **more})

    def sample(self, name: str, **labels: str) -> float:
        """One metric sample as a scrape would read it; 0 when there is no such series."""
        text = self.router.state.metrics.exposition().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return 0.0

    def in_flight(self) -> int:
        return sum(self.router.state.dispatch.fleet.loads.values())

    async def settled(self, seconds: float = 2.0) -> None:
        """Wait until no request is being worked on."""
        async with asyncio.timeout(seconds):
            await self.router.state.active.wait_none()


async def read_answer(response: aiohttp.ClientResponse) -> Answer:
    pieces: list[bytes] = []
    cut = False
    try:
        async for piece in response.content.iter_any():
            pieces.append(piece)
    except aiohttp.ClientPayloadError:
        cut = True
    return Answer(response.status, response.headers, b"".join(pieces), cut, pieces)


@contextlib.asynccontextmanager
async def running(config: Config) -> AsyncIterator[Edge]:
    """Start a router, give it with a session, stop it."""
    router = Router(config)
    await router.start()
    try:
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            yield Edge(router, session)
    finally:
        await router.stop()


async def raw_exchange(
    port: int, data: bytes, *, eof: bool = False, patience: float = 0.5
) -> bytes:
    """Send bytes as they are; return everything until the server closes or is silent for 0.5 s.

    `patience` is how many seconds the first bytes may take: more for a large body.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if eof:
            writer.write_eof()
        got = bytearray()
        with contextlib.suppress(TimeoutError, ConnectionError):
            while True:
                async with asyncio.timeout(0.5 if got else patience):
                    piece = await reader.read(65536)
                if not piece:
                    break
                got += piece
        return bytes(got)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
