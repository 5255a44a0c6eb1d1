"""Learns a template from one real chat, read back from the engine's own events (decisions C22, 3).

For engines whose /tokenize takes no chats. The chat's sentinels fill several blocks, so that the
template's words between them stand in whole blocks; it is sent once, asks for one token, and its
path arrives among the questions that the tracker hands out.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from continuum_kv_listener.calibration import CalibrationFailure, Learnt, learn
from continuum_kv_listener.probe_chats import Probe, request_chat

PATIENCE_SECONDS = 30.0
"""How long the engine's events may take."""
READ_TOKENS = 4096
"""As much of a path is read to find out whether it is ours: the chat is shorter than that."""


class ChatSender(Protocol):
    """Sends a chat for one token of answer. May raise ``EngineError``."""

    async def chat(self, messages: Sequence[Mapping[str, str]]) -> None: ...


class RequestProbe:
    """One chat on its way, at most. ``patience`` is in seconds."""

    def __init__(
        self, sender: ChatSender, *, rng: random.Random, patience: float = PATIENCE_SECONDS
    ) -> None:
        self._sender = sender
        self._rng = rng
        self._patience = patience
        self._nonce = ""
        self._learnt: Learnt | None = None
        self._came = asyncio.Event()

    @property
    def waiting(self) -> bool:
        """Whether texts should be shown to :meth:`offer`."""
        return bool(self._nonce)

    async def run(self) -> Learnt | None:
        """Send the chat and wait for its blocks; None when they do not come in time.

        Raises ``EngineError`` when the engine does not take the chat.
        """
        self._learnt = None
        self._came.clear()
        self._nonce = f"{self._rng.getrandbits(40):010x}"
        try:
            await self._sender.chat(request_chat(self._nonce))
            async with asyncio.timeout(self._patience):
                await self._came.wait()
        except TimeoutError:
            return None
        finally:
            self._nonce = ""
        return self._learnt

    def offer(self, text: str) -> None:
        """Look at the text of some path: is it the chat, and all of it?"""
        if not self._nonce or self._nonce not in text:
            return
        learnt = learn({Probe.REQUEST: text}, self._nonce)
        if not isinstance(learnt, CalibrationFailure):
            self._learnt = learnt
            self._came.set()
