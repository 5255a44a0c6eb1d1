"""A router configured for one of its two ways in (`server.fast_path`)."""

from collections.abc import Sequence

import pytest

from continuum_router.config.root import Config
from support.edge import edge_config

WAYS = pytest.mark.parametrize("fast", [False, True], ids=["general way", "fast path"])
"""Marks a test that takes `fast` and holds on both ways."""


def server_section(fast: bool, *, listen: str = "127.0.0.1:0", **keys: object) -> str:
    """The `server` section; `keys` are further ones of it."""
    rows = [f"listen: '{listen}'", f"fast_path: {str(fast).lower()}"]
    rows += [f"{key}: {value}" for key, value in keys.items()]
    return f"server: {{{', '.join(rows)}}}\n"


def way_config(
    backends: Sequence[str] | str, fast: bool, more: str = "", **server: object
) -> Config:
    """`edge_config` with the way in chosen; `server` are keys of that section."""
    return edge_config(backends, server_section(fast, **server) + more)  # type: ignore[arg-type]
