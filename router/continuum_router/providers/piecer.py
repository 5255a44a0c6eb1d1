"""From a request to its pieces: canonical text, cut and hashed (design/routing.md 6.2).

The chain begins with what separates caches inside the engine: the model (an adapter is one), and a
client's own salt. With ``tenant_scope: per_tenant`` also with who asks, for engines that are made
to keep tenants apart.
"""

import asyncio
import hashlib
from collections.abc import Mapping

from continuum_router.backends.pieces import DIGEST_SIZE, HEADS, PIECE, Pieces
from continuum_router.providers.prepare import Inbound
from continuum_router.providers.prompt_text import prompt_text
from continuum_router.request import ChatRequest, Endpoint, RequestRules, client_salt
from continuum_shared.prefix_key import PrefixKey, cut_utf8

ON_LOOP = 1 << 20
"""Bytes of a body up to which hashing may hold up the event loop: a millisecond or so."""

MAX_PIECES = 8192
"""Pieces of one prompt (16 MiB of text); what follows decides nothing any more."""


def chain(seed: bytes, data: bytes) -> tuple[bytes, ...]:
    """Digests of the whole pieces of ``data``: each covers ``seed`` and all before it."""
    sha256, size = hashlib.sha256, len(data)
    digests: list[bytes] = []
    at, known = 0, seed
    for end in HEADS:
        if end > size:
            return tuple(digests)
        known = sha256(known + data[at:end]).digest()[:DIGEST_SIZE]
        digests.append(known)
        at = end
    last = min(size, PIECE * MAX_PIECES) - PIECE
    while at <= last:
        end = at + PIECE
        known = sha256(known + data[at:end]).digest()[:DIGEST_SIZE]
        digests.append(known)
        at = end
    return tuple(digests)


def tenant_of(inbound: Inbound) -> bytes:
    """Who asks: a digest of the credentials it sent, b"" when it sent none."""
    if not inbound.credentials:
        return b""
    digest = hashlib.sha256()
    for name, value in inbound.credentials:
        digest.update(b"%b\x00%b\x00" % (name.lower(), value))
    return digest.digest()


class Piecer:
    """Cuts requests. ``rules`` say how keys are made: events name prompts by them."""

    def __init__(self, rules: RequestRules, *, per_tenant: bool = False) -> None:
        self._rules = rules
        self._per_tenant = per_tenant

    def of(self, request: ChatRequest, tenant: bytes = b"") -> Pieces | None:
        """The pieces of a request; ``None`` when it has no prompt.

        ``tenant`` identifies who asks. Takes a microsecond a kilobyte: see :meth:`is_long`.
        """
        return self.cut(request.endpoint, request.body, request.model, request.prefix, tenant)

    def cut(
        self,
        endpoint: Endpoint,
        body: Mapping[str, object],
        model: str,
        prefix: PrefixKey | None,
        tenant: bytes = b"",
    ) -> Pieces | None:
        """The same from what was read of a request."""
        text = prompt_text(endpoint, body)
        if text is None:
            return None
        data = text.data
        return Pieces(
            digests=chain(self._seed(model, body, tenant), data),
            size=len(data),
            media=tuple(text.media),
            group=prefix or b"",
        )

    def is_long(self, raw: bytes) -> bool:
        """Whether cutting a request of these bytes would hold up the event loop."""
        return len(raw) > ON_LOOP

    def tenant(self, inbound: Inbound) -> bytes:
        """Who asks, where that matters."""
        return tenant_of(inbound) if self._per_tenant else b""

    async def of_long(self, request: ChatRequest, tenant: bytes = b"") -> Pieces | None:
        """The same beside the event loop."""
        return await asyncio.to_thread(self.of, request, tenant)

    def _seed(self, model: str, body: Mapping[str, object], tenant: bytes) -> bytes:
        name = self._rules.aliases.get(model, model)
        salt = client_salt(body)
        start = cut_utf8(name, len(name) * 4) + b"\x00C"
        if salt is not None:
            start += b"\x00salt\x00" + cut_utf8(salt, 4096)
        if self._per_tenant:
            start += b"\x00tenant\x00" + tenant
        return hashlib.sha256(start).digest()[:DIGEST_SIZE]
