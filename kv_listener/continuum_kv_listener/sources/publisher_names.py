"""Follows the addresses of the host names in ``allowed_publishers`` (decisions C26).

An engine that is scheduled anew comes back under its name with another address. Names are looked up
again every minute, and soon after a peer was refused: a publisher keeps trying, so it is let in
within seconds. A name that has no address for a while keeps the last ones.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from continuum_kv_listener.sources.publisher_acl import (
    PublisherAcl,
    UnresolvedPublisher,
    has_names,
    resolve_acl,
)
from continuum_shared.logs import fields

log = logging.getLogger("continuum_kv_listener.publisher_names")

LOOK_UP_SECONDS = 60.0
SOONEST_SECONDS = 2.0
"""Between two rounds of look-ups, however many peers are refused."""


class Desk(Protocol):
    """Who judges peers (``publisher_acl.AdmissionDesk``)."""

    on_refusal: Callable[[str], None] | None

    def update(self, domain: str, acl: PublisherAcl) -> None: ...


class Resolve(Protocol):
    """Turns an allow list into networks (``publisher_acl.resolve_acl``)."""

    def __call__(self, entries: Sequence[str], *, local: bool) -> Awaitable[PublisherAcl]: ...


class PublisherNames:
    """Run :meth:`run` under supervision. Times are in seconds."""

    def __init__(
        self,
        desk: Desk,
        *,
        resolve: Resolve = resolve_acl,
        every: float = LOOK_UP_SECONDS,
        soonest: float = SOONEST_SECONDS,
    ) -> None:
        self._desk = desk
        self._resolve = resolve
        self._every = every
        self._soonest = soonest
        self._lists: dict[str, tuple[tuple[str, ...], bool]] = {}
        self._unresolved: dict[str, str] = {}
        self._soon = asyncio.Event()
        desk.on_refusal = self._on_refusal

    def keep(self, domain: str, entries: Sequence[str], *, local: bool) -> None:
        """Follow the names of one allow list, if it has any."""
        if has_names(entries):
            self._lists[domain] = (tuple(entries), local)

    async def run(self) -> None:
        """Look names up until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._every):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()
            for domain, (entries, local) in tuple(self._lists.items()):
                await self._look_up(domain, entries, local=local)
            await asyncio.sleep(self._soonest)

    async def _look_up(self, domain: str, entries: Sequence[str], *, local: bool) -> None:
        try:
            acl = await self._resolve(entries, local=local)
        except UnresolvedPublisher as error:
            if self._unresolved.get(domain) != error.name:
                log.warning(
                    "Name in allowed_publishers has no address now; the last ones stay allowed",
                    extra=fields(source=domain, publisher=error.name),
                )
            self._unresolved[domain] = error.name
        else:
            self._unresolved.pop(domain, None)
            self._desk.update(domain, acl)

    def _on_refusal(self, domain: str) -> None:
        if domain in self._lists:
            self._soon.set()
