"""The simulated engine's HTTP face: OpenAI endpoints, tokenizer, cache control, two peepholes.

`GET /sim/cache` shows what the cache really holds and `GET /sim/stats` what happened to requests;
both exist for tests, which hold them against what the router believes.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from continuum_router.demo.block_cache import BlockCache
from continuum_router.demo.sim_events import SimEventPublisher
from continuum_router.demo.sim_reply import DONE, ReplyHead, TextPieces, error_body
from continuum_router.demo.sim_request import (
    SimLimits,
    SimRefusal,
    detokenize_body,
    parse_body,
    parse_generation,
    tokenize_body,
)
from continuum_router.demo.sim_scheduler import PromptDone, SimScheduler

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ABORTS_KEPT = 10_000


@dataclass(slots=True, kw_only=True)
class SimRecord:
    """What happened to requests since the start. Abort times are of the machine's clock."""

    requests: int = 0
    finished: int = 0
    aborted: int = 0
    aborts: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=_ABORTS_KEPT))


class SimHttp:
    """Handlers over one cache, one scheduler and one publisher.

    `clock` gives the monotonic seconds that abort times are told in, `wall` seconds since the
    epoch; `started` is the process's start by `wall`.
    """

    def __init__(
        self,
        *,
        limits: SimLimits,
        cache: BlockCache,
        scheduler: SimScheduler,
        publisher: SimEventPublisher,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._cache = cache
        self._scheduler = scheduler
        self._publisher = publisher
        self._clock = clock
        self._wall = wall
        self._started = wall()
        self._serial = itertools.count(1)
        self.record = SimRecord()

    def app(self) -> web.Application:
        """The aiohttp application with all routes."""
        app = web.Application(middlewares=[_refusals], client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/reset_prefix_cache", self._reset)
        app.router.add_get("/health", self._health, allow_head=False)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/kv_event_sources", self._event_sources)
        app.router.add_get("/sim/cache", self._sim_cache)
        app.router.add_get("/sim/stats", self._sim_stats)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = parse_body(await request.read())
        asked = parse_generation(body, chat=chat, limits=self._limits)
        if self._cache.blocks_for(len(asked.prompt) + len(asked.answer)) > self._cache.total:
            raise SimRefusal(400, "prompt and answer do not fit into this engine's cache")
        number = request.headers.get("X-Request-Id") or f"sim-{next(self._serial)}"
        prefix = "chatcmpl" if chat else "cmpl"
        head = ReplyHead(id=f"{prefix}-{number}", created=int(self._wall()), generation=asked)
        self.record.requests += 1
        try:
            if asked.stream:
                return await self._stream(request, head)
            return web.json_response(await self._whole(head))
        except (asyncio.CancelledError, ConnectionError):
            self.record.aborted += 1
            self.record.aborts.append({"id": head.id, "at": self._clock()})
            raise

    async def _whole(self, head: ReplyHead) -> dict[str, object]:
        asked = head.generation
        cached = 0
        steps = self._scheduler.run(asked.prompt, asked.answer, asked.salt)
        async with contextlib.aclosing(steps):
            async for step in steps:
                if isinstance(step, PromptDone):
                    cached = step.cached_tokens
        self.record.finished += 1
        return head.whole(asked.answer, cached)

    async def _stream(self, request: web.Request, head: ReplyHead) -> web.StreamResponse:
        asked = head.generation
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        pieces, sent, cached = TextPieces(), 0, 0
        steps = self._scheduler.run(asked.prompt, asked.answer, asked.salt)
        async with contextlib.aclosing(steps):
            async for step in steps:
                if isinstance(step, PromptDone):
                    cached = step.cached_tokens
                    await response.prepare(request)
                    if first := head.first_chunk():
                        await response.write(first)
                    continue
                sent += 1
                last = sent == len(asked.answer)
                if (text := pieces.feed(step, last=last)) or last:
                    await response.write(head.text_chunk(text, last=last))
        end = head.usage_chunk(sent, cached) if asked.include_usage else b""
        await response.write(end + DONE)
        await response.write_eof()
        self.record.finished += 1
        return response

    async def _models(self, _: web.Request) -> web.Response:
        listed = [
            {
                "id": model,
                "object": "model",
                "created": int(self._started),
                "owned_by": "engine-sim",
                "root": model,
                "parent": None,
                "max_model_len": self._limits.max_model_len,
            }
            for model in self._limits.models
        ]
        return web.json_response({"object": "list", "data": listed})

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokens = tokenize_body(parse_body(await request.read()), self._limits)
        return web.json_response(
            {
                "count": len(tokens),
                "max_model_len": self._limits.max_model_len,
                "tokens": tokens,
                "token_strs": None,
            }
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        text = detokenize_body(parse_body(await request.read()), self._limits)
        return web.json_response({"prompt": text})

    async def _reset(self, _: web.Request) -> web.Response:
        return web.json_response({"success": self._cache.reset()})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "engine-sim"})

    async def _event_sources(self, _: web.Request) -> web.Response:
        if self._publisher.endpoint is None:
            return web.json_response({})
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._publisher.endpoint,
            "replay_endpoint": self._publisher.replay_endpoint,
            "topic": self._publisher.topic,
        }
        return web.json_response({"0": source})

    async def _metrics(self, _: web.Request) -> web.Response:
        where = f'engine="0",model_name="{self._limits.models[0]}"'
        size, total = self._cache.block_size, self._cache.total
        config = f'engine="0",block_size="{size}",num_gpu_blocks="{total}"'
        scheduler = self._scheduler
        rows = [
            ("process_start_time_seconds", "gauge", "", self._started),
            ("vllm:num_requests_running", "gauge", where, scheduler.running),
            ("vllm:num_requests_waiting", "gauge", where, scheduler.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", where, self._cache.in_use / total),
            ("vllm:prefix_cache_queries_total", "counter", where, scheduler.queried_tokens),
            ("vllm:prefix_cache_hits_total", "counter", where, scheduler.cached_tokens),
            ("vllm:cache_config_info", "gauge", config, 1),
        ]
        lines = []
        for name, kind, labels, value in rows:
            lines.append(f"# TYPE {name} {kind}")
            lines.append(f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {value}")
        text = "\n".join(lines) + "\n"
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _sim_cache(self, _: web.Request) -> web.Response:
        chains = [
            {"tokens": chain.tokens, "salt": chain.salt} for chain in self._cache.resident_chains()
        ]
        return web.json_response(
            {
                "block_size": self._cache.block_size,
                "total_blocks": self._cache.total,
                "in_use": self._cache.in_use,
                "resident_copies": self._cache.resident_copies,
                "chains": chains,
            }
        )

    async def _sim_stats(self, _: web.Request) -> web.Response:
        record, scheduler = self.record, self._scheduler
        return web.json_response(
            {
                "requests": record.requests,
                "finished": record.finished,
                "aborted": record.aborted,
                "aborts": list(record.aborts),
                "running": scheduler.running,
                "waiting": scheduler.waiting,
                "queried_tokens": scheduler.queried_tokens,
                "cached_tokens": scheduler.cached_tokens,
            }
        )


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except SimRefusal as refusal:
        body = error_body(refusal.status, refusal.message, refusal.kind)
        return web.json_response(body, status=refusal.status)
    except web.HTTPException as http:
        if http.status < 400:
            raise
        return web.json_response({"detail": http.reason}, status=http.status)
