"""Blocks of prompts under invented hashes, the way an engine names them."""

import random
from collections.abc import Mapping, Sequence

from support.kv_publisher import Encoding, removed, stored
from support.tiny_engine import TinyEngine


class FakeCache:
    """Makes events of one engine. ``block`` is its block size; hashes are random 64-bit numbers, so
    that nothing can depend on their values (user report K12)."""

    def __init__(
        self,
        engine: TinyEngine,
        *,
        block: int = 16,
        encoding: Encoding = Encoding.MAP,
        seed: int = 1,
    ) -> None:
        self.engine = engine
        self.block = block
        self.encoding = encoding
        self._rng = random.Random(seed)

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        **more: object,
    ) -> tuple[object, list[int]]:
        """(event, hashes) for the whole blocks of a chat; ``more`` as :meth:`tokens` has it."""
        return self.tokens(self.engine.encode_chat(messages, tools), **more)  # type: ignore[arg-type]

    def tokens(
        self,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        lora_name: str | None = None,
        extra: Sequence[object] = (),
    ) -> tuple[object, list[int]]:
        """The same for token ids. ``salt`` and ``extra`` are on the first block alone, an adapter's
        name on every block, as vLLM has them (wire/README.md, 5)."""
        blocks = len(tokens) // self.block
        hashes = [self._rng.getrandbits(64) for _ in range(blocks)]
        every: list[object] = [] if lora_name is None else [lora_name]
        first = [*every, *extra, *([] if salt is None else [salt])]
        keys = [first or None, *([every or None] * (blocks - 1))]
        event = stored(
            self.encoding,
            hashes,
            None,
            tokens[: blocks * self.block],
            block_size=self.block,
            lora_name=lora_name,
            extra_keys=keys,
        )
        return event, hashes

    def remove(self, hashes: Sequence[int]) -> list[object]:
        """One event for each block, tail first."""
        return [removed(self.encoding, [each]) for each in reversed(hashes)]
