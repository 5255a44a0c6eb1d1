"""An engine's text endpoints over the tokenizer of the wire captures.

``/tokenize`` (chat and prompt), ``/detokenize``, ``/v1/chat/completions``, ``/health`` and
``/metrics`` answer as the
recorded engines did (``vllm``), or in SGLang's words (``sglang``). The chat template is the
captured one unless a test brings another.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from tokenizers import Tokenizer

from support.chat_templates import TemplateRefused, render

WIRE = Path(__file__).parent.parent / "fixtures" / "wire"


class TinyEngine:
    """State of one such engine; ``requests`` counts calls by path, ``down`` makes it answer 503."""

    def __init__(
        self,
        *,
        dialect: str = "vllm",
        template: str | None = None,
        bos: str = "",
        models: Sequence[str] = ("tiny-chat",),
    ) -> None:
        self.dialect = dialect
        self.models = tuple(models)
        self.template = (
            (WIRE / "model" / "chat_template.jinja").read_text() if template is None else template
        )
        self.bos = bos
        self.down = False
        self.requests: dict[str, int] = {}
        self.on_chat: Callable[[list[int]], None] | None = None
        self.url = ""
        self._tokenizer = Tokenizer.from_file(str(WIRE / "model" / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; specials written in it become their own tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> list[int]:
        """Token ids of a rendered chat. Raises TemplateRefused."""
        return self.encode(render(self.template, messages, tools))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, specials kept."""
        known = [token for token in tokens if token < self._tokenizer.get_vocab_size()]
        text: str = self._tokenizer.decode(known, skip_special_tokens=False)
        return text

    def application(self) -> web.Application:
        """The aiohttp application that serves it."""
        application = web.Application()
        application.router.add_post("/tokenize", self._tokenize)
        application.router.add_post("/detokenize", self._detokenize)
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_get("/health", self._health)
        application.router.add_get("/metrics", self._metrics)
        return application

    async def _body(self, request: web.Request) -> dict[str, object]:
        self.requests[request.path] = self.requests.get(request.path, 0) + 1
        if self.down:
            raise web.HTTPServiceUnavailable
        body = await request.json()
        if body.get("model", self.models[0]) not in self.models:
            raise web.HTTPNotFound(text='{"error": {"message": "no such model"}}')
        return dict(body)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if "messages" in body:
            if self.dialect == "sglang-old":
                raise web.HTTPUnprocessableEntity
            try:
                tokens = self.encode_chat(body["messages"], body.get("tools"))  # type: ignore[arg-type]
            except TemplateRefused:
                raise web.HTTPBadRequest from None
        else:
            tokens = self.encode(self.bos + str(body["prompt"]))
        return web.json_response({"count": len(tokens), "max_model_len": 4096, "tokens": tokens})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        tokens = body["tokens"]
        assert isinstance(tokens, list)
        if any(token < 0 for token in tokens):
            raise web.HTTPBadRequest
        text = self.decode(tokens)
        if self.dialect == "vllm":
            return web.json_response({"prompt": text})
        if body.get("skip_special_tokens", True):
            text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return web.json_response({"text": text})

    async def _chat(self, request: web.Request) -> web.Response:
        """One token of answer; ``on_chat`` is given the prompt's tokens before it."""
        body = await self._body(request)
        tokens = self.encode_chat(body["messages"])  # type: ignore[arg-type]
        if self.on_chat is not None:
            self.on_chat(tokens)
        message = {"role": "assistant", "content": "x"}
        return web.json_response({"choices": [{"index": 0, "message": message}]})

    async def _health(self, request: web.Request) -> web.Response:
        await self._count(request)
        return web.Response(status=503 if self.down else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        await self._count(request)
        return web.Response(text="vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")

    async def _count(self, request: web.Request) -> None:
        self.requests[request.path] = self.requests.get(request.path, 0) + 1


@asynccontextmanager
async def serving(engine: TinyEngine, *, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serve on a free loopback port; gives the base URL."""
    runner = web.AppRunner(engine.application())
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        engine.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        yield engine.url
    finally:
        await runner.cleanup()


def read_lines(name: str) -> list[dict[str, object]]:
    """The JSON objects of a recording under ``fixtures/wire``."""
    with (WIRE / name).open() as lines:
        return [json.loads(line) for line in lines]
