"""What each backend type is, as data: where to ask for health and models, how to authenticate.

Decisions P9 names ten types; this version knows those with an OpenAI-compatible surface of their
own. A new one is a member of the configuration's enum and a row here, not a branch elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from continuum_router.config.backends import BackendType
from continuum_router.config.management import (
    SGLANG_MANAGEMENT,
    TRTLLM_MANAGEMENT,
    VLLM_MANAGEMENT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Facts of one backend type.

    ``health_paths`` are tried in order, the next when one is not implemented (decisions E1);
    ``models_path`` answers the model list. ``auth_header`` and ``auth_prefix`` carry an API key
    (H12). ``publishes_events`` says whether an engine of this type can feed the KV index.
    ``management`` are the paths of this engine that are never passed on (decisions J20).
    ``key_proof``: on which hosts a good answer of the first health path proves the API key, none
    named meaning on any; ``None`` when it proves nothing (S2 "catalogue-sized fallbacks").
    """

    health_paths: tuple[str, ...]
    models_path: str
    auth_header: str
    auth_prefix: str
    publishes_events: bool
    management: frozenset[str]
    key_proof: frozenset[str] | None = None


_OPENAI_LIKE = Kind(
    health_paths=("/health", "/v1/models"),
    models_path="/v1/models",
    auth_header="Authorization",
    auth_prefix="Bearer ",
    publishes_events=True,
    management=VLLM_MANAGEMENT,
)

KINDS: Mapping[BackendType, Kind] = MappingProxyType(
    {
        BackendType.VLLM: _OPENAI_LIKE,
        BackendType.SGLANG: replace(_OPENAI_LIKE, management=SGLANG_MANAGEMENT),
        BackendType.TRTLLM: replace(_OPENAI_LIKE, management=TRTLLM_MANAGEMENT),
        BackendType.GENERIC: replace(
            _OPENAI_LIKE,
            publishes_events=False,
            management=VLLM_MANAGEMENT | SGLANG_MANAGEMENT | TRTLLM_MANAGEMENT,
        ),
    }
)
