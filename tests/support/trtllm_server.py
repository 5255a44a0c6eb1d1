"""A real HTTP server that plays trtllm-serve's ``/kv_cache_events`` (wire/README.md).

Events queue up as the engine makes them; an answer drains them. Faults can be asked for, each for
the next request only: what they take with them is gone, as it is with the real engine.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

Event = dict[str, Any]


def block(
    block_hash: object, tokens: int = 32, *, salt: object = None, level: int = 0, **more: object
) -> Event:
    """One stored block; token ids are a mark that may appear nowhere."""
    made: Event = {
        "type": "stored_block",
        "block_hash": block_hash,
        "cache_level": level,
        "priority": 35,
        "mm_keys": [],
        "tokens": [
            {"type": "unique_token", "token_id": 987_654, "token_extra_id": 0}
            for _ in range(tokens)
        ],
    }
    if salt is not None:
        made["cache_salt"] = salt
    return made | more


def created() -> Event:
    """The first event of an engine."""
    return {"type": "created", "num_blocks_per_cache_level": [1024, 256]}


def stored(parent: object, *blocks: Event) -> Event:
    """Blocks that hang below ``parent`` (None: a prompt's start) and each other."""
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


def removed(*hashes: object) -> Event:
    """Blocks that are gone."""
    return {"type": "removed", "block_hashes": list(hashes)}


def updated(block_hash: object, new: object, old: object = None) -> Event:
    """A block that went to another level."""
    return {
        "type": "updated",
        "block_hash": block_hash,
        "cache_level": {"type": "event_diff", "new_value": new, "old_value": old},
        "priority": None,
    }


class TrtllmServer:
    """``tell`` events, and see what becomes of them. ``numbers`` counts per rank."""

    def __init__(self, port: int = 0) -> None:
        self.queue: list[object] = []
        self.numbers: dict[int, int] = {}
        self.requests: list[tuple[str, bytes]] = []
        self.accepts: str = "POST"
        self.faults: list[str] = []
        self.location = ""
        self.elsewhere = 0
        self.open_readers = 0
        self.most_readers = 0
        self.port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """What ``trtllm_endpoint`` says."""
        return f"http://127.0.0.1:{self.port}/kv_cache_events"

    def tell(
        self, *datas: Event, rank: int | None = None, window: int = 4096, lose: bool = False
    ) -> list[Event]:
        """Queue events with the next numbers; with ``lose`` the engine's buffer drops them."""
        elements: list[Event] = []
        for data in datas:
            number = self.numbers.get(rank or 0, 0)
            self.numbers[rank or 0] = number + 1
            element: Event = {"event_id": number, "window_size": window, "data": data}
            if rank is not None:
                element["attention_dp_rank"] = rank
            elements.append(element)
        if not lose:
            self.queue.extend(elements)
        return elements

    def restart(self) -> None:
        """A new process: nothing queued, numbers from 0 on."""
        self.queue.clear()
        self.numbers.clear()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The handler of the events' path."""
        self.open_readers += 1
        self.most_readers = max(self.most_readers, self.open_readers)
        try:
            return await self._answer(request)
        finally:
            self.open_readers -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, await request.read()))
        if request.method != self.accepts:
            return web.Response(status=405)
        fault = self.faults.pop(0) if self.faults else ""
        if fault in ("500", "404"):
            return web.Response(status=int(fault))
        if fault == "redirect":
            return web.Response(status=307, headers={"Location": self.location})
        if fault == "reset":
            _reset(request)
            return web.Response()
        body, self.queue = orjson.dumps(self.queue), []
        return await self._faulty(request, fault, body)

    async def _faulty(self, request: web.Request, fault: str, body: bytes) -> web.StreamResponse:
        if fault == "html":
            return web.Response(body=b"<html>wait</html>", content_type="text/html")
        if fault == "half":  # a body that ends early with the right length
            return web.Response(body=body[: len(body) // 2], content_type="application/json")
        if fault == "object":
            return web.Response(body=b'{"events": []}', content_type="application/json")
        if fault == "gzip":
            response = web.Response(body=body, content_type="application/json")
            response.enable_compression(web.ContentCoding.gzip)
            response.headers["Content-Encoding"] = "gzip"
            return response
        if fault in ("cut", "stall", "endless"):
            return await self._stream(request, fault, body)
        return web.Response(body=body, content_type="application/json")

    async def _stream(self, request: web.Request, fault: str, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if fault == "cut":
            response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        if fault == "stall":
            await asyncio.sleep(30)
        try:
            while fault == "endless":
                await response.write(b" " * 65536)
                self.elsewhere += 65536
        except ConnectionError:
            pass
        _reset(request)
        return response

    async def never(self, request: web.Request) -> web.Response:
        """Where a redirect leads: nobody may come here."""
        self.elsewhere += 1
        return web.json_response([])

    async def start(self) -> None:
        """Listen, on the same port as before where there was one."""
        app = web.Application()
        app.router.add_route("*", "/kv_cache_events", self.answer)
        app.router.add_route("*", "/never", self.never)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


def _reset(request: web.Request) -> None:
    transport = request.transport
    if transport is not None:
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        transport.abort()


@asynccontextmanager
async def trtllm_server() -> AsyncIterator[TrtllmServer]:
    """A running server."""
    server = TrtllmServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def numbered(datas: Sequence[Event], first: int = 0, **more: object) -> bytes:
    """An answer as bytes."""
    elements = [{"event_id": first + at, "data": data, **more} for at, data in enumerate(datas)]
    return json.dumps(elements).encode()
