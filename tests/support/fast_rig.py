"""One client connection of the fast path and its backends' connections, on transports in memory."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from continuum_router.api.edge_protocol import EdgeProtocol
from continuum_router.config.root import parse_config
from continuum_router.main import Router
from continuum_router.upstream.connection import Connection

BACKENDS = """
backends:
- {name: b1, url: "http://127.0.0.1:1", models: [m]}
- {name: b2, url: "http://127.0.0.1:2", models: [m]}
"""
CONFIG = """
{backends}
server: {{listen: "127.0.0.1:0"}}
selection_strategy: PrefixAwareHash
prefix_routing: {{enabled: true}}
{more}
"""
FOR_EVER = 1e18


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closed = False
        self.paused = False

    def take(self) -> bytes:
        """Everything written since the last time."""
        data = b"".join(self.pieces)
        self.pieces.clear()
        return data

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 9) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        self.closed = True

    close = abort


@dataclass(slots=True)
class FastRig:
    """`client` is what aiohttp's server made, `wire` its transport; `backends` by name."""

    router: Router
    client: EdgeProtocol
    wire: Wire = field(default_factory=Wire)
    backends: dict[str, tuple[Connection, Wire]] = field(default_factory=dict)

    def ask(self, data: bytes) -> Connection:
        """Let the client send a request; gives the connection on which it goes on."""
        self.client.data_received(data)
        return self.asked()

    def asked(self) -> Connection:
        """The backend connection that has been written to."""
        found = [connection for connection, wire in self.backends.values() if wire.pieces]
        assert len(found) == 1, "one backend was to be asked"
        return found[0]

    def sent(self) -> bytes:
        """What the backends have been sent since the last time."""
        return b"".join(wire.take() for _, wire in self.backends.values())

    @property
    def active(self) -> int:
        return self.router.state.active.now

    @property
    def in_flight(self) -> int:
        return sum(self.router.state.dispatch.fleet.loads.values())


@contextlib.asynccontextmanager
async def fast_rig(
    more: str = "", *, kept: bool = True, backends: str = BACKENDS
) -> AsyncIterator[FastRig]:
    """A rig; `kept`: each backend has a kept connection, else the fast path finds none."""
    text = CONFIG.format(more=more, backends=backends)
    config, report = parse_config(text, path="rig.yaml", env={})
    assert config is not None, str(report)
    router = Router(config)
    await router._runner.setup()
    rig = FastRig(router, router._server())
    for backend in router.runtime.current.dispatcher.pool.backends if kept else ():
        lane = router.state.upstream._lane(backend)
        lane._idle_limit = FOR_EVER
        connection, wire = Connection(lane, router.state.upstream._heads), Wire()
        connection.connection_made(wire)
        connection.idle_until = FOR_EVER
        lane.conns.add(connection)
        lane.idle.append(connection)
        rig.backends[backend.name] = connection, wire
    rig.client.connection_made(rig.wire)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        yield rig
    finally:
        await router.stop()
        rig.client.connection_lost(None)
        await asyncio.sleep(0)


def chat(*, stream: bool = False, model: str = "m", headers: tuple[str, ...] = ()) -> bytes:
    """An ordinary chat request."""
    messages = [{"role": "system", "content": "s" * 900}, {"role": "user", "content": "q" * 900}]
    raw = json.dumps({"model": model, "messages": messages, "stream": stream}).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: 127.0.0.1:8080",
        "User-Agent: rig",
        "Accept: */*",
        "Content-Type: application/json",
        "Authorization: Bearer sk-1",
        *headers,
        f"Content-Length: {len(raw)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + raw
