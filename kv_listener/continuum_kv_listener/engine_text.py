"""What attribution needs from an engine or in its place: token ids to text, chats to token ids."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Protocol


class EngineText(Protocol):
    """Each call may raise :class:`~continuum_kv_listener.engine_client.EngineError`."""

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]: ...

    async def tokenize_prompt(self, prompt: str) -> list[int]: ...

    async def detokenize(self, tokens: "Sequence[int] | array[int]") -> str: ...


class TokenizerFileError(Exception):
    """A file of a local tokenizer cannot be used; the text says which and why."""


class LocalText:
    """The engine's own /tokenize with a local tokenizer in the place of its /detokenize."""

    def __init__(self, engine: EngineText, tokenizer: EngineText) -> None:
        self._engine = engine
        self._tokenizer = tokenizer

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """As the engine does it."""
        return await self._engine.tokenize_chat(messages, tools)

    async def tokenize_prompt(self, prompt: str) -> list[int]:
        """As the engine does it."""
        return await self._engine.tokenize_prompt(prompt)

    async def detokenize(self, tokens: "Sequence[int] | array[int]") -> str:
        """Without asking the engine."""
        return await self._tokenizer.detokenize(tokens)
