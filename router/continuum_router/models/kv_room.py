"""How many tokens an engine's KV cache holds, read from its own metrics page.

Cost mode guesses what an engine still holds by what it was sent; how much fits is the one figure
that it cannot see. vLLM tells blocks and their size as labels of `vllm:cache_config_info`, one line
for each of its data-parallel engines; SGLang tells tokens as `sglang:max_total_num_tokens`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

from continuum_router.backends.pool import Backend, Pool
from continuum_router.config.backends import BackendType
from continuum_router.models.catalog import FetchFailed
from continuum_router.models.fetch import fetch_page

PATH = "/metrics"
EVERY = 60.0
"""Seconds between two rounds."""

RETRY = 5.0
"""Seconds until the next round while an engine has not said anything."""

MAX_TOKENS = 10**10

PUBLISHING = frozenset({BackendType.VLLM, BackendType.SGLANG})

_BLOCKS = re.compile(rb'num_gpu_blocks="(\d{1,12})"')
_SIZE = re.compile(rb'block_size="(\d{1,9})"')
_TOKENS = re.compile(rb"^sglang:max_total_num_tokens(?:\{[^}\n]*\})? +([0-9.e+]{1,24})")


def read_room(page: bytes) -> int | None:
    """Tokens of KV room that a metrics page tells; ``None`` when it tells none.

    Engines behind one address are added up for vLLM, whose lines are one an engine; SGLang repeats
    the same figure for each rank.
    """
    blocks = 0
    tokens = 0.0
    for line in page.splitlines():
        if line.startswith(b"vllm:cache_config_info{"):
            count, size = _BLOCKS.search(line), _SIZE.search(line)
            if count is not None and size is not None:
                blocks += int(count[1]) * int(size[1])
        elif found := _TOKENS.match(line):
            try:
                tokens = max(tokens, float(found[1]))
            except ValueError:
                continue
    room = blocks or int(tokens)
    return room if 0 < room <= MAX_TOKENS else None


async def keep_rooms(
    current_pool: Callable[[], Pool],
    tell: Callable[[str, int], None],
    *,
    fetch: Callable[[Backend, str], Awaitable[bytes]] = fetch_page,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Ask every engine that may publish it, at once and then each minute, for ever.

    ``tell`` gets `(backend, tokens)` only when the figure is a new one: corrections that were
    learned in between are kept.
    """
    told: dict[str, int] = {}
    while True:
        members = [b for b in current_pool().routable if b.type in PUBLISHING]
        rooms = await asyncio.gather(*(_room(backend, fetch) for backend in members))
        for backend, room in zip(members, rooms, strict=True):
            if room is not None and told.get(backend.name) != room:
                told[backend.name] = room
                tell(backend.name, room)
        told = {b.name: told[b.name] for b in members if b.name in told}
        await sleep(EVERY if all(room is not None for room in rooms) else RETRY)


async def _room(backend: Backend, fetch: Callable[[Backend, str], Awaitable[bytes]]) -> int | None:
    try:
        return read_room(await fetch(backend, PATH))
    except FetchFailed:
        return None
