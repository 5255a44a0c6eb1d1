"""What an engine's ``/metrics`` says about its process and its cache (decisions C16, C17).

======================================  =====================================================
``process_start_time_seconds``          another value means another process, whose cache is empty
``num_gpu_blocks`` of                   how many blocks the engine can hold, for each data-parallel
``vllm:cache_config_info``              engine (its label ``engine``)
======================================  =====================================================

Anything else that the page says, or that it says nothing (SGLang without metrics, TensorRT's JSON),
is no error: then these two checks are not there. Recordings: wire/README.md.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import aiohttp

MAX_PAGE_BYTES = 8 * 1024 * 1024
SECONDS = 5.0
REMEMBERED = 8
"""Start times kept to tell a restart from several processes that answer in turn."""

_START = re.compile(rb"^process_start_time_seconds(?:\{[^}\n]{0,500}\})? (\S{1,40})$", re.MULTILINE)
_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^\n]{0,20000})\} ", re.MULTILINE)
_BLOCKS = re.compile(rb'(?:^|,)num_gpu_blocks="(\d{1,12})"')
_ENGINE = re.compile(rb'(?:^|,)engine="(\d{1,6})"')


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVitals:
    """``started_at``: Unix seconds, None where it is not told. ``gpu_blocks`` by engine number."""

    started_at: float | None = None
    gpu_blocks: Mapping[int, int] = field(default_factory=dict)

    def blocks_of(self, rank: int, ranks: int) -> int | None:
        """Blocks of one of ``ranks`` ranks. A page with one engine speaks for a source with one."""
        if ranks == 1 and len(self.gpu_blocks) == 1:
            return next(iter(self.gpu_blocks.values()))
        return self.gpu_blocks.get(rank)


def read_page(page: bytes) -> EngineVitals:
    """Find the two facts on a page of metrics; whatever it is, nothing raises."""
    blocks = {}
    for labels in _CONFIG.findall(page):
        count = _BLOCKS.search(labels)
        engine = _ENGINE.search(labels)
        if count is not None and int(count[1]) > 0:
            blocks[int(engine[1]) if engine is not None else 0] = int(count[1])
    start = _START.search(page)
    return EngineVitals(started_at=_seconds(start[1]) if start else None, gpu_blocks=blocks)


def _seconds(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


class MetricsPage:
    """Reads one engine's ``/metrics`` through a shared session; ``url`` None: there is none."""

    def __init__(self, session: aiohttp.ClientSession, url: str | None) -> None:
        self._session = session
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=SECONDS)

    async def read(self) -> EngineVitals | None:
        """What the page says; None when there is none to be had."""
        page = bytearray()
        if self._url is None:
            return None
        try:
            async with self._session.get(
                self._url, timeout=self._timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    return None
                async for chunk in response.content.iter_any():
                    page += chunk
                    if len(page) > MAX_PAGE_BYTES:
                        return None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return read_page(bytes(page))


class Start(Enum):
    """What a start time says after those before it."""

    UNKNOWN = auto()
    FIRST = auto()
    SAME = auto()
    NEW = auto()
    """A later one: another process."""


class StartTimes:
    """Follows one engine's start times.

    A time that comes back, or an earlier one, means that several processes answer in turn (API
    servers behind one address): then they say nothing about the engine, and :attr:`unclear` is set.
    """

    def __init__(self) -> None:
        self.unclear = False
        self._last: float | None = None
        self._before: list[float] = []

    def note(self, started_at: float | None) -> Start:
        """The page was read just now."""
        if started_at is None or self.unclear:
            return Start.UNKNOWN
        last, self._last = self._last, started_at
        if last is None:
            return Start.FIRST
        if started_at == last:
            return Start.SAME
        if started_at < last or started_at in self._before:
            self.unclear = True
            return Start.UNKNOWN
        self._before = [*self._before, last][-REMEMBERED:]
        return Start.NEW
