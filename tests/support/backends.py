"""Backends and requests as tests need them: everything has a sensible value, name what matters."""

import hashlib
from collections.abc import Mapping, Sequence

from continuum_router.backends.pieces import Pieces
from continuum_router.backends.pool import Backend
from continuum_router.config.backends import BackendType
from continuum_router.routing.strategies import Ask
from continuum_shared.config.kinds import BackendUrl
from continuum_shared.prefix_key import PrefixKey


def backend(
    name: str,
    *,
    models: Sequence[str] = (),
    weight: float = 1.0,
    enabled: bool = True,
    internal: bool = False,
) -> Backend:
    """A vLLM backend of this name."""
    return Backend(
        name=name,
        type=BackendType.VLLM,
        url=BackendUrl.parse("http://127.0.0.1:9"),
        models=frozenset(models),
        weight=weight,
        enabled=enabled,
        internal=internal,
    )


def backends(*names: str) -> tuple[Backend, ...]:
    """Several backends of weight 1."""
    return tuple(backend(name) for name in names)


def prefix(text: str) -> PrefixKey:
    """A prefix key that is different for each text."""
    return PrefixKey(hashlib.sha256(text.encode()).digest())


def ask(
    members: Sequence[Backend],
    *,
    key: PrefixKey | None = None,
    loads: Mapping[str, int] | None = None,
    candidates: Sequence[Backend] | None = None,
    model: str = "m",
    client: str | None = None,
    retry: bool = False,
    size: int = 0,
    pieces: Pieces | None = None,
) -> Ask:
    """A selection among ``members``, all of them available unless ``candidates`` says otherwise."""
    return Ask(
        model=model,
        prefix=key,
        candidates=members if candidates is None else candidates,
        ring_members=members,
        loads=loads or {},
        client=client,
        retry=retry,
        size=size,
        pieces=pieces,
    )
