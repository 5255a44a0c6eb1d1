"""Asks the fleet's daemons whether they are ready, and reads the router's own counters."""

import re
from typing import Final

import aiohttp

_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Probe:
    """Small questions to HTTP endpoints; whatever does not answer well is 'not yet'."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def ok(self, url: str) -> bool | None:
        """True when the URL answers 200, else None."""
        return True if await self._text(url) is not None else None

    async def sources_ready(self, listener_url: str, count: int) -> bool | None:
        """True when `count` sources are connected and calibrated, else None."""
        try:
            async with self._http.get(f"{listener_url}/sources") as reply:
                told = await reply.json() if reply.status == 200 else {}
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        sources = told.get("sources", ())
        ready = [one for one in sources if one.get("connected") and one.get("calibrated")]
        return True if len(ready) == count else None

    async def consumers_connected(self, router_url: str, count: int) -> bool | None:
        """True when the router reads `count` event streams, else None."""
        connected = await self.metric(router_url, "continuum_kv_consumer_connected")
        return True if sum(connected.values()) == count else None

    async def metric(self, url: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Samples of one family on `url`/metrics, as `samples` gives them; {} if there are none."""
        text = await self._text(f"{url}/metrics")
        return samples(text or "", name)

    async def _text(self, url: str) -> str | None:
        try:
            async with self._http.get(url) as reply:
                return await reply.text() if reply.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None


def samples(text: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Samples of one metric in a Prometheus text: sorted (label, value) pairs -> value."""
    found: dict[tuple[tuple[str, str], ...], float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and match[1] == name:
            labels = tuple(sorted(_LABEL.findall(match[2] or "")))
            found[labels] = float(match[3])
    return found


def total(found: dict[tuple[tuple[str, str], ...], float], label: str, value: str) -> int:
    """Sum of the samples whose `label` is `value`."""
    return int(sum(number for labels, number in found.items() if (label, value) in labels))
