"""Asks one backend for its model list, on a client session of its own, never the proxied pool."""

import asyncio
import logging
import ssl
from dataclasses import dataclass

import aiohttp
import orjson

from continuum_router.backends.credentials import TlsFileError, own_headers, tls_context
from continuum_router.backends.kinds import KINDS
from continuum_router.backends.pool import Backend
from continuum_router.models.catalog import FetchFailed, ModelCard
from continuum_shared.logs import fields

log = logging.getLogger("continuum_router.models")

MAX_NAME = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one list may cost (S2 `model_aggregation`); `timeout` in seconds for one try."""

    timeout: float = 5.0
    max_bytes: int = 10_485_760
    max_models: int = 1000


DEFAULT_BOUNDS = Bounds()


async def fetch_models(backend: Backend, bounds: Bounds = DEFAULT_BOUNDS) -> list[ModelCard]:
    """GET the backend's model list and read it. Raises FetchFailed for whatever goes wrong.

    The session lives for one list: a minute passes between two, and unix sockets need a connector
    of their own.
    """
    cards = read_list(
        await fetch_page(backend, KINDS[backend.type].models_path, bounds), bounds.max_models
    )
    if cards is None:
        raise _failed(backend, "no_model_list")
    return cards


def read_list(raw: bytes, max_models: int = DEFAULT_BOUNDS.max_models) -> list[ModelCard] | None:
    """Read an OpenAI model list; entries that are none are left out. None: it is no list at all."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list):
        return None
    return [card for card in map(_card, data[:max_models]) if card is not None]


async def fetch_page(backend: Backend, path: str, bounds: Bounds = DEFAULT_BOUNDS) -> bytes:
    """GET one page of a backend's, whole. Raises FetchFailed; the reason is in the log."""
    try:
        async with asyncio.timeout(bounds.timeout):
            return await _get(backend, path, bounds.max_bytes)
    except TimeoutError:
        raise _failed(backend, "timeout", transient=True) from None
    except (aiohttp.ClientError, OSError) as err:
        raise _failed(backend, type(err).__name__, transient=True) from None


async def _get(backend: Backend, path: str, max_bytes: int) -> bytes:
    url = backend.url
    connector = aiohttp.UnixConnector(url.socket_path) if url.socket_path else None
    origin = f"http://{url.authority}" if url.socket_path else str(url)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(
            origin + path,
            headers=own_headers(backend),
            allow_redirects=False,
            ssl=_tls(backend) if url.tls else True,
            server_hostname=backend.tls.server_name if url.tls else None,
        ) as reply,
    ):
        if reply.status != 200:
            raise _failed(backend, f"status_{reply.status}", transient=reply.status >= 500)
        raw = bytearray()
        async for piece in reply.content.iter_chunked(64 * 1024):
            raw += piece
            if len(raw) > max_bytes:
                raise _failed(backend, "too_large")
        return bytes(raw)


def _tls(backend: Backend) -> ssl.SSLContext:
    try:
        return tls_context(backend.tls)
    except TlsFileError:
        raise _failed(backend, "tls_file") from None


def _card(entry: object) -> ModelCard | None:
    if not isinstance(entry, dict):
        return None
    name, created, owner = entry.get("id"), entry.get("created"), entry.get("owned_by")
    if type(name) is not str or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        return None
    return ModelCard(
        id=name,
        created=created if type(created) is int else None,
        owned_by=owner[:MAX_NAME] if type(owner) is str else None,
    )


def _failed(backend: Backend, why: str, *, transient: bool = False) -> FetchFailed:
    log.info("Page of a backend not available", extra=fields(backend=backend.name, reason=why))
    return FetchFailed(why, transient=transient)
