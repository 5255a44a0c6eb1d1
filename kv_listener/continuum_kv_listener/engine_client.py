"""One engine's text endpoints: ``/tokenize``, ``/detokenize``, ``/health``; a chat to learn from.

Answers are believed only in the shapes listed here (``wire/README.md``, decisions C22):

=================  ==============================================================
``/tokenize``      ``{"tokens": [int, …]}``; SGLang's batch form ``{"tokens": [[int, …]]}``
``/detokenize``    vLLM ``{"prompt": str}``; SGLang ``{"text": str}`` or ``{"text": [str]}``
``/health``        any answer below 300
=================  ==============================================================

No redirect is followed, no answer is read beyond a bound, and no error text carries a body:
prompts pass through here.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
import orjson

MAX_ANSWER_BYTES = 8 * 1024 * 1024


class EngineFault(StrEnum):
    """What went wrong with one call (the value is the metric label)."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    """400, 404, 405, 422 or 501: this engine or its template does not do that."""
    REFUSED = "refused"
    """Any other answer that is not 2xx."""
    BAD_ANSWER = "bad_answer"
    TOO_LARGE = "too_large"


class EngineError(Exception):
    """A call that gave no usable answer. ``fault`` says why; the text names the path only."""

    def __init__(self, fault: EngineFault, endpoint: str, status: int | None = None) -> None:
        super().__init__(f"{endpoint}: {fault.value}" + (f" ({status})" if status else ""))
        self.fault = fault
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEndpoints:
    """Full URLs of one engine; any may be unknown."""

    detokenize: str | None = None
    tokenize: str | None = None
    health: str | None = None
    chat: str | None = None


_UNSUPPORTED = frozenset({400, 404, 405, 422, 501})


class EngineClient:
    """Calls one engine through a shared session.

    ``model`` is sent with every call (vLLM answers 404 to a name that it does not serve);
    ``timeout`` is in seconds for a whole call.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoints: EngineEndpoints,
        *,
        model: str | None,
        timeout: float = 10.0,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._session = session
        self._endpoints = endpoints
        self._model = model
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._max_bytes = max_bytes

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Token ids of a chat as the engine's template renders it. Raises :class:`EngineError`."""
        body: dict[str, object] = {"messages": list(messages), "add_generation_prompt": True}
        if tools:
            body["tools"] = list(tools)
        return await self._tokenize(body)

    async def tokenize_prompt(self, prompt: str) -> list[int]:
        """Token ids of a plain prompt, with what the tokenizer adds. Raises EngineError."""
        return await self._tokenize({"prompt": prompt})

    async def detokenize(self, tokens: "Sequence[int] | array[int]") -> str:
        """Text of ``tokens``, special tokens kept. Raises :class:`EngineError`."""
        if self._endpoints.detokenize is None:
            raise EngineError(EngineFault.UNSUPPORTED, "/detokenize")
        answer = await self._post(
            "/detokenize",
            self._endpoints.detokenize,
            # Without the flag SGLang drops the marks that attribution reads.
            {"tokens": list(tokens), "skip_special_tokens": False},
        )
        text = answer.get("prompt", answer.get("text"))
        if isinstance(text, list) and len(text) == 1:
            text = text[0]
        if not isinstance(text, str):
            raise EngineError(EngineFault.BAD_ANSWER, "/detokenize")
        return text

    async def chat(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Have the engine answer a real chat with one token. Raises :class:`EngineError`."""
        if self._endpoints.chat is None:
            raise EngineError(EngineFault.UNSUPPORTED, "/v1/chat/completions")
        body: dict[str, object] = {"messages": list(messages), "max_tokens": 1, "temperature": 0}
        await self._post("/v1/chat/completions", self._endpoints.chat, body)

    async def health(self) -> bool:
        """Whether the engine answers ``/health`` with success; True when it has no such URL."""
        if self._endpoints.health is None:
            return True
        try:
            async with self._session.get(
                self._endpoints.health, timeout=self._timeout, allow_redirects=False
            ) as response:
                return response.status < 300
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _tokenize(self, body: dict[str, object]) -> list[int]:
        if self._endpoints.tokenize is None:
            raise EngineError(EngineFault.UNSUPPORTED, "/tokenize")
        answer = await self._post("/tokenize", self._endpoints.tokenize, body)
        tokens = answer.get("tokens")
        if isinstance(tokens, list) and len(tokens) == 1 and isinstance(tokens[0], list):
            tokens = tokens[0]
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise EngineError(EngineFault.BAD_ANSWER, "/tokenize")
        return tokens

    async def _post(self, endpoint: str, url: str, body: dict[str, object]) -> Mapping[str, object]:
        if self._model is not None:
            body["model"] = self._model
        try:
            async with self._session.post(
                url,
                data=orjson.dumps(body),
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                if response.status in _UNSUPPORTED:
                    raise EngineError(EngineFault.UNSUPPORTED, endpoint, response.status)
                if not 200 <= response.status < 300:
                    raise EngineError(EngineFault.REFUSED, endpoint, response.status)
                raw = await self._read(endpoint, response)
        except TimeoutError:
            raise EngineError(EngineFault.TIMEOUT, endpoint) from None
        except (aiohttp.ClientError, OSError):
            # The cause's text may quote what was sent.
            raise EngineError(EngineFault.UNREACHABLE, endpoint) from None
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise EngineError(EngineFault.BAD_ANSWER, endpoint) from None
        if not isinstance(answer, dict):
            raise EngineError(EngineFault.BAD_ANSWER, endpoint)
        return answer

    async def _read(self, endpoint: str, response: aiohttp.ClientResponse) -> bytes:
        raw = bytearray()
        async for chunk in response.content.iter_any():
            raw += chunk
            if len(raw) > self._max_bytes:
                raise EngineError(EngineFault.TOO_LARGE, endpoint)
        return bytes(raw)
